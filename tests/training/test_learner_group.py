"""What several learners have in common: a process group of torch.distributed, and the order in which they use it."""

from __future__ import annotations

import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import torch
import trio
import trio.testing
from torch import Tensor
from torch.distributed import TCPStore

from asyncparl.algorithms import A2C, GA3C, IMPALA, Together
from asyncparl.algorithms.rollout import split_columns
from asyncparl.training.errors import LearnersParted, TrainingError
from asyncparl.training.learner_group import LOOPBACK, LearnerGroup, Store, best_backend, can_reach, find_store
from asyncparl.training.learner_news import News, NotingMetrics, Standing
from asyncparl.training.lockstep import Lockstep, UpdateAbandoned
from asyncparl.training.metrics import Metrics, Situation, UpdateTimes
from tests.algorithms.models import make_model
from tests.algorithms.test_together import batches

LIMIT_S = 30
CPU = torch.device("cpu")

# When it is first used, it opens a pipe that this process keeps.
TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)


@contextmanager
def groups(num_learners: int) -> Iterator[Sequence[LearnerGroup]]:
    """The groups of learners that are threads of this process; their connections are real ones."""
    store = Store([LOOPBACK])

    def join(index: int) -> LearnerGroup:
        own = store.store if index == 0 else find_store(LOOPBACK, store.port)
        return LearnerGroup(own, index, num_learners, address=LOOPBACK, backend="gloo", device=CPU)

    with ThreadPoolExecutor(num_learners) as pool:
        made = list(pool.map(join, range(num_learners)))
    try:
        yield made
    finally:
        for group in made:
            group.close()


@pytest.mark.parametrize("num_learners", [2, 3])
@pytest.mark.parametrize("kind", [IMPALA, A2C, GA3C])
def test_learners_with_gloo_learn_what_one_learns(kind: Any, num_learners: int) -> None:
    alone, *learners = (kind(make_model(), max_grad_norm=0.05) for _ in range(1 + num_learners))
    rollouts = batches()
    expected = [alone.learn(rollout) for rollout in rollouts]
    assert all(metrics["grad_norm"] > 0.05 for metrics in expected)  # clipped

    with groups(num_learners) as made:

        def learn(index: int) -> list[dict[str, Tensor]]:
            torch.set_num_threads(1)
            learners[index].learn_together(Together(num_learners, index == 0, made[index].add_up))
            return [learners[index].learn(split_columns(rollout, num_learners)[index]) for rollout in rollouts]

        with ThreadPoolExecutor(num_learners) as pool:
            found = list(pool.map(learn, range(num_learners)))
    for metrics in found:
        for one, other in zip(expected, metrics, strict=True):
            for name in one:
                torch.testing.assert_close(other[name], one[name], rtol=1e-4, atol=1e-4, msg=name)
    first = learners[0].model.state_dict()
    for learner in learners:
        for name, tensor in learner.model.state_dict().items():
            assert torch.equal(tensor, first[name])
            torch.testing.assert_close(tensor, alone.model.state_dict()[name], rtol=1e-4, atol=1e-6)


OTHER = """
import sys, torch
from asyncparl.training.learner_group import LearnerGroup, find_store
group = LearnerGroup(
    find_store("127.0.0.1", int(sys.argv[1])), 1, 2, address="127.0.0.1", backend="gloo", device=torch.device("cpu")
)
print("there", flush=True)
sys.stdin.read()
"""


