"""The training pipeline: actors -> batches -> learner -> weights -> actors, in one event loop.

    feed (a task per actor)    async for rollout in exchange.play(): copy it into the batch that is being filled
    submit                     a batch that is complete goes to the learner's thread, which has room for two
    updated                    the learner is done with a batch: its memory is free again, its weights are the newest

The exchange is what the algorithm's recipe says: it has the actors play, and carries the weights to where they act.

Backpressure: a feed that finds no room waits; its actor then comes to rest, a few rollouts ahead. Nothing is dropped
and no queue grows. Files and displays are not known here.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable
from dataclasses import replace
from typing import Any

import trio

from asyncparl.rl import WeightLayout
from asyncparl.rl.checkpoint import get_random_state
from asyncparl.training.actor import ActorSetup
from asyncparl.training.batch_age import BatchAges
from asyncparl.training.batching import BatchAssembler
from asyncparl.training.build import RunParts
from asyncparl.training.checkpoint import Checkpoint, Counters
from asyncparl.training.compression import CompressedRollout
from asyncparl.training.errors import TrainingError
from asyncparl.training.exchange import ExchangeSetup, NewestWeights
from asyncparl.training.feed import Feed
from asyncparl.training.learner import Learner, Update
from asyncparl.training.learner_news import News, Standing
from asyncparl.training.lockstep import Lockstep
from asyncparl.training.loop_lag import LoopLag
from asyncparl.training.metrics import WINDOW_S, Metrics, Report, Situation
from asyncparl.training.recipes import make_exchange
from asyncparl.training.sending import SentSample


class Pipeline:
    """See the top of this file.

    Args:
        run: what to run; its algorithm belongs to the pipeline while `run` runs.
        say: told what people should know, one line each.
        lockstep: with other learners; `run.config` is then the share of this one. None: it is the only one.
        metrics: where the figures are noted.
    """

    def __init__(
        self,
        run: RunParts,
        *,
        say: Callable[[str], None],
        lockstep: Lockstep | None = None,
        metrics: Metrics | None = None,
    ) -> None:
        config, algorithm = run.config, run.algorithm
        self._run = run
        self._index, self._num_learners = (0, 1) if lockstep is None else (lockstep.index, lockstep.num_learners)
        self._others: dict[int, Standing] = {}  # by the index of the learner
        self._before = run.counters
        self._agent_steps = algorithm.agent_steps
        self._updates = algorithm.updates
        self._actors_started = 0
        self._started_at = trio.current_time()
        self._metrics = metrics or Metrics()
        self._loop_lag = LoopLag(window_s=WINDOW_S)
        self._assembler = BatchAssembler(
            num_steps=config.unroll_length,
            num_columns=config.batch_size,
            obs_shape=run.interface.obs_shape,
            obs_dtype=run.interface.obs_dtype,
            state_size=algorithm.state_size,
            num_batches=config.num_batches,
            pin_memory=config.device.startswith("cuda"),
        )
        self._ages = BatchAges(config.batch_size)
        self._room = trio.lowlevel.ParkingLot()
        self._learned = trio.lowlevel.ParkingLot()
        self._num_lent = 0  # batches that are complete and not yet learned from
        steps_left = config.steps - algorithm.agent_steps
        steps_per_update = config.unroll_length * config.batch_size * self._num_learners
        self._num_to_submit = -(-steps_left // steps_per_update)
        packed = WeightLayout.of(algorithm.model).pack(algorithm.model)
        self.newest = NewestWeights(algorithm.updates, packed, trio.current_time())
        """What was learned last."""
        setup = ExchangeSetup(config, run.interface, run.model_class, self.newest, self._note_delay, self._index)
        self._exchange = make_exchange(setup)
        self._learner = Learner(
            algorithm,
            on_update=self._updated,
            device=config.device,
            num_threads=config.learner_threads,
            lockstep=lockstep,
        )
        self._feeds = [
            Feed(
                self._play,
                self._take,
                say=say,
                max_restarts=config.max_actor_restarts,
                is_patient=config.cluster is not None,
            )
            for _ in range(config.num_actors)
        ]
        self._actors_at_end: int | None = None
        self._finished_at: float | None = None
        self.finished = trio.Event()
        """As many steps as were asked for have been learned from. No figure of this learner changes any more."""
        self.complete = trio.Event()
        """And the figures of the other learners are here."""

    async def run(self, *, task_status: trio.TaskStatus[None] = trio.TASK_STATUS_IGNORED) -> None:
        """Train until it is cancelled, inside `asyncparl.connect()`, which also ends the actors.

        Cancellation: the update under way is finished first.

        Raises:
            TrainingError: from the learner, or no actor is left.
            Exception: what an actor or `learn` raised.
        """
        self._loop_lag = LoopLag(window_s=WINDOW_S)  # from now on: what was waited for before this was no lag
        trio.lowlevel.add_instrument(self._loop_lag)
        try:
            async with trio.open_nursery() as nursery:
                await nursery.start(self._learner.run)
                await nursery.start(self._exchange.run)
                task_status.started()
                await self._run_feeds()
        finally:
            trio.lowlevel.remove_instrument(self._loop_lag)

    def about_to_end(self) -> None:
        """What `report` says of actors stays as it is now: that they are ended is no news."""
        self._actors_at_end = self._num_playing()

    def _now(self) -> float:
        """The time of this run. It stands still when all is learned, whatever is done after that."""
        return trio.current_time() if self._finished_at is None else self._finished_at

    def _num_playing(self) -> int:
        return sum(standing.actors for standing in self._standings())

    def standing(self) -> Standing:
        """How this learner is at this moment."""
        return Standing(
            batches_waiting=max(0, self._num_lent - 1),  # one of them is with the learner
            rollouts_waiting=self._room.statistics().tasks_waiting,
            actors=sum(feed.has_actor for feed in self._feeds),
            actor_restarts=sum(feed.num_restarts for feed in self._feeds),
            actors_started=self._actors_started,
        )

    def _standings(self) -> list[Standing]:
        """Of all learners, as far as it is known here."""
        return [self.standing(), *self._others.values()]

    def hear(self, index: int, news: News) -> None:
        """What another learner has done goes into the figures of this one."""
        self._others[index] = news.standing
        news.tell(self._metrics, now=self._now())

    def report(self) -> Report:
        """The figures of this moment."""
        counters, standings = self.counters(), self._standings()
        situation = Situation(
            agent_steps=counters.agent_steps,
            updates=counters.updates,
            episodes=counters.episodes,
            elapsed_s=counters.elapsed_s,
            batches_waiting=sum(standing.batches_waiting for standing in standings),
            rollouts_waiting=sum(standing.rollouts_waiting for standing in standings),
            actors=self._num_playing() if self._actors_at_end is None else self._actors_at_end,
            actor_restarts=sum(standing.actor_restarts for standing in standings),
            loop_lag_ms=self._loop_lag.longest_ms(),
        )
        return self._metrics.report(situation, now=self._now())

    @property
    def settled_return(self) -> float | None:
        """Mean raw return of the last 100 episodes; None before there are as many."""
        return self._metrics.settled_return

    async def wait_for_steps(self, agent_steps: int) -> None:
        """Until so many have been learned from since the run began."""
        while self._agent_steps < agent_steps:
            await self._learned.park()

    def counters(self) -> Counters:
        """How far the run has come, earlier processes included."""
        return Counters(
            agent_steps=self._agent_steps,
            updates=self._updates,
            episodes=self._before.episodes + self._metrics.num_episodes,
            elapsed_s=self._before.elapsed_s + self._now() - self._started_at,
            environments_started=self._first_environment(max(each.actors_started for each in self._standings()), 0),
        )

    async def checkpoint(self) -> Checkpoint:
        """A copy of the state between two updates, made in the learner's thread."""
        return self._checkpoint(*await self._learner.call(self._state))

    def last_checkpoint(self) -> Checkpoint | None:
        """The state after `run`; None if the learner failed, or has learned nothing since the run was prepared."""
        if not self._learner.ended_well or self._updates == self._before.updates:
            return None
        return self._checkpoint(*self._state())

    def _state(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return self._run.algorithm.state_dict(), get_random_state()

    def _checkpoint(self, algorithm: dict[str, Any], random_state: dict[str, Any]) -> Checkpoint:
        # The learner may have gone on since `algorithm` was copied.
        counters = replace(self.counters(), agent_steps=algorithm["agent_steps"], updates=algorithm["updates"])
        return Checkpoint(counters, algorithm, random_state)

    # --- rollouts in, weights out -----------------------------------------------------------------------------

    def _play(self) -> AsyncGenerator[SentSample, None]:
        first = self._first_environment(self._actors_started, self._index)
        setup = ActorSetup(self._run.config, self._run.model_class, first)
        self._actors_started += 1
        return self._exchange.play(setup)

    def _first_environment(self, number: int, learner: int) -> int:
        """Of an actor, by how many its learner has started before. Learners take turns, so that none has to ask."""
        num_before = number * self._num_learners + learner
        return self._before.environments_started + num_before * self._run.config.envs_per_actor

    async def _run_feeds(self) -> None:
        async with trio.open_nursery() as nursery:
            for feed in self._feeds:
                nursery.start_soon(feed.run)
        deaths = [feed.last_death for feed in self._feeds if feed.last_death is not None]
        raise TrainingError(f"no actor is left; the last one that died: {deaths[-1]}")

    async def _take(self, sample: SentSample) -> None:
        """Copy a rollout into a batch; waits for room."""
        if self.finished.is_set():
            await trio.sleep_forever()  # no figure changes any more
        rollout, record = sample
        arrived = trio.current_time()
        self._metrics.rollout_arrived(
            now=arrived,
            episodes=record.episodes,
            environment_s=record.environment_s,
            inference_s=record.inference_s,
        )
        if isinstance(rollout, CompressedRollout):
            rollout = await trio.to_thread.run_sync(rollout.expand)
        while not self._assembler.has_room(rollout.actions.shape[1]):
            await self._room.park()
        batch = self._assembler.add(rollout, record.weights_versions)
        slot = None if batch is None else batch.slot
        self._ages.added(rollout.actions.shape[1], slot=slot, now=arrived)
        if batch is not None:
            if self._num_to_submit == 0:
                await trio.sleep_forever()  # the last batches are being learned from
            self._num_to_submit -= 1
            self._num_lent += 1
            await self._learner.submit(batch)

    def _note_delay(self, delay_s: float) -> None:
        self._metrics.weights_played(now=trio.current_time(), delay_s=delay_s)

    def _updated(self, update: Update) -> None:
        self._assembler.release(update.batch)
        self._num_lent -= 1
        self._room.unpark_all()
        self._agent_steps, self._updates = update.agent_steps, update.version
        self.newest.version, self.newest.packed = update.version, update.weights
        self.newest.published_at = trio.current_time()
        self._exchange.publish()
        self._metrics.batch_learned(
            now=trio.current_time(),
            num_steps=update.batch.rollout.actions.numel(),
            mean_lag=float(update.lags.mean()),
            max_lag=int(update.lags.max()),
            times=update.times,
            age_s=self._ages.learned(update.batch.slot, now=trio.current_time()),
        )
        self._metrics.losses = update.losses
        self._learned.unpark_all()
        if self._agent_steps >= self._run.config.steps:
            self._finished_at = trio.current_time()
            self.finished.set()
            if self._num_learners == 1:
                self.complete.set()
