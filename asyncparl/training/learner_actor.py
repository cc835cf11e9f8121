"""A learner beside the first one: an actor that has actors of its own, which play for it.

The first learner, in the process of the run, makes it, tells it when all learners have got so far, and hears its news:
see `learners.py`. Its weights are those of the first learner, bit for bit, after every update.
"""

from __future__ import annotations

import socket
from collections.abc import AsyncGenerator, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
import trio
from numpy.typing import NDArray

import asyncparl
from asyncparl.machine import host_identity, own_address
from asyncparl.rl import keep_freed_memory
from asyncparl.training.build import Interface, ModelClass, RunParts, make_model, restore_algorithm, seed_generators
from asyncparl.training.checkpoint import Counters
from asyncparl.training.config import TrainingConfig
from asyncparl.training.errors import TrainingError, unwrapped_errors
from asyncparl.training.learner_group import Backend, LearnerGroup, can_reach, find_store, gpu_identity
from asyncparl.training.learner_news import News, NotingMetrics
from asyncparl.training.lockstep import Lockstep
from asyncparl.training.pipeline import Pipeline
from asyncparl.training.recipes import make_algorithm
from asyncparl.training.turns import deterministic_torch


@dataclass(frozen=True, slots=True)
class LearnerSetup:
    """What a learner is made from."""

    index: int  # of the learner; 0 is the first
    num_learners: int
    config: TrainingConfig  # its share; see `share_of`
    interface: Interface
    model_class: ModelClass | None
    counters: Counters
    algorithm_state: dict[str, Any]  # of the first learner, on the CPU


class Place(NamedTuple):
    """Where a learner is."""

    host: str  # see `host_identity`
    host_name: str
    gpu: str | None


@asyncparl.remote_class(max_concurrency=8, placement="spread")
class LearnerActor:
    """See the top of this file."""

    def __init__(self, setup: LearnerSetup) -> None:
        keep_freed_memory()
        config = setup.config
        # What models of users draw while they learn differs from learner to learner.
        seed = np.random.SeedSequence([config.seed, setup.counters.updates, setup.index]).generate_state(1)
        seed_generators(int(seed[0]))
        model = make_model(setup.interface, setup.model_class, lstm=config.lstm).to(config.device)
        algorithm = make_algorithm(model, config)
        restore_algorithm(algorithm, setup.algorithm_state, config)
        self._run = RunParts(
            config=config,
            interface=setup.interface,
            model_class=setup.model_class,
            algorithm=algorithm,
            counters=setup.counters,
        )
        self._device = torch.device(config.device)
        self._lockstep = Lockstep(setup.index, setup.num_learners, self._arrived)
        self._num_arrivals = 0
        self._arrival = trio.Event()
        self._metrics = NotingMetrics(self._notify)
        self._lines: list[str] = []
        self._happened = trio.Event()
        self._pipeline: Pipeline | None = None
        self._group: LearnerGroup | None = None

    def place(self) -> Place:
        """Where it is."""
        return Place(host_identity(), socket.gethostname(), gpu_identity(self._device))

    def reach(self, addresses: Sequence[str], port: int) -> list[str]:
        """Those of the first learner's addresses at which it can be reached from here."""
        return [address for address in addresses if can_reach(address, port)]

    def meet(self, address: str, port: int, backend: Backend) -> None:
        """Form the process group; returns when all learners are there.

        Args:
            address, port: of the first learner's store.

        Raises:
            TrainingError: they do not find each other in time.
        """
        ours = own_address(address)
        if ours is None:
            raise TrainingError(f"there is no way from {socket.gethostname()} to the first learner at {address}")
        lockstep = self._lockstep
        self._group = LearnerGroup(
            find_store(address, port),
            lockstep.index,
            lockstep.num_learners,
            address=ours,
            backend=backend,
            device=self._device,
        )

    async def learn(self) -> None:
        """Until it is cancelled, or something fails. The process group has to be there.

        Raises:
            LearnersParted: another learner has gone.
            Exception: as `Pipeline.run`.
        """
        assert self._group is not None
        self._lockstep.open(self._group)
        self._pipeline = Pipeline(self._run, say=self._say, lockstep=self._lockstep, metrics=self._metrics)
        config = self._run.config
        with unwrapped_errors(), deterministic_torch(config.device) if config.repeatable else nullcontext():
            await self._pipeline.run()

    async def allow(self, number: int) -> None:
        """All learners have got so far; see `Lockstep.allow`."""
        self._lockstep.allow(number)

    async def arrivals(self) -> AsyncGenerator[int, None]:
        """How often this learner has had something to add up, whenever it has."""
        while True:
            await self._arrival.wait()
            self._arrival = trio.Event()
            yield self._num_arrivals

    async def news(self) -> AsyncGenerator[News, None]:
        """What happens here, as it happens. It ends when all is learned, and told."""
        is_over = False
        while not is_over:
            await self._happened.wait()
            self._happened = trio.Event()
            assert self._pipeline is not None
            is_over = self._pipeline.finished.is_set()
            lines, self._lines = self._lines, []
            yield News(self._pipeline.standing(), self._metrics.take(), lines)

    async def weights(self) -> tuple[int, NDArray[np.uint8]]:
        """The newest weights: their version, and packed by `WeightLayout`. For who compares learners."""
        assert self._pipeline is not None
        return self._pipeline.newest.version, self._pipeline.newest.packed

    def _arrived(self, number: int) -> None:
        self._num_arrivals = number
        self._arrival.set()

    def _say(self, line: str) -> None:
        self._lines.append(line)
        self._notify()

    def _notify(self) -> None:
        self._happened.set()
