"""The actors: each plays a number of environments in a process of its own.

A `RolloutActor` has the network, and plays with the weights that it was sent last. An `EnvironmentActor` has none: it
asks a predictor for every action.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from time import perf_counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

import asyncparl
from asyncparl.rl import WeightLayout, keep_freed_memory
from asyncparl.training.build import Interface, ModelClass, make_model, seed_generators
from asyncparl.training.config import TrainingConfig
from asyncparl.training.environments import VectorEnvironment, environment_seed, make_environment
from asyncparl.training.sampler import ActorCriticPolicy, Sample, Sampler, Unroller
from asyncparl.training.sending import SentSample, pack_sample
from asyncparl.training.weight_board import BoardAddress, BoardMemory, BoardReader, this_host


@dataclass(frozen=True, slots=True)
class ActorSetup:
    """What an actor is made from."""

    config: TrainingConfig
    model_class: ModelClass | None
    first_environment: int
    """How many environments the run has started before these; their seeds follow from it."""

    def seed(self, offset: int = 0) -> int:
        """That of one of its environments."""
        return environment_seed(self.config.seed, self.first_environment + offset)

    def prepare_process(self) -> None:
        """Of an actor: a core's worth of work, and known draws of what environments and models of users may draw."""
        torch.set_num_threads(1)
        seed_generators(self.seed())
        if self.config.repeatable:
            torch.use_deterministic_algorithms(True)

    def make_environment(self, num_envs: int, offset: int = 0) -> VectorEnvironment:
        """So many of its environments, from one of them on."""
        config = self.config
        return make_environment(config.env, num_envs=num_envs, seed=self.seed(offset), options=config.env_options)

    def packer(self, environment: VectorEnvironment) -> Callable[[Sample], SentSample]:
        """What makes of that which it plays there what it sends."""
        return partial(pack_sample, environment=environment, compress=self.config.compress_rollouts)


@asyncparl.remote_class
class RolloutActor:
    """Streams rollouts for ever, or plays one when it is asked to.

    Weights that are set come between two rollouts, as all calls do that are not `async`. Those that are offered come
    between two steps: what is played is then as new as it can be.
    """

    def __init__(self, setup: ActorSetup) -> None:
        keep_freed_memory()  # a rollout is allocated every time, filled, and sent away
        config, seed = setup.config, setup.seed()
        setup.prepare_process()
        environment = setup.make_environment(config.envs_per_actor)
        self._pack = setup.packer(environment)
        model = make_model(Interface.of(environment), setup.model_class, lstm=config.lstm)
        self._model = model
        self._layout = WeightLayout.of(model)
        policy = ActorCriticPolicy(model, precision=config.precision, seed=seed)
        self._sampler = Sampler(
            environment,
            policy,
            num_steps=config.unroll_length,
            initial_state=policy.initial_state(environment.num_envs),
        )
        self._board: BoardReader | None = None
        self._own_board: BoardMemory | None = None
        self._num_read_in_place = 0
        self._version = -1
        self._weights_came_at: float | None = None  # None: they have been played with
        self._offers: deque[tuple[int, NDArray[np.uint8], float]] = deque(maxlen=1)
        """The newest weights that the event loop has put there, and when."""
        self._new_weights: list[tuple[int, float]] = []
        """As in the next record."""
        self._num_rollouts = 0

    def set_weights(self, version: int, packed: NDArray[np.uint8]) -> str:
        """Act with these weights from the next rollout on. The host where the actor runs, see `this_host`.

        Raises:
            ValueError: they are of another model.
        """
        self._adopt(version, packed, perf_counter())
        return this_host()

    def set_weights_from(self, version: int, slot: int) -> None:
        """Likewise, with those in a slot of the board that it has opened."""
        assert self._board is not None
        self._num_read_in_place += 1
        self.set_weights(version, self._board.weights(slot))

    async def offer_weights(self, version: int, packed: NDArray[np.uint8]) -> str:
        """Act with these weights from the next step on. The host where the actor runs."""
        self._offers.append((version, packed, perf_counter()))
        return this_host()

    async def offer_weights_from(self, version: int, slot: int) -> None:
        """Likewise, with those in a slot of the board that it has opened."""
        assert self._board is not None
        self._num_read_in_place += 1
        await self.offer_weights(version, self._board.weights(slot).copy())  # the slot is ours during this call only

    def open_board(self, address: BoardAddress) -> bool:
        """Whether the actor sees this board, and `set_weights_from` means it from now on."""
        self._board = BoardReader.open(address)
        return self._board is not None

    def make_board(self, num_bytes: int, num_slots: int) -> BoardAddress | None:
        """A board for all actors of this host, which lives as long as this process. None: there cannot be one."""
        try:
            self._own_board = BoardMemory(num_bytes, num_slots)
        except OSError:
            return None
        return self._own_board.address

    async def write_to_board(self, slot: int, packed: NDArray[np.uint8]) -> bool:
        """Whether the board that it has made had memory for them. `async`: the others need not wait for its rollout."""
        assert self._own_board is not None
        return self._own_board.write(slot, packed)

    def rollout(self) -> SentSample:
        """The next rollout. Weights have to be set before."""
        if self._version < 0:
            raise RuntimeError("set_weights() comes before rollouts")
        rollout, record = self._sampler.collect(self._version_of_step)
        self._num_rollouts += 1
        record = replace(record, new_weights=tuple(self._new_weights))
        self._new_weights.clear()
        return self._pack(Sample(rollout, record))

    def rollouts(self) -> Iterator[SentSample]:
        """One rollout after the other. Weights have to be set before."""
        while True:
            yield self.rollout()

    def _version_of_step(self) -> int:
        """Of the weights that the next step is played with: the newest that are here."""
        try:
            self._adopt(*self._offers.pop())
        except IndexError:  # nothing new
            pass
        if self._weights_came_at is not None:
            self._new_weights.append((self._version, perf_counter() - self._weights_came_at))
            self._weights_came_at = None
        return self._version

    def _adopt(self, version: int, packed: NDArray[np.uint8], came_at: float) -> None:
        self._layout.unpack(packed, self._model)
        self._version, self._weights_came_at = version, came_at

    def statistics(self) -> dict[str, Any]:
        """What it has done so far."""
        return {
            "weights_version": self._version,
            "rollouts": self._num_rollouts,
            "weights_read_in_place": self._num_read_in_place,
        }


