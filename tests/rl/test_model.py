"""`Model` in front of `asyncparl.algorithms.weights`, whose own tests look at every dtype and error."""

from __future__ import annotations

import copy

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncparl.rl import Model


class Small(Model):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 2)
        self.norm = nn.BatchNorm1d(2)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        out: Tensor = self.norm(self.layer(obs))
        return out, out[:, 0]


def trained() -> Small:
    """With running statistics that differ from those of a new model."""
    model = Small()
    for _ in range(3):
        model(torch.randn(10, 3) + 5.0)
    return model


def assert_equal(one: Model, other: Model) -> None:
    for (name, array), (other_name, other_array) in zip(
        one.get_weights().items(), other.get_weights().items(), strict=True
    ):
        assert name == other_name
        np.testing.assert_array_equal(array, other_array)


def test_weights_round_trip_with_the_statistics_of_batch_norm() -> None:
    source, target = trained(), Small()
    assert source.get_weights()["norm.num_batches_tracked"] == 3
    target.set_weights(source.get_weights())
    assert_equal(target, source)
    obs = torch.randn(4, 3)
    torch.testing.assert_close(target.eval()(obs), source.eval()(obs))


def test_flat_weights_round_trip() -> None:
    source, target = trained(), Small()
    buffer = source.get_flat_weights()
    target.set_flat_weights(buffer)
    assert_equal(target, source)
    memory = np.zeros_like(buffer)
    assert target.get_flat_weights(out=memory) is memory
    np.testing.assert_array_equal(memory, buffer)


def test_flat_weights_are_a_copy() -> None:
    model = trained()
    buffer = model.get_flat_weights()
    before = buffer.copy()
    with torch.no_grad():
        model.layer.weight.add_(1.0)
    np.testing.assert_array_equal(buffer, before)


def test_sync_moves_parameters_and_statistics() -> None:
    source, target = trained(), Small()
    old, new = target.get_weights(), source.get_weights()
    source.sync_weights_to(target, decay=0.9)
    expected = 0.9 * old["norm.running_mean"] + 0.1 * new["norm.running_mean"]
    np.testing.assert_allclose(target.get_weights()["norm.running_mean"], expected, rtol=1e-5)
    source.sync_weights_to(target)
    assert_equal(target, source)


def test_wrong_weights_are_refused() -> None:
    model = Small()
    with pytest.raises(ValueError, match=r"^weights do not fit: missing 'layer\.weight'; .*; unknown 'extra'$"):
        model.set_weights({"extra": np.zeros(1)})
    with pytest.raises(ValueError, match=r"^cannot sync the weights of a model to itself$"):
        model.sync_weights_to(model)


def test_a_deep_copy_has_weights_of_its_own() -> None:
    model = trained()
    twin = copy.deepcopy(model)
    assert_equal(twin, model)
    twin.set_weights(Small().get_weights())
    assert not np.array_equal(twin.get_weights()["layer.weight"], model.get_weights()["layer.weight"])
