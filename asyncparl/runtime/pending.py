"""What is known of a call, from its making to its end. Several threads meet here.

The event loop of the call's link brings the news: items, the answer, the loss of the link. All the rest may be done in
any thread: making the call, asking whether it has ended, waiting for it, taking its items, cancelling it.

* A call is settled once, by whoever takes it out of the table of its link: the link itself with an answer or a loss, or
  `cancel`, or the end of its time. One that is not sent yet is in no table, and is settled in the event loop only.
* Tasks wait in `waiters` and `watchers`, which nobody touches outside of the event loop. Other threads have it look
  there, after they have settled the call.
* Threads wait at `gates`, and are woken by whoever has the news, without a way through the event loop. Who has news
  notes them first and opens the gates then; who waits puts up a gate first and then looks for news once more. So one of
  the two sees the other. A lock would do the same, until a finalizer wants it that runs in the thread that has it.
* The value is decoded by whoever wants it first. That runs the user's code, which may need the event loop, so nobody
  waits for another's decoding: two threads may both do it, and the first result counts.
"""

from __future__ import annotations

import math
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Protocol

import trio

from asyncparl.errors import CallCancelled, CallTimedOut, SerializationError
from asyncparl.protocol.calls import CallerState
from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import Raised, Returned, TimedOut
from asyncparl.protocol.numbers import check_digits
from asyncparl.protocol.values import decode_value
from asyncparl.runtime.activity import WaitingCall
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.exceptions import rebuild_exception
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.interrupts import Uninterrupted
from asyncparl.runtime.limits import LAST_WORD_S, TimeLimit
from asyncparl.runtime.link import Link

Decoder = Callable[[memoryview, Sequence[memoryview]], Any]
"""Turns what a frame carries into a value."""

Rebuilder = Callable[[Frame], BaseException]
"""Turns a `Raised` frame into an exception."""


class Reading(NamedTuple):
    """How answers are read."""

    decode: Decoder
    rebuild: Rebuilder


