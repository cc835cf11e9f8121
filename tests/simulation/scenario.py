"""A scenario: a cluster, a list of steps that users and fate do, and the end, where everything must be in order.

All of it follows from a seed. The steps are plain data, so that a shorter list can be tried too.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import trio
from trio.testing import MockClock

import asyncparl
from asyncparl.errors import AsyncparlError, NotConnectedError
from tests.simulation import checks
from tests.simulation.faults import FAULTS, pick
from tests.simulation.made import Made
from tests.simulation.network import LATENCIES
from tests.simulation.seeded import links_noted, seeded
from tests.simulation.users import Users
from tests.simulation.world import Driver, Settings, World

PAUSES_S = (0.0, 0.0, 0.0005, 0.01, 0.01, 0.1, 0.7, 3.0)

QUIET_S = 80.0
"""Longer than everything that may take its time: the start of an actor a minute, the return of a node 5 s."""
SOON_S = 16.0
"""By when a link that has vanished breaks. Who is in a hurry looks from then on whether all is in order already."""
LOOK_S = 2.0
HANG_S = 60.0
"""Not one of the open calls is settled in so long, and nothing goes wrong: they hang. A thousand, over the worst
line with queues of one message, have paused for half a minute."""
LEAVE_LIMIT_S = 25.0
END_LIMIT_S = 40.0

# How often users do what, and how often what goes wrong.
DRIVER_ACTIONS = {"create": 12, "expose": 3, "find": 3}
ACTOR_ACTIONS = {
    "call": 20,
    "burst": 8,
    "forget": 4,
    "cancel": 8,
    "gather": 5,
    "timed": 8,
    "timed_stream": 3,
    "stream": 10,
    "attribute": 2,
    "through": 9,
    "bear": 4,
    "offer": 3,
    "me": 1,
    "close": 4,
    "leave_by_itself": 2,
    "drop": 2,
}
WORLD_ACTIONS = {"join": 2, "leave": 2, "wait": 5}
FAULT_WEIGHTS = {
    "kill worker": 5,
    "kill node": 2,
    "kill master": 2,
    "kill driver": 1,
    "hold": 4,
    "cut": 5,
    "lose": 3,
    "cut path": 2,
    "stall path": 3,
    "jump": 1,
    "collect": 2,
}
assert FAULT_WEIGHTS.keys() == FAULTS.keys()


class Step(NamedTuple):
    """Something that is done, with two numbers that say to what, and the pause after it."""

    what: str
    a: int = 0
    b: int = 0
    pause: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """All that a run follows from."""

    seed: int
    settings: Settings
    steps: tuple[Step, ...]


@dataclass(slots=True)
class Outcome:
    """What came of a run."""

    bugs: list[str] = field(default_factory=list)
    counts: Counter[str] = field(default_factory=Counter)
    log: list[tuple[Any, ...]] = field(default_factory=list)
    seconds: float = 0.0
    """Of the simulation."""

    @property
    def digest(self) -> str:
        """Equal for equal logs."""
        return hashlib.sha256(repr(self.log).encode()).hexdigest()[:16]


def scenario_of(seed: int) -> Scenario:
    """What a seed stands for."""
    lots = random.Random(f"{seed}/scenario")
    settings = Settings(
        num_nodes=lots.choice([1, 1, 2, 3]),
        num_drivers=lots.choice([1, 1, 2]),
        cpus=lots.choice([2, 4, 4]),
        latency=lots.choice(list(LATENCIES)),
        queued_messages=lots.choice([1, 3, 16, 128]),
        lossy_close=lots.choice([0.0, 0.3]),
        slow_jobs=lots.choice([0.0, 0.0, 0.1, 0.5]),
        is_shared=lots.random() < 0.3,
    )
    trouble = lots.choice([0.0, 0.1, 0.3, 0.6])
    normal = DRIVER_ACTIONS | ACTOR_ACTIONS | WORLD_ACTIONS
    steps = [Step("create", lots.randrange(1000), 0, lots.randrange(len(PAUSES_S)))]
    for _ in range(lots.choice([10, 25, 50])):
        weights = FAULT_WEIGHTS if lots.random() < trouble else normal
        [what] = lots.choices(list(weights), list(weights.values()))
        steps.append(Step(what, lots.randrange(1000), lots.randrange(1000), lots.randrange(len(PAUSES_S))))
    # Two thirds of the time of a run would be waiting for what goes wrong late: a few have to show that nothing does.
    settings = replace(settings, is_in_a_hurry=lots.random() < 0.85)
    return Scenario(seed=seed, settings=settings, steps=tuple(steps))


def run(scenario: Scenario) -> Outcome:
    """Do it all; never raises what went wrong, but tells."""
    outcome = Outcome()
    output = io.StringIO()
    try:
        with contextlib.redirect_stdout(output), contextlib.redirect_stderr(output):
            _run(scenario, outcome)
    except Exception as error:
        outcome.bugs.append(f"the run failed: {error!r}")
        raise
    return outcome


def _run(scenario: Scenario, outcome: Outcome) -> None:
    worlds: list[World] = []

    def report(what: str) -> None:
        worlds[-1].bug(what, None)

    with seeded(str(scenario.seed), report):
        clock = MockClock(autojump_threshold=0)
        trio.run(_play, scenario, clock, worlds, clock=clock)
        world = worlds.pop()
        outcome.bugs, outcome.counts, outcome.log = world.bugs, world.counts, world.log
        outcome.seconds = world.now
        _forget(world)
        checks.when_over(world)
        del world, clock


def _forget(world: World) -> None:
    """What the simulation itself holds."""
    world.drivers.clear()
    world.nodes.clear()
    world.workers.clear()
    world.leases.clear()
    world.master = world.master_process = None
    world.network.lines.clear()


async def _play(scenario: Scenario, clock: MockClock, worlds: list[World]) -> None:
    async with trio.open_nursery() as nursery:
        world = World(str(scenario.seed), scenario.settings, clock, nursery)
        worlds.append(world)
        with links_noted(world.links):
            users = Users(world)
            await _begin(world)
            for step in scenario.steps:
                await _do(world, users, step)
                checks.after_step(world, users)
                if world.bugs:
                    break
            if not world.bugs:
                await _end(world, users)
            world.is_over = True
            users.actors.clear()
            users.calls.clear()
            nursery.cancel_scope.cancel()


async def _begin(world: World) -> None:
    world.start_master()
    for _ in range(world.settings.num_nodes):
        world.start_node()
    for _ in range(world.settings.num_drivers):
        world.start_driver()
    await trio.sleep(1)


async def _do(world: World, users: Users, step: Step) -> None:
    world.note("step", *step)
    world.counts[step.what] += 1
    if step.what in FAULTS:
        if step.what != "collect":
            world.disturbed()
        FAULTS[step.what](world, step.a, step.b)
    else:
        _act(world, users, step)
    await trio.sleep(PAUSES_S[step.pause % len(PAUSES_S)])


def _act(world: World, users: Users, step: Step) -> None:
    here = [driver for driver in world.drivers if driver.is_here]
    driver = pick(here, step.a // 7)
    if step.what == "join":
        if len(here) < 3:
            world.start_driver()
    elif driver is None:
        return
    elif step.what == "leave":
        driver.leaving.set()
    elif step.what in DRIVER_ACTIONS:
        driver.do(_as_user, getattr(users, step.what), driver, step.a, step.b)
    elif step.what in ACTOR_ACTIONS:
        actor = pick(users.of(driver), step.a // 3 + step.b)
        if actor is not None:
            driver.do(_as_user, getattr(users, step.what), actor, step.a, step.b)


async def _as_user(function: Any, *args: Any) -> None:
    """Users know that a program that leaves can do nothing any more."""
    if getattr(args[0], "is_dropped", False):
        return  # between the step and this moment
    with contextlib.suppress(NotConnectedError):
        await function(*args)


async def _end(world: World, users: Users) -> None:
    """Heal everything; see that it is in order; leave; see that nothing is left."""
    world.note("heal")
    world.heal()
    await trio.sleep(SOON_S)
    await _until(world, users, checks.when_quiet, QUIET_S - SOON_S)
    checks.after_step(world, users)
    if _end_those_who_wait(world, users):
        await trio.sleep(END_LIMIT_S)
    await until_calls_rest(users.calls)
    checks.when_quiet(world, users)
    if world.bugs:
        return
    users.actors.clear()
    for driver in world.drivers:
        driver.leaving.set()
    await _until(world, users, checks.when_left, LEAVE_LIMIT_S)
    checks.when_left(world, users)
    if not world.bugs:
        await _end_detached(world)
        await _until(world, users, checks.when_closed, END_LIMIT_S)
        checks.after_step(world, users)
        checks.when_closed(world, users)


async def _until(world: World, users: Users, check: checks.Check, limit_s: float) -> None:
    """Give it so long, or only until it holds if this run is in a hurry."""
    until = world.now + limit_s
    while world.now < until:
        if world.settings.is_in_a_hurry and checks.holds(check, world, users):
            return
        await trio.sleep(min(LOOK_S, until - world.now))


async def until_calls_rest(calls: Sequence[Made]) -> None:
    """Until all are settled and what follows from that is done, or those that are left hang.

    A thousand calls over a slow network with short queues take their time; how long is nobody's promise.
    """
    num_before = 0
    while (num_open := len(checks.unsettled(calls))) != num_before:
        num_before = num_open
        await trio.sleep(HANG_S)


def _end_those_who_wait(world: World, users: Users) -> int:
    """Actors that have no place, and whoever waits for them may wait for ever; how many."""
    waiting = set() if world.master is None else {each.actor_id for each in world.master._core._scheduler._waiting}
    actors = [actor for actor in users.actors if actor.actor_id in waiting and not actor.is_borrowed]
    for actor in actors:
        actor.driver.do(_as_user, users.close, actor, 1, 0)
    return len(actors)


async def _end_detached(world: World) -> None:
    """A last program ends what outlives programs."""
    last = world.start_driver()
    await last.joined.wait()
    names = [worker.spec.actor_id for worker in world.living_workers()]
    for actor_id in names:
        lease = world.leases[actor_id]
        if lease.title.is_detached:
            last.do(_kill_named, world, lease.title.public_name)
    await trio.sleep(5)
    last.leaving.set()


async def _kill_named(world: World, name: str) -> None:
    try:
        await asyncparl.kill(await asyncparl.get_actor(name))
    except (LookupError, AsyncparlError) as error:
        world.bug(f"the detached actor {name!r} cannot be killed", error)


def kind_of(bug: str) -> str:
    """Equal for what is probably the same."""
    return re.sub(r"[0-9a-f]*\d[0-9a-f]*", "N", bug.partition("\n")[0])[:40]


def shrink(scenario: Scenario, limit: int = 400) -> Scenario:
    """A shorter one that fails still, by leaving out steps."""

    def failure(steps: Sequence[Step]) -> str:
        bugs = run(replace(scenario, steps=tuple(steps))).bugs
        return kind_of(bugs[0]) if bugs else ""

    wanted = failure(scenario.steps)
    steps, size, tries = list(scenario.steps), max(1, len(scenario.steps) // 2), 0
    while size and tries < limit:
        start = 0
        while start < len(steps) and tries < limit:
            shorter = steps[:start] + steps[start + size :]
            tries += 1
            if failure(shorter) == wanted:
                steps = shorter
            else:
                start += size
        size //= 2
    return replace(scenario, steps=tuple(steps))


__all__ = ["Driver", "Outcome", "Scenario", "Settings", "Step", "run", "scenario_of", "shrink"]
