from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from asyncparl.algorithms import WeightLayout
from asyncparl.algorithms.weights import get_weights, set_weights, sync_weights


class Mixed(nn.Module):
    """Weights of several dtypes, shapes and memory formats."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 5, 2)
        self.conv.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
        self.norm = nn.BatchNorm2d(5)
        self.short = nn.Linear(5, 3, bias=False, dtype=torch.bfloat16)
        self.register_buffer("mask", torch.tensor([True, False, True]))

    def randomize(self) -> Mixed:
        with torch.no_grad():
            for tensor in self.state_dict().values():
                tensor.copy_(torch.randn(tensor.shape) * 100.0)
        return self


def assert_equal(one: nn.Module, other: nn.Module) -> None:
    others = other.state_dict()
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, others[name]), name


def test_weights_round_trip_with_buffers_of_every_dtype() -> None:
    source, target = Mixed().randomize(), Mixed()
    weights = get_weights(source)
    assert weights["norm.num_batches_tracked"].dtype == np.int64
    assert weights["short.weight"].dtype == np.float32
    assert weights["mask"].dtype == np.bool_
    assert all(array.flags.c_contiguous for array in weights.values())
    set_weights(target, weights)
    assert_equal(target, source)


def test_weights_taken_out_do_not_change_with_the_model() -> None:
    model = Mixed().randomize()
    weights = get_weights(model)
    before = {name: array.copy() for name, array in weights.items()}
    model.randomize()
    for name, array in weights.items():
        np.testing.assert_array_equal(array, before[name])
    with torch.no_grad():
        model.conv.weight.zero_()
    set_weights(model, weights)
    weights["conv.weight"][:] = 7.0
    assert not (model.conv.weight == 7.0).any()


def test_read_only_arrays_can_be_put_in() -> None:
    source, target = Mixed().randomize(), Mixed()
    weights = get_weights(source)
    for array in weights.values():
        array.flags.writeable = False
    set_weights(target, weights)
    assert_equal(target, source)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"conv.bias": None}, r"^weights do not fit: missing 'conv\.bias'$"),
        ({"other": np.zeros(1)}, r"^weights do not fit: unknown 'other'$"),
        ({"conv.bias": np.zeros((5, 1))}, r"^weights do not fit: 'conv\.bias' has shape \[5, 1\], expected \[5\]$"),
        (
            {"conv.bias": None, "conv.bais": np.zeros(5)},
            r"^weights do not fit: missing 'conv\.bias'; unknown 'conv\.bais'$",
        ),
        (
            {"norm.num_batches_tracked": np.float32(1.5)},
            r"^weights do not fit: 'norm\.num_.*' is float32, expected int64$",
        ),
        ({"mask": np.array(["a", "b", "c"])}, r"^weights do not fit: 'mask' is <U1, expected bool$"),
    ],
)
def test_weights_that_do_not_fit_change_nothing(change: dict[str, Any], message: str) -> None:
    model = Mixed()
    before = get_weights(model)
    weights = {**get_weights(Mixed().randomize()), **change}
    with pytest.raises(ValueError, match=message):
        set_weights(model, {name: array for name, array in weights.items() if array is not None})
    for name, array in get_weights(model).items():
        np.testing.assert_array_equal(array, before[name])


def test_a_layout_holds_every_weight_bit_for_bit_in_one_buffer() -> None:
    source, target = Mixed().randomize(), Mixed()
    with torch.no_grad():
        source.state_dict()["norm.num_batches_tracked"].fill_(2**53 + 1)  # not a float32, not even a float64
    layout = WeightLayout.of(source)
    buffer = layout.pack(source)
    assert buffer.shape == (layout.num_bytes,)
    assert all(slot.start % 64 == 0 for slot in layout.slots)
    buffer.flags.writeable = False
    WeightLayout.of(target).unpack(buffer, target)
    assert_equal(target, source)
    source.randomize()
    assert not torch.equal(source.conv.weight, target.conv.weight)


def test_a_layout_packs_into_memory_that_it_is_given() -> None:
    model = Mixed().randomize()
    layout = WeightLayout.of(model)
    memory = np.zeros(layout.num_bytes, np.uint8)
    assert layout.pack(model, memory) is memory
    np.testing.assert_array_equal(memory, layout.pack(model))


def test_layouts_are_equal_exactly_if_models_fit() -> None:
    assert WeightLayout.of(nn.Linear(3, 2)) == WeightLayout.of(nn.Linear(3, 2))
    assert WeightLayout.of(nn.Linear(3, 2)) != WeightLayout.of(nn.Linear(2, 3))


def test_a_layout_refuses_other_models_and_other_buffers() -> None:
    model = nn.Linear(3, 2)
    layout = WeightLayout.of(model)
    with pytest.raises(ValueError, match=r"^the layout of the weights is not that of this Linear$"):
        layout.pack(nn.Linear(2, 3))
    with pytest.raises(ValueError, match=r"^the buffer is uint8 \[127\], expected uint8 \[128\]$"):
        layout.unpack(np.zeros(127, np.uint8), model)
    with pytest.raises(ValueError, match=r"^the buffer is int8 \[128\], expected uint8 \[128\]$"):
        layout.pack(model, np.zeros(128, np.int8))  # type: ignore[arg-type,unused-ignore]


def test_sync_without_decay_copies_parameters_and_buffers() -> None:
    source, target = Mixed().randomize(), Mixed()
    with torch.no_grad():
        target.conv.weight.fill_(torch.nan)
    sync_weights(source, target)
    assert_equal(target, source)


def test_sync_with_decay_moves_floats_a_tenth_and_copies_integers() -> None:
    source, target = Mixed().randomize(), Mixed().randomize()
    old, new = get_weights(target), get_weights(source)
    sync_weights(source, target, decay=0.9)
    result = get_weights(target)
    for name in ("conv.weight", "conv.bias", "norm.weight", "norm.running_mean", "norm.running_var"):
        np.testing.assert_allclose(result[name], 0.9 * old[name] + 0.1 * new[name], rtol=1e-4, atol=1e-4)
    for name in ("norm.num_batches_tracked", "mask"):
        np.testing.assert_array_equal(result[name], new[name])
    sync_weights(source, target, decay=1.0)
    np.testing.assert_array_equal(get_weights(target)["conv.weight"], result["conv.weight"])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(2, 2)
        self.second = self.first


def test_a_shared_parameter_decays_once() -> None:
    source, target = Tied(), Tied()
    expected = 0.5 * target.first.weight.detach() + 0.5 * source.first.weight.detach()
    sync_weights(source, target, decay=0.5)
    torch.testing.assert_close(target.first.weight.detach(), expected)


@pytest.mark.parametrize(
    ("target", "decay", "message"),
    [
        (nn.Bilinear(3, 2, 1), 0.0, r"^cannot sync a Linear to a Bilinear$"),
        (nn.Linear(2, 3), 0.0, r"^weights do not fit: 'weight' has shape \[2, 3\], expected \[3, 2\]; "),
        (nn.Linear(3, 2), -0.1, r"^decay is -0\.1, expected a number from 0 to 1$"),
        (nn.Linear(3, 2), 1.1, r"^decay is 1\.1, expected a number from 0 to 1$"),
    ],
)
def test_sync_that_does_not_fit_changes_nothing(target: nn.Module, decay: float, message: str) -> None:
    before = get_weights(target)
    with pytest.raises(ValueError, match=message):
        sync_weights(nn.Linear(3, 2), target, decay)
    for name, array in get_weights(target).items():
        np.testing.assert_array_equal(array, before[name])


def test_a_model_is_not_synced_to_itself() -> None:
    model = nn.Linear(3, 2)
    with pytest.raises(ValueError, match=r"^cannot sync the weights of a model to itself$"):
        sync_weights(model, model)
