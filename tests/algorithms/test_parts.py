"""A rollout that is learned from in parts, in several threads: the same update."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor

from asyncparl.algorithms import A2C, GA3C, IMPALA, Rollout, to_torch
from asyncparl.rl.nets import AtariShallow
from tests.algorithms.models import make_model
from tests.algorithms.rollouts import make_rollout

ENDS: dict[str, Any] = {"terminated": ((1, 0), (4, 2)), "truncated": ((0, 1), (3, 0), (2, 4))}


class Counted:
    """`map`, and how many environments each part had."""

    def __init__(self) -> None:
        self.widths: list[int] = []

    def __call__(self, function: Any, parts: Sequence[Rollout[Tensor]]) -> list[Any]:
        self.widths += [part.rewards.shape[1] for part in parts]
        return [function(part) for part in parts]


@pytest.mark.parametrize(("num_threads", "widths"), [(1, [5]), (2, [2, 3]), (3, [1, 2, 2]), (9, [1] * 5)])
@pytest.mark.parametrize("kind", [IMPALA, A2C, GA3C])
def test_the_update_is_that_of_the_whole(kind: Any, num_threads: int, widths: list[int]) -> None:
    rollout = to_torch(make_rollout(5, 5, **ENDS))
    whole, split = kind(make_model()), kind(make_model())
    counted = Counted()
    split.use_threads(counted, num_threads)
    expected, metrics = whole.learn(rollout), split.learn(rollout)
    assert counted.widths == widths
    assert metrics.keys() == expected.keys()
    for name, value in expected.items():
        torch.testing.assert_close(metrics[name], value, rtol=1e-5, atol=1e-5)
    for one, other in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)
    assert (split.agent_steps, split.updates) == (25, 1)


def test_what_needs_all_environments_is_not_split() -> None:
    rollout = to_torch(make_rollout(5, 5, **ENDS))
    whole, split = (A2C(make_model(), normalise_advantages=True) for _ in range(2))
    counted = Counted()
    split.use_threads(counted, 3)
    expected, metrics = whole.learn(rollout), split.learn(rollout)
    assert counted.widths == [5]
    assert torch.equal(metrics["pg_loss"], expected["pg_loss"])


def test_threads_share_the_model() -> None:
    torch.manual_seed(0)
    models = [AtariShallow(6) for _ in range(2)]
    models[1].load_state_dict(models[0].state_dict())
    obs = torch.randint(0, 256, (4, 8, 4, 84, 84), dtype=torch.uint8)
    rollout = to_torch(make_rollout(4, 8, num_actions=6))._replace(
        obs=obs, bootstrap_obs=obs[0], final_obs=obs[0, :0], final_steps=torch.zeros(0, 2, dtype=torch.int64)
    )
    whole, split = (A2C(model, precision="bf16") for model in models)
    with ThreadPoolExecutor(4) as pool:
        split.use_threads(pool.map, 4)
        for _ in range(3):
            expected, metrics = whole.learn(rollout), split.learn(rollout)
            torch.testing.assert_close(metrics["total_loss"], expected["total_loss"], rtol=1e-2, atol=1e-2)
            torch.testing.assert_close(metrics["grad_norm"], expected["grad_norm"], rtol=5e-2, atol=1e-2)


def test_a_parameter_that_nothing_depends_on_stays_as_it_is() -> None:
    model = make_model()
    unused = torch.nn.Parameter(torch.ones(3))
    model.register_parameter("unused", unused)
    algorithm = A2C(model)
    algorithm.use_threads(map, 2)
    algorithm.learn(to_torch(make_rollout(5, 5)))
    assert unused.grad is None
    assert torch.equal(unused, torch.ones(3))
