from __future__ import annotations

import pytest
import torch

from asyncparl.algorithms.optimizers import RMSpropTF, make_optimizer


def test_rmsprop_with_epsilon_under_the_root_by_hand() -> None:
    parameter = torch.nn.Parameter(torch.tensor([1.0, -2.0, 3.0]))
    unused = torch.nn.Parameter(torch.tensor([7.0]))
    optimizer = RMSpropTF([parameter, unused], 0.5, decay=0.9, eps=0.1)
    expected, mean_square = [1.0, -2.0, 3.0], [0.0, 0.0, 0.0]
    for gradient in ([0.2, -4.0, 0.0], [1.0, 1.0, -0.3]):
        parameter.grad = torch.tensor(gradient)
        optimizer.step()
        for i, g in enumerate(gradient):
            mean_square[i] = 0.9 * mean_square[i] + 0.1 * g * g
            expected[i] -= 0.5 * g / (mean_square[i] + 0.1) ** 0.5
    assert parameter.tolist() == pytest.approx(expected)
    assert unused.tolist() == [7.0]


def test_each_group_has_its_own_settings() -> None:
    one, other = (torch.nn.Parameter(torch.tensor([1.0])) for _ in range(2))
    optimizer = RMSpropTF([one, other], 0.5, decay=0.0, eps=0.0)
    optimizer.param_groups[0]["params"] = [one]
    optimizer.add_param_group({"params": [other], "lr": 0.25})
    one.grad, other.grad = torch.tensor([2.0]), torch.tensor([2.0])
    optimizer.step()
    assert (one.item(), other.item()) == (0.5, 0.75)


def test_what_an_optimizer_does_not_have_is_refused() -> None:
    parameter = torch.nn.Parameter(torch.zeros(1))
    with pytest.raises(ValueError, match=r"^optimizer is 'sgd', expected one of adam, rmsprop, rmsprop_tf$"):
        make_optimizer("sgd", [parameter], learning_rate=0.1)  # type: ignore[arg-type]
    for name in ("adam", "rmsprop_tf"):
        with pytest.raises(ValueError, match=rf"^momentum is 0\.5, which {name} does not have$"):
            make_optimizer(name, [parameter], learning_rate=0.1, momentum=0.5)  # type: ignore[arg-type]
