"""What goes wrong in a simulation: each function does one thing, to whatever the two numbers pick."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from typing import TypeVar

from tests.simulation.process import Process
from tests.simulation.world import World

T = TypeVar("T")

_AWAY_S = (0.0, 0.3, 2.0, 6.0, 20.0)
_HELD_S = (0.05, 1.0, 4.0, 7.0, 20.0)

Fault = Callable[[World, int, int], None]


def pick(things: Sequence[T], number: int) -> T | None:
    """One of them, if there are any."""
    return things[number % len(things)] if things else None


def kill_worker(world: World, a: int, b: int) -> None:
    """By the kernel, or by somebody else."""
    for here in world.living_nodes():
        for worker in here.pool.workers.values():
            if worker is pick(world.living_workers(), a):
                here.pool.kill(worker, (9, 11)[b % 2])
                return


def kill_node(world: World, a: int, b: int) -> None:
    """With its workers. Another one starts on its machine."""
    here = pick(world.living_nodes(), a)
    if here is not None:
        here.process.kill(silently=b % 3 == 0)
        world.later(_AWAY_S[b % 5], lambda: None if world.is_calm else world.start_node())


def kill_master(world: World, a: int, b: int) -> None:
    """Another one starts at its address."""
    if world.master_process is not None and not world.master_process.is_dead:
        world.master_process.kill(silently=b % 4 == 0)
        world.disturbed(_AWAY_S[b % 5])
        world.later(_AWAY_S[b % 5], world.start_master)


def kill_driver(world: World, a: int, b: int) -> None:
    """A program, with or without its machine."""
    driver = pick([driver for driver in world.drivers if not driver.process.is_dead], a)
    if driver is not None:
        driver.process.kill(silently=b % 3 == 0)


def hold(world: World, a: int, b: int) -> None:
    """Stop a process for a while."""
    here = [each.process for each in world.living_nodes()]
    workers = [worker.process for worker in world.living_workers()]
    drivers = [driver.process for driver in world.drivers if not driver.process.is_dead]
    master = [] if world.master_process is None or world.master_process.is_dead else [world.master_process]
    processes: Sequence[Process] = (workers, workers, here, drivers, master)[a % 5]
    process = pick(processes, b)
    if process is not None:
        seconds = _HELD_S[b % 5]
        process.held_until = world.now + seconds
        world.note("held", process.name, seconds)
        world.disturbed(seconds)


def cut(world: World, a: int, b: int) -> None:
    """One link ends."""
    if (line := pick(world.network.open_lines(), a)) is not None:
        world.note("cut", line.name)
        world.network.cut(line)


def lose(world: World, a: int, b: int) -> None:
    """One link becomes a hole, on both sides or on one."""
    if (line := pick(world.network.open_lines(), a)) is not None:
        world.note("lose", line.name, b % 2)
        world.network.lose(line, half=b % 2 == 0)
        world.disturbed(15.0)


def cut_path(world: World, a: int, b: int) -> None:
    """Two machines do not reach each other, or one reaches nobody."""
    for path in _paths(world, a, b):
        world.network.cut_path(path, _AWAY_S[1 + b % 4])
    world.disturbed(_AWAY_S[1 + b % 4])


def stall_path(world: World, a: int, b: int) -> None:
    """What two machines say to each other comes late."""
    for path in _paths(world, a, b):
        world.network.stall_path(path, _HELD_S[b % 4])
    world.disturbed(_HELD_S[b % 4])


def jump(world: World, a: int, b: int) -> None:
    """Everybody stood still for a while, as when a computer sleeps."""
    seconds = (0.4, 3.0, 12.0, 70.0)[a % 4]
    world.note("jump", seconds)
    world.disturbed(seconds)
    world.jumped_s += seconds
    world.clock.jump(seconds)


def collect(world: World, a: int, b: int) -> None:
    """What is only held by itself goes now."""
    gc.collect()


def _paths(world: World, a: int, b: int) -> list[frozenset[str]]:
    machines = world.machines()
    first = pick(machines, a)
    if first is None or len(machines) < 2:
        return []
    others = [machine for machine in machines if machine != first]
    if a % 3:
        others = [others[b % len(others)]]
    world.note("path", first, *others)
    return [frozenset({first, other}) for other in others]


FAULTS: dict[str, Fault] = {
    "kill worker": kill_worker,
    "kill node": kill_node,
    "kill master": kill_master,
    "kill driver": kill_driver,
    "hold": hold,
    "cut": cut,
    "lose": lose,
    "cut path": cut_path,
    "stall path": stall_path,
    "jump": jump,
    "collect": collect,
}
