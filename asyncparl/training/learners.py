"""Several learners of one run, from the first one's side.

The first learner is in the process of the run, as where there is only one. The others are actors (`learner_actor.py`).
Each has its share of the actors and of every batch. They add up their gradients, so that all of them have the same
weights after every update: those that one learner would have with the whole batch.

    the start   the others are made, with the state of the first; when all are ready they form a process group
    an update   each tells when it has its part; when all have, all may add them up (`lockstep.py`)
    figures     of the others come as news and go into those of the first, and so do their lines
    the end     the first ends between two updates, and then the others; its state alone is saved

Whatever happens to one of them ends the run: its share of the batch is lost, and the others do not have it.
"""

from __future__ import annotations

import dataclasses
import math
import socket
from collections.abc import Awaitable, Callable, Sequence
from contextlib import aclosing
from functools import partial
from typing import Any, cast
from urllib.parse import urlsplit

import trio

import asyncparl
from asyncparl.machine import host_identity, own_address
from asyncparl.training.build import RunParts
from asyncparl.training.checkpoint import to_cpu
from asyncparl.training.config import TrainingConfig
from asyncparl.training.errors import ConfigError, LearnersParted, TrainingError, unwrapped_errors
from asyncparl.training.learner_actor import LearnerActor, LearnerSetup, Place
from asyncparl.training.learner_group import LOOPBACK, Backend, LearnerGroup, Store, best_backend, gpu_identity
from asyncparl.training.lockstep import Lockstep
from asyncparl.training.pipeline import Pipeline

DEATH_REPORT_LIMIT_S = 10.0
"""How long learners that have lost each other wait for a report of who died. A lost machine takes 5 s to be noticed."""

LAST_NEWS_LIMIT_S = 10.0
"""How long the end of a run waits for the last figures of the others."""


