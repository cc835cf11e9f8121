"""What must be true of a simulation: after every step, when nothing has gone wrong for a while, and in the end."""

from __future__ import annotations

import gc
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable

from asyncparl.protocol.link import CALL_WINDOW
from asyncparl.runtime.actor import ActorHandle
from asyncparl.runtime.borrowed import BorrowedHandle
from asyncparl.runtime.connected_driver import MAX_EVENTS
from asyncparl.runtime.link import _MAX_OUTGOING, Link
from asyncparl.runtime.node_link import NodeLink
from asyncparl.runtime.session import Session
from asyncparl.runtime.stopping import REPORT_LIMIT_S
from tests.simulation.made import Made
from tests.simulation.simulated_workers import SimulatedWorker
from tests.simulation.users import Users
from tests.simulation.world import World

Check = Callable[[World, Users], None]

ORPHAN_LIMIT_S = 5.0
VANISHED_LIMIT_S = 15.0
TOLD_LIMIT_S = 5.0 + 2 * REPORT_LIMIT_S + 1.0
"""Silence of the node, a link that is lost without a report, and delays of the network."""
_SLACK_S = 3.0
"""For what a test may do between two looks, delays of the network, and the graces of a worker's end."""


def holds(check: Check, world: World, users: Users) -> bool:
    """Whether there would be no bug. Nothing is noted."""
    noted = world.bugs, world.log, world.counts
    world.bugs, world.log, world.counts = [], [], Counter()
    try:
        check(world, users)
        return not world.bugs
    finally:
        world.bugs, world.log, world.counts = noted


def unsettled(calls: Iterable[Made]) -> list[Made]:
    """The calls that somebody may still wait for."""
    return [made for made in calls if made.is_unsettled and not made.actor.driver.process.is_dead]


def after_step(world: World, users: Users) -> None:
    """Cheap, and always true."""
    _queues_are_bounded(world)
    _no_node_is_over_booked(world)
    _orphans_end(world)
    _deaths_are_told(world, users)
    _limits_hold(world, users)


def when_quiet(world: World, users: Users) -> None:
    """Nothing has gone wrong for so long that everything must be in order."""
    _calls_are_settled(world, users)
    _what_never_started_never_runs(world, users)
    _books_are_right(world)
    _results_kept_their_order(world, users)
    _what_is_lent_is_held(world)
    _no_transfer_is_left(world)


def when_left(world: World, users: Users) -> None:
    """All programs were told to leave."""
    for driver in world.drivers:
        if not driver.process.is_dead:
            world.bug(f"{driver.process} does not end")


def when_closed(world: World, users: Users) -> None:
    """All programs have left, and what was detached is killed."""
    for made in users.calls:
        if made.is_unsettled and not made.actor.driver.process.vanished:
            world.bug(f"{made} is not settled, and its program has ended")
    for worker in world.living_workers():
        world.bug(f"{worker.process} of {worker.spec.name} runs still, for nobody")
    if world.master is None:
        return
    view = world.master._core.describe(world.now)
    for what, left in (("actors", view.actors), ("programs", view.drivers), ("waiting", view.waiting)):
        if left:
            world.bug(f"the master knows of {what} that are gone: {left}")
    directory = world.master._core.actors._directory
    if directory._ids or directory._known or directory._restarting:
        world.bug(f"names are left: {directory._ids} {directory._known} {directory._restarting}")
    for here in world.living_nodes():
        leases, followers = here.node._actors.leases(), here.node._actors._followers
        if leases or here.pool.workers or here.node._drivers or followers:
            world.bug(f"{here.process} holds {leases}, {here.node._drivers}, {followers}")


def when_over(world: World) -> None:
    """The run has ended: nothing is held any more by anything. Call it where nothing else holds the world's parts."""
    gc.collect()
    left = [
        thing for thing in gc.get_objects() if isinstance(thing, (Link, Session, ActorHandle, BorrowedHandle, NodeLink))
    ]
    if left:
        world.bug(f"left behind: {[type(thing).__name__ for thing in left]}")


def _what_is_lent_is_held(world: World) -> None:
    """What is lent over a link on which nothing is under way, the other end still looks at, or is about to return."""
    saying = {link._channel for link in world.links if link.core.has_outgoing or link._refused}
    for line in world.network.open_lines():
        ends = line.link.dialer, line.link.acceptor
        if any(end in saying or end.incoming.next_due() < float("inf") for end in ends):
            continue
        for lender, borrower in ((ends[0].arena, ends[1].arena), (ends[1].arena, ends[0].arena)):
            if lender is not None and borrower is not None:
                borrowed = [hold for hold in borrower._holds if not hasattr(hold, "block")]  # the others are its own
                num_held = len(borrowed) + len(borrower._returns)
                world.counts["lent when quiet"] += lender.num_lent
                if lender.num_lent != num_held:
                    world.bug(f"{line.name}: {lender.num_lent} blocks are lent, and {num_held} held")


def _no_transfer_is_left(world: World) -> None:
    """Over a link on which nothing is under way, nothing is half sent either."""
    ends = {end for line in world.network.open_lines() for end in (line.link.dialer, line.link.acceptor)}
    moving = {link._channel for link in world.links if link.core.has_outgoing or link._refused}
    moving |= {end for end in ends if end.incoming.next_due() < float("inf")}
    for link in list(world.links):
        world.counts["fragments sent"] += link.core.num_fragments_sent
        channel = link._channel
        if channel not in ends or {channel.link.dialer, channel.link.acceptor} & moving:
            continue
        if link.core.has_transfers or link.core._joiner.num_open:
            world.bug(f"{link.core.peer} has a transfer that does not go on")


