"""What is known of a call, from its making to its end. Several threads meet here.

The event loop of the call's link brings the news: items, the answer, the loss of the link. All the rest may be done in
any thread: making the call, asking whether it has ended, waiting for it, taking its items, cancelling it.

* A call is settled once, by whoever takes it out of the table of its link: the link itself with an answer or a loss, or
  `cancel`. One that is not sent yet is in no table, and is settled in the event loop only.
* Tasks wait in `waiters` and `watchers`, which nobody touches outside of the event loop. Other threads have it look
  there, after they have settled the call.
* Threads wait at `gates`, and are woken by whoever has the news, without a way through the event loop. Who has news
  notes them first and opens the gates then; who waits puts up a gate first and then looks for news once more. So one of
  the two sees the other. A lock would do the same, until a finalizer wants it that runs in the thread that has it.
* The value is decoded by whoever wants it first. That runs the user's code, which may need the event loop, so nobody
  waits for another's decoding: two threads may both do it, and the first result counts.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, Protocol

import trio

from asyncparl.errors import CallCancelled
from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import Raised, Returned
from asyncparl.protocol.values import decode_value
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.exceptions import rebuild_exception
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.interrupts import Uninterrupted
from asyncparl.runtime.link import Link

Decoder = Callable[[memoryview, Sequence[memoryview]], Any]
"""Turns what a frame carries into a value."""

Rebuilder = Callable[[Frame], BaseException]
"""Turns a `Raised` frame into an exception."""

UNSET: Any = object()

_publishing = threading.Lock()


class Gate(Protocol):
    """Where a thread waits for news of a call."""

    def release(self) -> None:
        """There are some. In any thread; must not block."""


class Watcher(Protocol):
    """What is told once, in the event loop, that there are news of a call."""

    def __call__(self) -> None: ...

    def is_watching(self) -> bool:
        """Whether anybody still wants to know."""


class Pending:
    """The link holds on to it; the `Call` of the user is only a handle."""

    __slots__ = (
        "answer",
        "answerer",
        "call_id",
        "decode",
        "error",
        "gates",
        "items",
        "link",
        "loop",
        "name",
        "orphaned",
        "rebuild",
        "streams",
        "value",
        "waiters",
        "watchers",
    )

    def __init__(
        self,
        name: str,
        loop: EventLoop | None,
        decode: Decoder = decode_value,
        rebuild: Rebuilder = rebuild_exception,
    ) -> None:
        """`loop`: that of the link; None: the call has failed already."""
        self.name = name
        self.loop = loop
        self.decode = decode
        self.rebuild = rebuild
        self.link: Link | None = None
        """None: not sent yet."""
        self.call_id = 0
        self.answerer: Executor | None = None
        """The thread of this process, if it is one of its own, that must be free for the call to be answered."""
        self.answer: Frame | None = None
        self.value: Any = UNSET
        self.error: BaseException | None = None
        self.items: deque[Frame] = deque()
        self.streams = False
        self.orphaned = False
        """Nobody holds the `Call` any more."""
        self.waiters: list[trio.lowlevel.Task] = []
        self.watchers: list[Watcher] = []
        self.gates: list[Gate] = []

    # --- told in the event loop -----------------------------------------------------------------------------

    def answer_arrived(self, frame: Frame) -> None:
        if isinstance(frame.message, Returned):
            self.streams = frame.message.streamed
        self.answer = frame  # last: from now on other threads take the call for settled
        self._tell()

    def item_arrived(self, frame: Frame) -> None:
        self.streams = True
        if self.orphaned:
            self.cancel()
            return
        self.items.append(frame)
        if self.is_settled:
            self.items.clear()  # another thread cancels it in this very moment
        self._tell()

    def call_lost(self, error: BaseException) -> None:
        self.error = error
        self._tell()

    def returned(self, value: object) -> None:
        """It was no call to anywhere: its value is here."""
        self.value = value
        self._tell()

    # --- asked in any thread --------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        return self.answer is not None or self.error is not None or self.value is not UNSET

    def result(self) -> Any:
        """The value, or the exception raised. Decoded on first use, by the one who wants it."""
        if self.error is None and self.value is UNSET:
            self._decode()
        if self.error is not None:
            raise self.error
        return self.value

    def take_item(self) -> Frame | None:
        """The next item, if there is one; the callee may make another one instead."""
        if not self.items:
            return None
        with Uninterrupted():
            try:
                frame = self.items.popleft()
            except IndexError:
                return None  # another thread took it
            if self.link is not None and not self.is_settled:
                self.link.grant(self.call_id, 1)
            return frame

    def cancel(self) -> None:
        """Give up, if there is still something to give up."""
        if self.is_settled:
            return
        link, is_here = self.link, self.loop is None or self.loop.is_here
        with Uninterrupted():
            if link.cancel(self.call_id) if link is not None else is_here:
                self._give_up()
            elif not is_here and self.loop is not None:
                self.loop.run_soon(self.cancel)  # what happens to it in this very moment is seen from there

    def add_gate(self, gate: Gate) -> bool:
        """Have a gate opened at the next news. False: there may be some already."""
        self.gates.append(gate)
        return not self.is_settled and not self.items

    def remove_gate(self, gate: Gate) -> None:
        """It is not needed any more."""
        try:
            self.gates.remove(gate)
        except ValueError:
            pass  # it was opened

    def wait_in_thread(self, deadline: float | None) -> None:
        """Until there may be news, for a thread without an event loop. By `time.monotonic()`.

        Raises:
            RuntimeError: this very thread would have to bring them.
            TimeoutError: `deadline` has passed.
        """
        self.check_answerer()
        gate = threading.Lock()
        gate.acquire()
        try:
            if self.add_gate(gate) and not gate.acquire(timeout=seconds_until(deadline)):
                raise TimeoutError(f"{self.name} has not ended in time; it goes on")
        finally:
            self.remove_gate(gate)

    def check_answerer(self) -> None:
        """Raise RuntimeError where waiting would be for ever."""
        if self.answerer is not None and not self.is_settled and self.answerer.is_here:
            raise RuntimeError(
                f"{self.name} runs in this very thread, one after another: a call of one's own methods without "
                "`async` cannot be answered while this thread waits for it"
            )

    # --- asked in the event loop ----------------------------------------------------------------------------

    async def wait(self) -> None:
        """Until an answer or an item is there that was not there before."""
        task = trio.lowlevel.current_task()
        self.waiters.append(task)

        def abort(_raise_cancel: object) -> trio.lowlevel.Abort:
            self.waiters.remove(task)
            return trio.lowlevel.Abort.SUCCEEDED

        await trio.lowlevel.wait_task_rescheduled(abort)

    def check_loop(self) -> None:
        """Raise RuntimeError where the call cannot be awaited."""
        if not (trio.lowlevel.in_trio_run() if self.loop is None else self.loop.is_here):
            raise RuntimeError(
                f"{self.name} belongs to an event loop in another thread, and cannot be awaited in this one: "
                "wait with `await trio.to_thread.run_sync(call.result)`, or `await asyncio.to_thread(call.result)`"
            )

    # --- inside ---------------------------------------------------------------------------------------------

    def _give_up(self) -> None:
        self.error = CallCancelled(f"{self.name} was cancelled")
        self.items.clear()
        self._tell()

    def _decode(self) -> None:
        frame = self.answer
        if frame is None:
            return  # another thread was faster
        value, error = UNSET, None
        try:
            if isinstance(frame.message, Returned):
                value = self.decode(frame.payload, frame.buffers)
            elif isinstance(frame.message, Raised):
                error = self.rebuild(frame)
            else:
                error = CallCancelled(f"{self.name} was cancelled")
        except Exception as failure:
            error = failure
        with _publishing:
            if self.answer is not None:
                self.value, self.error = value, error
                self.answer = None

    def _tell(self) -> None:
        """Wake whoever waits. In any thread."""
        while self.gates:
            try:
                gate = self.gates.pop()
            except IndexError:
                break  # two threads have news
            gate.release()
        if self.loop is None or self.loop.is_here:
            self._tell_tasks()
        else:
            self.loop.run_soon(self._tell_tasks)

    def _tell_tasks(self) -> None:
        waiters, self.waiters = self.waiters, []
        for task in waiters:
            trio.lowlevel.reschedule(task)
        watchers, self.watchers = self.watchers, []
        for watcher in watchers:
            watcher()


def seconds_until(deadline: float | None) -> float:
    """How long a lock may be waited for: -1 is for ever."""
    return -1 if deadline is None else min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