class Learners:
    """See the top of this file.

    Args:
        run: what to run, with the settings of the whole run.
        say: told what people should know, one line each.
    """

    def __init__(self, run: RunParts, *, say: Callable[[str], None]) -> None:
        config = run.config
        self._run = run
        self._say = say
        self._device = next(run.algorithm.model.parameters()).device
        self._lockstep = Lockstep(0, config.num_learners, partial(self._arrived, 0))
        self._num_arrivals = [0] * config.num_learners  # how often each has had something to add up
        self._num_allowed = 0
        self.others: list[asyncparl.Proxy] = []
        """Actors, in order."""
        self._group: LearnerGroup | None = None
        self._failure: BaseException | None = None
        self._scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._scopes_of_others: list[trio.CancelScope] = []
        self._heard = [trio.Event() for _ in range(config.num_learners - 1)]
        """Each of the others has told all that it will."""
        mine = dataclasses.replace(run, config=share_of(config, device=str(self._device)))
        self.pipeline = Pipeline(mine, say=say, lockstep=self._lockstep)
        """The first learner's; its figures are those of all."""

    async def run(self, cluster: asyncparl.Cluster) -> None:
        """Train until it is cancelled, inside `asyncparl.connect()`, which also ends the others and all actors.

        Cancellation: the update under way is finished first.

        Raises:
            ConfigError: the cluster is too small for so many learners.
            TrainingError: from a learner, or one died, or they do not find each other.
            Exception: what an actor or `learn` raised.
        """
        async with trio.open_nursery() as self._nursery:
            try:
                with self._scope:
                    await self._meet(cluster)
                    for index in range(1, self._num_learners):
                        for work in (self._have_learn, self._follow_arrivals, self._hear):
                            self._scopes_of_others.append(trio.CancelScope(shield=True))
                            self._nursery.start_soon(self._follow, index, work, self._scopes_of_others[-1])
                    self._scopes_of_others.append(trio.CancelScope())
                    self._nursery.start_soon(self._complete, self._scopes_of_others[-1])
                    await self._learn()
            finally:
                # Not before: in the update that was under way the first one needed the others.
                for scope in self._scopes_of_others:
                    scope.cancel()
                if self._group is not None:
                    self._group.close()
        if self._failure is not None:
            raise self._failure

    @property
    def _num_learners(self) -> int:
        return self._run.config.num_learners

    # --- the start --------------------------------------------------------------------------------------------

    async def _meet(self, cluster: asyncparl.Cluster) -> None:
        """Make the others, and the process group with them."""
        if self._run.config.cluster is not None:
            await self._check_room(cluster)
        self.others = [self._make(index) for index in range(1, self._num_learners)]
        places: list[Place] = await self._ask(lambda other: other.place())
        store = Store(await self._own_addresses(cluster, places))  # listens; nothing waits for anybody yet
        address = await self._common_address(store, places)
        mine = Place(host_identity(), socket.gethostname(), gpu_identity(self._device))
        backend = best_backend([(place.host, place.gpu) for place in (mine, *places)])
        if backend == "gloo" and mine.gpu is not None:
            self._say("the learners do not have a GPU each: they add up in CPU memory, which is slower")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._join, store, address, backend)
            await self._ask(lambda other: other.meet(address, store.port, backend))

    async def _check_room(self, cluster: asyncparl.Cluster) -> None:
        nodes = (await cluster.describe()).nodes
        num_others, cpus_each = self._num_learners - 1, self._run.config.learner_cpus
        cpus = sum(math.inf if node.total_cpus is None else node.total_cpus for node in nodes)
        needed = num_others * cpus_each + self._num_learners
        if nodes and cpus < needed:
            raise ConfigError(
                f"{self._num_learners} learners are too many for this cluster, which has {cpus:g} CPUs: it takes "
                f"{cpus_each} for each learner but the first, and one for an actor of each, {needed} together"
            )
        if cpus < num_others * cpus_each + self._run.config.num_actors:
            self._say("the cluster has not enough CPUs for all actors; a learner without any holds up the others")
        num_gpus = sum(len(node.used_gpus) for node in nodes)
        if nodes and self._device.type == "cuda" and num_gpus < num_others:
            raise ConfigError(
                f"{self._num_learners} learners are too many for this cluster, which has {num_gpus} GPUs: "
                "it takes one for each but the first"
            )

    def _make(self, index: int) -> asyncparl.Proxy:
        run, on_gpu = self._run, self._device.type == "cuda"
        setup = LearnerSetup(
            index=index,
            num_learners=self._num_learners,
            config=share_of(run.config, device="cuda" if on_gpu else str(self._device)),
            interface=run.interface,
            model_class=run.model_class,
            counters=run.counters,
            algorithm_state=to_cpu(run.algorithm.state_dict()),
        )
        chosen = cast("Any", LearnerActor).options(  # mypy ignores what class decorators return
            num_cpus=run.config.learner_cpus, num_gpus=int(on_gpu)
        )
        return cast("asyncparl.Proxy", chosen(setup))

    async def _ask(self, question: Callable[[Any], Awaitable[Any]]) -> list[Any]:
        """The answers of the others, in order; what one of them raises is raised as `_named`."""
        answers: list[Any] = [None] * len(self.others)

        async def ask(index: int) -> None:
            try:
                answers[index - 1] = await question(self.others[index - 1])
            except Exception as error:
                raise self._named(index, error) from error

        with unwrapped_errors():
            async with trio.open_nursery() as nursery:
                for index in range(1, self._num_learners):
                    nursery.start_soon(ask, index)
        return answers

    async def _own_addresses(self, cluster: asyncparl.Cluster, places: Sequence[Place]) -> list[str]:
        """By which the others may find this host: the one that it would use towards each of theirs."""
        if all(place.host == host_identity() for place in places):
            return [LOOPBACK]
        hosts = {place.host for place in places}
        nodes = [node for node in (await cluster.describe()).nodes if node.host in hosts]
        theirs = [urlsplit(address).hostname for node in nodes for address in node.addresses]
        # In a thread: a node may have been given a name by which it is reached, and names take their time.
        ours = [await trio.to_thread.run_sync(own_address, host) for host in theirs if host is not None]
        return [address for address in dict.fromkeys(ours) if address is not None and address != LOOPBACK]

    async def _common_address(self, store: Store, places: Sequence[Place]) -> str:
        """By which all others do find this host.

        Raises:
            TrainingError: there is none.
        """
        reached: list[list[str]] = await self._ask(lambda other: other.reach(store.addresses, store.port))
        for address in store.addresses:
            if all(address in each for each in reached):
                return address
        lost = min(range(1, self._num_learners), key=lambda index: len(reached[index - 1]))
        raise TrainingError(
            f"{self._name(lost)} on {places[lost - 1].host_name} cannot reach the first one at "
            f"{' or '.join(store.addresses) or 'any address'}, port {store.port}: learners need direct connections "
            "to each other"
        )

    async def _join(self, store: Store, address: str, backend: Backend) -> None:
        make = partial(
            LearnerGroup, store.store, 0, self._num_learners, address=address, backend=backend, device=self._device
        )
        # It ends by itself, if the others do not come.
        self._group = await trio.to_thread.run_sync(make, abandon_on_cancel=True)

    # --- learning ---------------------------------------------------------------------------------------------

    async def _learn(self) -> None:
        assert self._group is not None
        self._lockstep.open(self._group)
        parted: BaseException | None = None
        try:
            with unwrapped_errors():
                await self.pipeline.run()
        except* LearnersParted as errors:
            parted = errors.exceptions[0]
        except* Exception as errors:
            self._fail(errors)
        if parted is not None:
            await trio.sleep(DEATH_REPORT_LIMIT_S)  # the report of who died cancels it
            self._fail(parted)

    def _arrived(self, index: int, number: int) -> None:
        """A learner has got so far."""
        self._num_arrivals[index] = number
        common = min(self._num_arrivals)
        if common > self._num_allowed and self._lockstep.allow(common):
            self._num_allowed = common
            for other in self.others:
                other.allow(common)

    async def _follow(self, index: int, work: Callable[[int], Awaitable[None]], scope: trio.CancelScope) -> None:
        """What concerns another learner, until the first one has ended."""
        with scope:
            try:
                await work(index)
            except LearnersParted as error:
                await trio.sleep(DEATH_REPORT_LIMIT_S)
                self._fail(error)
            except Exception as error:
                named = self._named(index, error)
                if named is not error:
                    named.__cause__ = error
                self._fail(named)

    async def _have_learn(self, index: int) -> None:
        await self.others[index - 1].learn()

    async def _follow_arrivals(self, index: int) -> None:
        async with aclosing(self.others[index - 1].arrivals()) as stream:
            async for number in stream:
                self._arrived(index, number)

    async def _hear(self, index: int) -> None:
        async with aclosing(self.others[index - 1].news()) as stream:
            async for news in stream:
                self.pipeline.hear(index, news)
                for line in news.lines:
                    self._say(f"{self._name(index)}: {line}")
        self._heard[index - 1].set()

    async def _complete(self, scope: trio.CancelScope) -> None:
        """The last figures of the others come after the last update, in which all of them had a part."""
        with scope:
            await self.pipeline.finished.wait()
            with trio.move_on_after(LAST_NEWS_LIMIT_S):
                for heard in self._heard:
                    await heard.wait()
            self.pipeline.complete.set()

    # --- the end ----------------------------------------------------------------------------------------------

    def _fail(self, error: BaseException) -> None:
        """The run ends with this error, unless another one was first.

        The others are killed: the first one may be adding up with them, and would wait for those that do not.
        """
        if self._failure is not None:
            return
        self._failure = error
        self._scope.cancel()
        assert self._nursery is not None
        if self._group is not None:
            self._group.abort()
        for other in self.others:
            self._nursery.start_soon(_kill, other)

    def _named(self, index: int, error: Exception) -> Exception:
        """An error of another learner, which says of which one."""
        name = self._name(index)
        if isinstance(error, asyncparl.ActorDied):
            return TrainingError(f"{name} died: {error.reason}")
        return TrainingError(f"{name}: {error}") if isinstance(error, TrainingError) else error

    def _name(self, index: int) -> str:
        return f"learner {index + 1} of {self._num_learners}"


def share_of(config: TrainingConfig, *, device: str) -> TrainingConfig:
    """The settings by which each learner works, as if there were no other; but `steps` are those of all."""
    num_learners = config.num_learners
    return config.replace(
        num_learners=1,
        num_actors=config.num_actors // num_learners,
        batch_size=config.batch_size // num_learners,
        device=device,
    )


async def _kill(other: asyncparl.Proxy) -> None:
    with trio.move_on_after(DEATH_REPORT_LIMIT_S, shield=True):
        await asyncparl.kill(other)
