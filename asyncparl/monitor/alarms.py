"""What somebody should look at."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

from asyncparl.monitor.picture import ActorRow, Alarm, Picture

MAX_ALARMS = 30
_WAITS_LONG_S = 30.0
_DEATH_IS_NEWS_S = 600.0
_LOSS_IS_NEWS_S = 600.0
_MEMORY_IS_FULL = 0.92
_REPORT_IS_LATE_S = 60.0


def find_alarms(picture: Picture, *, wall_time: float) -> tuple[Alarm, ...]:
    """All of them, as far as they are few; the worst first."""
    return tuple(islice(_alarms(picture, wall_time), MAX_ALARMS))


def _alarms(picture: Picture, wall_time: float) -> Iterator[Alarm]:
    yield from _of_nodes(picture, wall_time)
    for run in picture.runs.values():
        if not run.is_over and run.age_s > _REPORT_IS_LATE_S:
            name = run.values.get("title") or run.program
            yield Alarm(f"{name} is silent: it reports nothing", f"/runs?run={run.run_id}", run.age_s)
    yield from _of_actors(picture, wall_time)


def _of_nodes(picture: Picture, wall_time: float) -> Iterator[Alarm]:
    for event in picture.events:
        if event.kind == "node lost" and wall_time - event.time < _LOSS_IS_NEWS_S:
            yield Alarm(event.text, "/events")
    for node in picture.nodes.values():
        if node.state == "disconnected":
            yield Alarm(f"node {node.name} is disconnected", "/nodes")
        elif node.fault:
            yield Alarm(node.fault, "/nodes")
        if node.used_memory_bytes and node.total_memory_bytes:
            share = node.used_memory_bytes / node.total_memory_bytes
            if share > _MEMORY_IS_FULL:
                yield Alarm(f"node {node.name} has {share:.0%} of its memory in use", "/nodes")


def _of_actors(picture: Picture, wall_time: float) -> Iterator[Alarm]:
    for actor in reversed(picture.ended.values()):
        if actor.is_failed and wall_time - (actor.ended_at or 0.0) < _DEATH_IS_NEWS_S:
            yield Alarm(f"{actor.name} died: {actor.doing}", f"/actors/{actor.actor_id}")
    for actor in picture.actors.values():
        if actor.state == "silent":
            yield Alarm(silence(actor), f"/actors/{actor.actor_id}", actor.silent_s)
        elif actor.state == "waiting" and (actor.doing_s or 0.0) > _WAITS_LONG_S:
            yield Alarm(f"{actor.name} {actor.doing}", f"/actors/{actor.actor_id}", actor.doing_s, is_bad=False)


def silence(actor: ActorRow) -> str:
    """That an actor is silent, where, and what is known of the reason."""
    return f"{actor.name} is silent (pid {actor.pid} on {actor.node}): {actor.doing}"
