"""Processes of a simulation: tasks of one Trio run that know to which process they belong, and die together.

A process has a context of its own, from which all of its tasks are started, so that what a real process would find in
its globals (its session above all) is found there. When it is killed its connections end first, as the kernel ends
them, and its tasks are cancelled then: whatever they still do while they unwind is heard by nobody.
"""

from __future__ import annotations

import contextvars
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

import trio

from asyncparl.runtime.session import Session

if TYPE_CHECKING:
    from asyncparl.transport.memory import MemoryListener
    from asyncparl.transport.memory_link import MemoryChannel
    from tests.simulation.world import World

_process: contextvars.ContextVar[Process] = contextvars.ContextVar("simulated_process")


def current_process() -> Process:
    """Whose task this is."""
    return _process.get()


def find_process() -> Process | None:
    """The same; None outside of any."""
    return _process.get(None)


class Process:
    """One simulated process. It serves as the nursery of what runs in it: tasks start in its own context."""

    def __init__(self, world: World, name: str, machine: str, parent: Process | None = None) -> None:
        self.world = world
        self.name = name
        self.machine = machine
        self.is_dead = False
        self.died_at = float("inf")
        self.vanished = False
        """It died without a word: its peers hear nothing."""
        self.held_until = 0.0
        self.session: Callable[[], Session | None] = lambda: None
        self.ended = trio.Event()
        self.channels: dict[MemoryChannel, None] = {}
        self.listeners: list[MemoryListener] = []
        self.children: dict[Process, None] = {}
        self.cancel_scope = trio.CancelScope()
        self._nursery: trio.Nursery | None = None
        self._context = contextvars.Context()
        self._context.run(_process.set, self)
        if parent is not None:
            parent.children[self] = None

    def __repr__(self) -> str:
        return self.name

    @property
    def is_held(self) -> bool:
        """Stopped: it does nothing, for now."""
        return self.held_until > self.world.now

    def start(self, main: Callable[[Process], Awaitable[None]]) -> None:
        """Begin. When `main` returns the process ends."""
        self.world.note("start", self.name)
        self._context.run(self.world.nursery.start_soon, self._run, main)

    def start_soon(self, function: Callable[..., Awaitable[object]], *args: object) -> None:
        """As that of a nursery: from whatever context."""
        if self._nursery is None:
            raise RuntimeError("this process does not run")
        self._context.run(self._nursery.start_soon, function, *args)

    async def wait_going(self) -> None:
        """Until it is not stopped any more."""
        while self.is_held:
            await trio.sleep_until(self.held_until)

    def kill(self, *, silently: bool = False) -> None:
        """At once. Silently: as if its machine had lost its power."""
        if self.is_dead:
            return
        self.is_dead, self.vanished, self.died_at = True, silently, self.world.now
        self.world.note("dead", self.name)
        for child in list(self.children):
            child.kill(silently=silently)
        for listener in self.listeners:
            listener.close()
        for channel in self.channels:
            self.world.network.abandon(channel, silently=silently)
        self.channels.clear()
        self.cancel_scope.cancel()

    async def _run(self, main: Callable[[Process], Awaitable[None]]) -> None:
        try:
            with self.cancel_scope:
                await trio.lowlevel.checkpoint()  # it may be dead already
                async with trio.open_nursery() as self._nursery:
                    await main(self)
                    self._nursery.cancel_scope.cancel()
        except BaseException as error:
            if isinstance(error, (KeyboardInterrupt, trio.Cancelled)) or self.world.is_over:
                raise
            if not self.is_dead:
                self.world.bug(f"{self.name} crashed", error)
        finally:
            self.kill()
            self.ended.set()


def nursery_of(process: Process) -> Any:
    """For what takes a nursery to start tasks in, and does nothing else with it."""
    return process