AS_PICKLES = Reading(decode_value, rebuild_exception)

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
        "error",
        "gates",
        "is_iterated",
        "items",
        "limit",
        "link",
        "loop",
        "name",
        "orphaned",
        "reading",
        "since",
        "streams",
        "value",
        "waiters",
        "watchers",
    )

    def __init__(
        self,
        name: str,
        loop: EventLoop | None,
        reading: Reading = AS_PICKLES,
    ) -> None:
        """`loop`: that of the link; None: the call has failed already."""
        self.name = name
        self.loop = loop
        self.reading = reading
        self.link: Link | None = None
        """None: not sent yet."""
        self.call_id = 0
        self.answerer: Executor | None = None
        """The thread of this process, if it is one of its own, that must be free for the call to be answered."""
        self.answer: Frame | None = None
        self.value: Any = UNSET
        self.error: BaseException | None = None
        self.since = time.monotonic()
        """It was made, or has given its last item."""
        self.items: deque[Frame] = deque()
        self.streams = False
        self.is_iterated = False
        """Somebody has waited for an item, so it is a stream, or an error."""
        self.limit: TimeLimit | None = None
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
        self.since = time.monotonic()
        self.items.append(frame)
        if self.is_settled:
            self.items.clear()  # another thread cancels it in this very moment
        self._tell()

    def timed_out(self, message: TimedOut) -> None:
        self._end_late(message.has_started, message.running, message.running_s)

    def call_lost(self, error: BaseException) -> None:
        if self.limit is not None and self.limit.is_up:
            late = self._late_error(None)  # it was so before it was lost
            late.__cause__, error = error, late
        self.error = error
        self._tell()

    def returned(self, value: object) -> None:
        """It was no call to anywhere: its value is here."""
        self.value = value
        self._tell()

    def time_is_up(self) -> None:
        """Told by the alarm: first when the time is up, then when the callee has had its last word, and is silent."""
        limit, link = self.limit, self.link
        if limit is None or self.loop is None or self.is_settled:
            return
        limit.rest(self.loop)
        if self.items:
            return
        if limit.is_up:
            if link is None or link.cancel(self.call_id):
                self._end_late(None)
            return
        limit.is_up = True
        state = CallerState.QUEUED if link is None else link.expire(self.call_id)
        if state is CallerState.QUEUED:
            self._end_late(False)
        elif state is CallerState.SENT:
            limit.count(self.loop, self, min(LAST_WORD_S, limit.timeout_s))

    # --- asked in any thread --------------------------------------------------------------------------------

    @property
    def is_settled(self) -> bool:
        return self.answer is not None or self.error is not None or self.value is not UNSET

    @property
    def has_failed(self) -> bool:
        """Whether it certainly has no result; that one cannot be read shows when it is."""
        answer = self.answer
        is_no_result = answer is not None and not isinstance(answer.message, Returned)
        return is_no_result or self.error is not None or self.streams

    def describe(self) -> WaitingCall:
        """For people who ask what goes on."""
        is_awaited = bool(self.waiters or self.gates) or any(each.is_watching() for each in tuple(self.watchers))
        return WaitingCall(self.name, self.since, is_awaited)

    def result(self) -> Any:
        """The value, or the exception raised. Decoded on first use, by the one who wants it."""
        if self.error is None and self.value is UNSET:
            self._decode()
        if self.error is not None:
            raise self.error
        return self.value

    def read(self, what: str, frame: Frame) -> Any:
        """The value that a frame has brought. Raises SerializationError, which says of what it is."""
        try:
            return self.reading.decode(frame.payload, frame.buffers)
        except SerializationError as error:
            raise SerializationError(f"{what} {self.name}: {error}") from error.__cause__

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
        if self.is_settled or (self.loop is not None and self.loop.is_elsewhere):
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
            NotConnectedError: another process would have to.
            TimeoutError: `deadline` has passed.
        """
        self.check_answerer()
        self._expect_item()
        gate = threading.Lock()
        gate.acquire()
        try:
            if self.add_gate(gate) and not gate.acquire(timeout=seconds_until(deadline)):
                raise TimeoutError(f"{self.name} has not ended in time; it goes on")
        finally:
            self.remove_gate(gate)

    def check_answerer(self) -> None:
        """Raise RuntimeError, or NotConnectedError in a fork, where waiting would be for ever."""
        if self.loop is not None and self.loop.is_elsewhere and not self.is_settled:
            raise self.loop.why_over(self.name)
        if self.answerer is not None and not self.is_settled and self.answerer.is_here:
            raise RuntimeError(
                f"{self.name} runs in this very thread, one after another: a call of one's own methods without "
                "`async` cannot be answered while this thread waits for it"
            )

    # --- asked in the event loop ----------------------------------------------------------------------------

    async def wait(self) -> None:
        """Until an answer or an item is there that was not there before."""
        self._expect_item()
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

    # --- how long it may take -------------------------------------------------------------------------------

    def limit_to(self, timeout_s: float, loop: EventLoop) -> float:
        """It may take so long, from now; the deadline. `watch_limit` makes it hold."""
        self.limit = TimeLimit(timeout_s, loop.now() + timeout_s)
        return self.limit.deadline

    def watch_limit(self) -> None:
        """Settle it when its time is up. For when it has been sent, or has been put where it waits to be."""
        if self.limit is not None and self.loop is not None:
            self.limit.count(self.loop, self, self.limit.deadline - self.loop.now())
            if self.is_settled or self.streams:  # its first item has come already
                self.limit.rest(self.loop)

    def _expect_item(self) -> None:
        """Somebody begins to wait: of a stream, each item has the same time again."""
        limit = self.limit
        if limit is not None and self.streams and not limit.is_counting and self.loop is not None:
            limit.count(self.loop, self, limit.timeout_s)
            if self.items or self.is_settled:  # it came in this very moment
                limit.rest(self.loop)

    def _end_late(self, has_started: bool | None, running: str = "", running_s: float = 0.0) -> None:
        self.error = self._late_error(has_started, running, running_s)
        self._tell()

    def _late_error(self, has_started: bool | None, running: str = "", running_s: float = 0.0) -> Exception:
        limit = self.limit
        if limit is None:
            return CallCancelled(f"{self.name} was cancelled")
        actor, _, method = self.name.rpartition(".")
        if self.streams:
            return CallTimedOut(actor, method, limit.timeout_s, True, is_item=True)
        if limit.has_run_before and not has_started:
            has_started = None
        return CallTimedOut(actor, method, limit.timeout_s, has_started, running, running_s)

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
                value = self.read("the result of", frame)
            elif isinstance(frame.message, Raised):
                error = self.reading.rebuild(frame)
            else:
                error = self._late_error(None)  # the callee has counted, and did not have to be told
        except Exception as failure:
            error = failure
        with _publishing:
            if self.answer is not None:
                self.value, self.error = value, error
                self.answer = None

    def _tell(self) -> None:
        """Wake whoever waits. In any thread."""
        if self.limit is not None and self.loop is not None:
            self.limit.rest(self.loop)
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


def deadline_after(timeout: float | None) -> float | None:
    """When a wait ends that may last so many seconds, by the clock of `time.monotonic`; None: it may last for ever.

    Raises:
        TypeError: that is no number.
        ValueError: it is not a number (NaN), or one of too many digits.
    """
    if timeout is None:
        return None
    if isinstance(timeout, bool) or not isinstance(timeout, (int, float)):
        raise TypeError(f"timeout must be a number of seconds or None (no limit), not {timeout!r}")
    check_digits("timeout", timeout)
    if math.isnan(timeout):
        raise ValueError("timeout must be a number of seconds or None (no limit), not NaN")
    return time.monotonic() + timeout


def seconds_until(deadline: float | None) -> float:
    """How long a lock may be waited for: -1 is for ever."""
    return -1 if deadline is None else min(max(0.0, deadline - time.monotonic()), threading.TIMEOUT_MAX)