def _queues_are_bounded(world: World) -> None:
    for link in list(world.links):
        if link.core.num_outgoing > _MAX_OUTGOING + 2 * CALL_WINDOW:
            world.bug(f"{link.core.num_outgoing} messages wait to be sent")
        if link.core.callee.num_open > CALL_WINDOW:
            world.bug(f"{link.core.callee.num_open} calls are served at once")
    for here in world.living_nodes():
        for driver in here.node._drivers:
            if driver.events.num_waiting > MAX_EVENTS:
                world.bug(f"{driver.events.num_waiting} events wait for a program")


def _no_node_is_over_booked(world: World) -> None:
    """Whatever two masters have given away: what is there is used once."""
    for here in world.living_nodes():
        used = sum(lease.demand.cpus for lease in here.node._actors.leases())
        if used > world.settings.cpus + 1e-6:
            world.bug(f"{here.process} has {world.settings.cpus} CPUs, and {used} are used")


def _orphans_end(world: World) -> None:
    """No actor outlives its owner, unless it is detached."""
    for worker in world.living_workers():
        if worker.spec.is_detached or worker.process.is_dead:
            continue
        gone_at, vanished = _owner_gone(world, worker)
        limit = (VANISHED_LIMIT_S if vanished else ORPHAN_LIMIT_S) + _SLACK_S
        if world.now > gone_at + limit + world.trouble_since(gone_at):
            world.bug(f"{worker.process} ({worker.spec.name}) lives {world.now - gone_at:.1f} s after its owner")
            worker.process.kill()


def _deaths_are_told(world: World, users: Users) -> None:
    """Whoever waits for an actor of his hears in time that its process, or its machine, is gone."""
    died_at = {worker.spec.actor_id: worker.process.died_at for worker in world.workers}
    for made in users.calls:
        actor = made.actor
        if made.is_told_late or actor.is_borrowed or actor.max_restarts or not made.is_unsettled:
            continue
        since = max(made.at, died_at.get(actor.actor_id, float("inf")))
        if not actor.driver.is_here or world.now < since + TOLD_LIMIT_S:
            continue
        if world.now > since + TOLD_LIMIT_S + world.trouble_since(since):
            made.is_told_late = True
            world.bug(f"not told for {world.now - since:.1f} s that its actor is dead: {made}")


def _limits_hold(world: World, users: Users) -> None:
    """A call that may take only so long is settled by then, whatever goes wrong."""
    for made in users.calls:
        if world.now <= made.limit_at(world.jumped_s) or not made.is_unsettled or made.actor.driver.process.is_dead:
            continue
        world.bug(f"{made} had {made.timeout_s} s, and is not settled after {world.now - made.at:.3f} s")


def _what_never_started_never_runs(world: World, users: Users) -> None:
    for made in users.calls:
        if made.never_started and world.witness.runs.get(made.number):
            world.bug(f"{made} was said to have never started, and ran after that")


def _owner_gone(world: World, worker: SimulatedWorker) -> tuple[float, bool]:
    lease = world.leases.get(worker.spec.actor_id)
    if lease is None:
        return float("inf"), False
    for driver in world.drivers:
        if driver.session is not None and driver.session.process_id == lease.driver_id:
            return min(driver.process.died_at, driver.left_at), driver.process.vanished
    owners = [other for other in world.workers if other.spec.actor_id == lease.driver_id]
    if not owners:
        return float("inf"), False
    return owners[-1].process.died_at, owners[-1].process.vanished


def _calls_are_settled(world: World, users: Users) -> None:
    for made in unsettled(users.calls):
        world.bug(f"not settled: {made}")


def _books_are_right(world: World) -> None:
    """What the master believes is what the nodes run."""
    if world.master is None:
        return
    view = world.master._core.describe(world.now)
    believed = {actor.actor_id: actor.node_id for actor in view.actors}
    running = {
        lease.actor_id: here.node._config.info.node_id
        for here in world.living_nodes()
        for lease in here.node._actors.leases()
    }
    if believed != running:
        world.bug(f"the master believes {believed}, the nodes run {running}")
    for here in world.living_nodes():
        leases = here.node._actors.leases()
        if {lease.actor_id for lease in leases} != set(here.pool.workers):
            world.bug(f"{here.process} has leases {leases} and workers {list(here.pool.workers)}")
        used = sum(lease.demand.cpus for lease in leases)
        node = next((node for node in view.nodes if node.node_id == here.node._config.info.node_id), None)
        if node is None or node.state != "ready":
            world.bug(f"{here.process} is {None if node is None else node.state} for the master")
        elif abs(node.used_cpus - used) > 1e-6:
            world.bug(f"{here.process} uses {used} CPUs, the master believes {node.used_cpus}")
    if len(view.nodes) != len(world.living_nodes()):
        world.bug(f"the master knows {len(view.nodes)} nodes, there are {len(world.living_nodes())}")


def _results_kept_their_order(world: World, users: Users) -> None:
    """Calls without `async` that one program made of one actor, and that returned, ran in the order of the calls."""
    by_caller: dict[int, list[int]] = defaultdict(list)
    for made in users.calls:
        if made.what in ("echo", "fail") and made.outcome in ("returned", "LookupError") and not made.inner:
            by_caller[id(made.actor)].append(made.number)
    for numbers in by_caller.values():
        wanted = set(numbers)
        for process, order in world.witness.order.items():
            ran = [number for number in order if number in wanted]
            if ran != sorted(ran):
                world.bug(f"in {process} calls of one program ran in the order {ran}")
