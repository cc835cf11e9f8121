"""Everything that is random or of the operating system, from a seed: Trio's order of tasks, ids, keys and the clock.

Nothing of this is known to the package: its modules are given other `os`, `time` and `secrets` for a while.
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
from collections.abc import Callable, Iterator
from typing import Any
from unittest.mock import patch

import trio

import asyncparl.ids
import asyncparl.protocol.fragments
import asyncparl.protocol.pace
import asyncparl.runtime.lending
import asyncparl.runtime.link
import asyncparl.runtime.master
import asyncparl.runtime.places
import asyncparl.runtime.reach
import asyncparl.runtime.serving
import asyncparl.runtime.session
from asyncparl.runtime.current import process_session
from asyncparl.runtime.link import Link
from asyncparl.runtime.pending import Pending
from asyncparl.runtime.versions import our_versions
from asyncparl.runtime.ways import WayToNode
from tests.simulation.contents import FRAGMENT_BYTES, LARGE_BYTES, MIN_LENT_BYTES, WINDOW_BYTES
from tests.simulation.process import find_process
from tests.simulation.simulated_workers import SimulatedMethodThread

_VERSIONS = our_versions()


class _Os:
    """The module `os`, but for its random numbers."""

    def __init__(self, lots: random.Random) -> None:
        self.urandom = lots.randbytes

    def __getattr__(self, name: str) -> Any:
        return getattr(os, name)


class _Secrets:
    def __init__(self, lots: random.Random) -> None:
        self._lots = lots

    def token_hex(self, num_bytes: int) -> str:
        return self._lots.randbytes(num_bytes).hex()


class _Time:
    """Every process of the simulation has the same clock, which begins with the run."""

    def time(self) -> float:
        return 1e9 + trio.current_time()


class _Traceback:
    """A server of control requests prints what it did not expect, and goes on: here that is a bug."""

    def __init__(self, report: Callable[[str], None]) -> None:
        self._report = report

    def print_exc(self) -> None:
        self._report("a server of control requests failed")


class _Way(WayToNode):
    """The way to a node of the simulation, as if it were on this machine: no code is sent there."""

    def __init__(self, ticket: Any, master: Any, master_address: str, _credentials: Any) -> None:
        super().__init__(ticket, master, master_address, None)
        self.is_local = True

    def _addresses(self, known: str | None) -> Iterator[str]:
        if known is not None:
            yield known
        else:
            yield from self._ticket.node.addresses


@contextlib.contextmanager
def seeded(seed: str, report: Callable[[str], None]) -> Iterator[None]:
    """For a Trio run: the same seed, the same run. `report` hears what must not happen."""
    lots = random.Random(f"{seed}/ids")
    with contextlib.ExitStack() as stack:
        for target, name, value in (
            (asyncparl.ids, "secrets", _Secrets(lots)),
            (asyncparl.runtime.lending, "MIN_LENT_BYTES", MIN_LENT_BYTES),
            (asyncparl.runtime.lending, "LARGE_BYTES", LARGE_BYTES),
            (asyncparl.runtime.link, "LARGE_BYTES", LARGE_BYTES),
            (asyncparl.protocol.fragments, "FRAGMENT_BYTES", FRAGMENT_BYTES),
            (asyncparl.protocol.pace, "WINDOW_BYTES", WINDOW_BYTES),
            (asyncparl.protocol.pace, "MAX_WINDOW_BYTES", 3 * WINDOW_BYTES),
            (asyncparl.protocol.pace, "MAX_BURST_BYTES", 4 * WINDOW_BYTES),
            (asyncparl.runtime.master, "os", _Os(lots)),
            (asyncparl.runtime.master, "time", _Time()),
            (asyncparl.runtime.places, "os", _Os(lots)),
            (asyncparl.runtime.reach, "_MethodThread", SimulatedMethodThread),
            (asyncparl.runtime.serving, "traceback", _Traceback(report)),
            (asyncparl.runtime.session, "WayToNode", _Way),
            (asyncparl.runtime.session, "our_versions", lambda: _VERSIONS),
            (asyncparl.runtime.node_link, "our_versions", lambda: _VERSIONS),
        ):
            stack.enter_context(patch.object(target, name, value))
        stack.enter_context(_trio_from(f"{seed}/tasks"))
        stack.enter_context(_calls_settle_once(report))
        stack.enter_context(process_session(_session_here))
        stack.enter_context(_collected_by_hand())
        yield


def versions() -> Any:
    """What everybody runs."""
    return _VERSIONS


def _session_here() -> Any:
    process = find_process()
    return None if process is None else process.session()


@contextlib.contextmanager
def _trio_from(seed: str) -> Iterator[None]:
    """Tasks run in an order that the seed decides."""
    run: Any = trio._core._run
    state = run._r.getstate()
    run._r.seed(seed)
    with patch.object(run, "_ALLOW_DETERMINISTIC_SCHEDULING", True):
        yield
    run._r.setstate(state)


@contextlib.contextmanager
def _calls_settle_once(report: Callable[[str], None]) -> Iterator[None]:
    """Watch every way in which a call can be settled."""
    with contextlib.ExitStack() as stack:
        for name in ("answer_arrived", "call_lost", "returned", "_give_up"):
            stack.enter_context(patch.object(Pending, name, _settling(getattr(Pending, name), report)))
        yield


def _settling(settle: Callable[..., None], report: Callable[[str], None]) -> Callable[..., None]:
    def settle_once(self: Pending, *args: Any) -> None:
        if self.is_settled:
            report(f"{self.name} was settled twice")
        settle(self, *args)

    return settle_once


@contextlib.contextmanager
def _collected_by_hand() -> Iterator[None]:
    """Finalizers of what is in a circle run when the scenario says so. What there is already is not looked at."""
    was_frozen = gc.get_freeze_count() > 0  # by a program that runs nothing but scenarios: there is little to look at
    gc.collect()
    gc.freeze()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
        if not was_frozen:
            gc.unfreeze()


@contextlib.contextmanager
def links_noted(links: Any) -> Iterator[None]:
    """Have every link in a set, as long as it lives."""
    attach = Link.attach

    def attach_noted(self: Link, channel: Any) -> None:
        links.add(self)
        attach(self, channel)

    with patch.object(Link, "attach", attach_noted):
        yield