@asyncparl.remote_class
class EnvironmentActor:
    """Streams rollouts whose actions somebody else has chosen.

    Its environments are two groups, so that one can take a step while the actions of the other are on their way. They
    are rollouts of their own.
    """

    def __init__(
        self, setup: ActorSetup, predictor: asyncparl.Proxy, initial_row: NDArray[np.float32] | None = None
    ) -> None:
        """`predictor.predict(obs, state)` gives what `Predictor.predict` does; `initial_row`: [1, S] of the state."""
        keep_freed_memory()
        setup.prepare_process()
        num_steps, num_envs = setup.config.unroll_length, setup.config.envs_per_actor
        half = -(-num_envs // 2)
        environments = [setup.make_environment(half)]
        if num_envs > half:
            environments.append(setup.make_environment(num_envs - half, offset=half))
        self._groups = [
            _Group(
                Unroller(each, num_steps=num_steps, initial_state=repeated(initial_row, each.num_envs)),
                predictor,
                setup.packer(each),
            )
            for each in environments
        ]

    def rollouts(self) -> Iterator[SentSample]:
        """One rollout after the other, of the groups in turn."""
        while True:
            for group in self._groups:
                sample = group.step()
                if sample is not None:
                    yield sample


class _Group:
    """Environments whose next actions have been asked for."""

    def __init__(self, unroller: Unroller, predictor: asyncparl.Proxy, pack: Callable[[Sample], SentSample]) -> None:
        self._unroller = unroller
        self._predictor = predictor
        self._pack = pack
        self._actions = predictor.predict(unroller.obs, unroller.state)

    def step(self) -> SentSample | None:
        """Wait for the actions, do them, and ask for the next ones. The rollout that is complete now, if one is."""
        start = perf_counter()
        actions, log_probs, version, state = self._actions.result()
        waited_s = perf_counter() - start
        unroller = self._unroller
        sample = unroller.step(actions, log_probs, state, weights_version=version, inference_s=waited_s)
        self._actions = self._predictor.predict(unroller.obs, unroller.state)
        return None if sample is None else self._pack(sample)


def repeated(row: NDArray[np.float32] | None, num_envs: int) -> NDArray[np.float32] | None:
    """[N, S] from [1, S], of a policy that has a memory."""
    return None if row is None else row.repeat(num_envs, axis=0)