def test_a_learner_that_is_killed_is_noticed_by_who_adds_up() -> None:
    store = Store([LOOPBACK])
    command = [sys.executable, "-c", OTHER, str(store.port)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as other:
        group = LearnerGroup(store.store, 0, 2, address=LOOPBACK, backend="gloo", device=CPU)
        assert other.stdout is not None
        assert other.stdout.readline() == b"there\n"
        threading.Timer(0.2, other.send_signal, [signal.SIGKILL]).start()
        # By its connections, not by the limit.
        with pytest.raises(LearnersParted, match=r"^the learners have lost each other: .*Connection closed by peer"):
            group.add_up(torch.ones(3))
    group.close()


def test_a_store_on_the_loopback_is_for_this_host_alone() -> None:
    store = Store([LOOPBACK])
    assert can_reach(LOOPBACK, store.port)
    with socket.socket() as free:
        free.bind((LOOPBACK, 0))
        assert not can_reach(LOOPBACK, free.getsockname()[1])
    listening = [line.split()[1] for line in Path("/proc/net/tcp").read_text().splitlines()[1:]]
    assert f"0100007F:{store.port:04X}" in listening
    assert f"00000000:{store.port:04X}" not in listening


def test_a_group_that_cannot_listen_says_so() -> None:
    store = Store([LOOPBACK])
    with pytest.raises(TrainingError, match=r"^the learners do not find each other from 203\.0\.113\.1: "):
        LearnerGroup(store.store, 0, 1, address="203.0.113.1", backend="gloo", device=CPU)


@pytest.mark.parametrize(
    ("gpus", "backend"),
    [
        ([("a", None), ("b", None)], "gloo"),
        ([("a", "GPU-1"), ("a", "GPU-1")], "gloo"),  # NCCL refuses two on one
        ([("a", "GPU-1"), ("b", None)], "gloo"),
        ([("a", "GPU-1"), ("a", "GPU-2"), ("b", "GPU-1")], "nccl"),
    ],
)
def test_nccl_is_used_where_each_learner_has_a_gpu(gpus: Any, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("torch.distributed.is_nccl_available", lambda: True)
    assert best_backend(gpus) == backend


# --- lockstep -------------------------------------------------------------------------------------------------


class Doubling:
    """A group of two learners with the same numbers."""

    def add_up(self, tensor: Tensor) -> None:
        tensor *= 2


async def _in_thread(function: Callable[[], Any]) -> Any:
    with trio.fail_after(LIMIT_S):
        return await trio.to_thread.run_sync(function)


async def test_nobody_adds_up_before_all_have_got_so_far() -> None:
    arrivals: list[int] = []
    arrived = trio.Event()

    def note(number: int) -> None:
        arrivals.append(number)
        arrived.set()

    lockstep = Lockstep(0, 2, note)
    lockstep.open(Doubling())
    tensor = torch.ones(1)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_in_thread, lambda: lockstep.together.add_up(tensor))
        with trio.fail_after(LIMIT_S):
            await arrived.wait()
        await trio.testing.wait_all_tasks_blocked()
        assert tensor == 1
        assert lockstep.allow(1)
    assert tensor == 2
    assert lockstep.waited_s > 0
    lockstep.allow(3)  # the others are ahead
    for _ in range(2):
        await _in_thread(lambda: lockstep.together.add_up(tensor))
    await trio.testing.wait_all_tasks_blocked()
    assert (float(tensor), arrivals) == (8.0, [1, 2, 3])


async def test_who_is_to_end_does_not_wait_for_the_others_but_does_what_they_count_on() -> None:
    lockstep, tensor = Lockstep(1, 2, lambda _: None), torch.ones(1)
    lockstep.open(Doubling())
    assert lockstep.allow(1)
    lockstep.close()
    await _in_thread(lambda: lockstep.together.add_up(tensor))
    assert tensor == 2
    with pytest.raises(UpdateAbandoned):
        await _in_thread(lambda: lockstep.together.add_up(tensor))
    assert not lockstep.allow(3)
    with pytest.raises(UpdateAbandoned):
        await _in_thread(lambda: lockstep.together.add_up(tensor))
    assert tensor == 2


# --- news -----------------------------------------------------------------------------------------------------


class Ended:
    """A finished episode."""

    def __init__(self, return_: float, length: int) -> None:
        self.return_ = return_
        self.length = length


def test_figures_of_another_learner_are_as_if_they_were_noted_here() -> None:
    told: list[bool] = []
    noting, elsewhere, here = NotingMetrics(lambda: told.append(True)), Metrics(), Metrics()
    for metrics in (noting, here):
        metrics.rollout_arrived(now=10.0, episodes=[Ended(1.0, 9), Ended(-1.0, 8)], environment_s=0.5, inference_s=0.2)
        metrics.weights_played(now=10.0, delay_s=0.25)
        metrics.batch_learned(
            now=10.0, num_steps=40, mean_lag=2.0, max_lag=3, times=UpdateTimes(0.1, 0.2, 0.3), age_s=1.5
        )
    assert told == [True]
    News(Standing(0, 0, 1, 0, 1), noting.take(), []).tell(elsewhere, now=10.0)
    assert noting.take() == []
    situation = Situation(
        agent_steps=40, updates=1, episodes=2, elapsed_s=1.0, batches_waiting=0, rollouts_waiting=0, actors=1,
        actor_restarts=0, loop_lag_ms=0.0,
    )  # fmt: skip
    assert elsewhere.report(situation, now=11.0) == here.report(situation, now=11.0)
    assert elsewhere.num_episodes == 2
