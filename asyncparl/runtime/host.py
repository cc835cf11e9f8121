"""An actor inside its process: builds the object, runs its methods, answers.

Two threads meet here. Calls arrive in the event loop. Methods without `async`, attributes and the steps of generators
are jobs of the executor, which is the main thread: one at a time, in order, and never in the loop's way. `async`
methods are tasks of the loop. Answers leave from whichever thread has them.

A generator is run one item at a time, each a job of its own that goes to the end of the queue: other calls get their
turn between two items.
"""

from __future__ import annotations

import contextlib
import inspect
import math
import sys
import threading
from collections.abc import AsyncGenerator, Generator
from dataclasses import dataclass
from functools import partial
from typing import Any

import msgspec
import trio

from asyncparl.errors import SerializationError
from asyncparl.protocol.events import CallArrived
from asyncparl.protocol.figures import WorkerFigures
from asyncparl.protocol.frames import Frame
from asyncparl.protocol.messages import Call, CallKind, ErrorReport
from asyncparl.protocol.values import Encoded
from asyncparl.runtime.activity import awaited_calls, note_serving
from asyncparl.runtime.async_calls import AsyncCalls, Key
from asyncparl.runtime.call_values import decode_argument, encode_result
from asyncparl.runtime.exceptions import format_exception, pack_exception, traceback_of
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.figures import AsyncCallFigures, CallFigures, all_running, clock_ns, sum_up
from asyncparl.runtime.in_place import served_link
from asyncparl.runtime.interrupts import interrupt_program
from asyncparl.runtime.link import Link
from asyncparl.runtime.references import CALLABLE_DUNDERS, check_public

_RESTORE = "on_restart"


@dataclass(slots=True)
class _Stream:
    generator: Generator[Any, Any, Any]
    parked: bool = False
    """Out of credit; whoever brings news submits the next step."""


class ActorHost:
    """Serves the calls of every link of one actor."""

    def __init__(
        self,
        executor: Executor,
        nursery: trio.Nursery,
        note: str,
        *,
        may_exit: bool = True,
        num_restarts: int = 0,
        main_names: frozenset[str] | None = None,
    ) -> None:
        """See the head of this file.

        Args:
            may_exit: `sys.exit()` in a method ends the process; otherwise it is an error of the call.
            num_restarts: how often the actor was started before; then `on_restart` of the object is told.
            main_names: what its callers find in `__main__`, as in `encode_value`.
        """
        self._encode = partial(encode_result, main_names=main_names)
        self._may_exit = may_exit
        self._num_restarts = num_restarts
        self._executor = executor
        self._nursery = nursery
        self._note = note
        self._loop = trio.lowlevel.current_trio_token()
        self._object: Any = None
        self._failure: tuple[ErrorReport, Encoded] | None = None
        """Why there is no object."""
        self.begun = trio.Event()
        """It has been told what object to make."""
        self._early: list[tuple[Link, CallArrived]] | None = []
        """Calls that came before the object was there; None once it is."""
        self._async_calls = AsyncCalls(self._start_async)
        self._figures = CallFigures()
        self._async_figures = AsyncCallFigures()
        self._num_failed = 0
        self._waiting_to_close: list[tuple[Link, Call, Frame]] = []
        self._is_async: dict[str, bool] = {}
        self._lock = threading.Lock()
        self._streams: dict[Key, _Stream] = {}
        self._scopes: dict[Key, trio.CancelScope] = {}
        self._credit_news: dict[Key, trio.Event] = {}
        note_serving(self)

    def adopt(self, thing: object, max_concurrency: int) -> None:
        """Serve an object that exists already."""
        self._async_calls.max_running = max_concurrency
        self._object = thing
        self._early = None

    def thread_for(self, kind: int, name: str) -> Executor | None:
        """The thread that must be free for such a call to be answered, if it takes one. From any thread."""
        runs_in_loop = self._early is None and kind == CallKind.METHOD and self._runs_in_loop(name)
        return None if runs_in_loop else self._executor

    def all_running(self) -> list[tuple[str, float]]:
        """The methods that run, and for how many seconds: the longest first. From any thread."""
        return all_running(self._figures, self._async_figures, clock_ns())

    def running(self, _call: Call) -> tuple[str, float]:
        """What keeps a call waiting that has not started."""
        return next(iter(self.all_running()), ("", 0.0))

    def figures(self) -> WorkerFigures:
        """What it does, and has done. In the event loop."""
        counted = sum_up(self._figures, self._async_figures, num_failed=self._num_failed, num_waiting=self.num_waiting)
        if not (awaited := awaited_calls()):
            return counted
        longest = awaited[0]
        return msgspec.structs.replace(counted, num_awaited=len(awaited), awaited=longest.name, awaited_s=longest.age_s)

    @property
    def class_name(self) -> str:
        """Of the object."""
        return type(self._object).__name__

    @property
    def num_waiting(self) -> int:
        """Calls that have not begun."""
        return self._executor.num_waiting + self._async_calls.num_waiting

    # --- told by the links, in the event loop ---------------------------------------------------------------

    def link_opened(self, link: Link) -> None:
        """Whoever it is may call."""

    def call_arrived(self, link: Link, arrived: CallArrived) -> None:
        """Start to serve a call."""
        if arrived.call.kind == CallKind.CREATE:
            self.begun.set()
            self._executor.submit(lambda: self._create(link, arrived.call, arrived.frame))
        elif self._early is not None:
            self._early.append((link, arrived))
        else:
            self._dispatch(link, arrived.call, arrived.frame)

    def cancel_arrived(self, link: Link, call_id: int) -> None:
        """Stop serving a call, where it can be stopped."""
        self._drop_cancelled()
        if (scope := self._scopes.get((link, call_id))) is not None:
            scope.cancel()
        self._resume_stream(link, call_id)

    def grant_arrived(self, link: Link, call_id: int) -> None:
        """A stream may go on."""
        if (event := self._credit_news.get((link, call_id))) is not None:
            event.set()
        self._resume_stream(link, call_id)

    def link_lost(self, link: Link) -> None:
        """Nobody hears the answers of this link any more."""
        self._drop_cancelled()
        for key, scope in list(self._scopes.items()):
            if key[0] is link:
                scope.cancel()
        with self._lock:
            keys = [key for key in self._streams if key[0] is link]
        for key in keys:
            self._resume_stream(*key)

    # --- what kind of work ----------------------------------------------------------------------------------

    def _dispatch(self, link: Link, call: Call, frame: Frame) -> None:
        if call.kind == CallKind.METHOD and self._failure is None and self._runs_in_loop(call.target):
            self._async_calls.add(link, call, frame)
        elif call.kind == CallKind.CLOSE and not self._async_calls.all_finished:
            self._waiting_to_close.append((link, call, frame))
        else:
            self._executor.submit(lambda: self._run(link, call, frame))

    def _runs_in_loop(self, name: str) -> bool:
        known = self._is_async.get(name)
        if known is None:
            # Looked up without running any code of the user's: this is the event loop.
            function = inspect.getattr_static(type(self._object), name, None)
            if isinstance(function, (staticmethod, classmethod)):
                function = function.__func__
            known = inspect.iscoroutinefunction(function) or inspect.isasyncgenfunction(function)
            self._is_async[name] = known
        return known

    def _created(self) -> None:
        """In the event loop: serve what came early."""
        early, self._early = self._early, None
        for link, arrived in early or ():
            self._dispatch(link, arrived.call, arrived.frame)

    # --- jobs of the executor -------------------------------------------------------------------------------

    def _create(self, link: Link, call: Call, frame: Frame) -> None:
        self._figures.begin("__init__")
        try:
            cls, max_concurrency, args, kwargs = decode_argument("__init__", frame)
            self._async_calls.max_running = max_concurrency
            served_link.set(link)
            self._object = cls(*args, **kwargs)
            if self._num_restarts and hasattr(type(self._object), _RESTORE):
                if self._runs_in_loop(_RESTORE):
                    self._loop.run_sync_soon(self._nursery.start_soon, self._restore, link, call)
                    return
                self._object.on_restart(self._num_restarts)
        except Exception as error:
            self._not_created(link, call, error)
        else:
            link.answer_returned(call.call_id)
            self._loop.run_sync_soon(self._created)
        finally:
            self._figures.end()

    def _not_created(self, link: Link, call: Call, error: Exception) -> None:
        # Also where its output goes: perhaps nobody ever awaits a call of this actor.
        with contextlib.suppress(Exception):  # it may be closed
            sys.stderr.write(format_exception(error, traceback_of(error)))
        failure = pack_exception(error, note=self._note, skip_frames=1)
        link.answer_raised(call.call_id, *failure)
        if not self._num_restarts:
            self._failure = failure
            self._loop.run_sync_soon(self._created)
        # Otherwise its owner ends us, and early calls are no business of an object that is not what it was.

    def _run(self, link: Link, call: Call, frame: Frame) -> None:
        call_id = call.call_id
        if not link.may_begin(call):
            link.answer_cancelled(call_id)
            return
        if self._failure is not None:
            link.answer_raised(call_id, *self._failure)
            return
        self._figures.begin(call.target)
        try:
            served_link.set(link)
            result = self._perform(call, frame)
            self._figures.end()
            if isinstance(result, Generator):
                self._start_stream(link, call_id, result)
            else:
                link.answer_returned(call_id, self._encode("the result of", call.target, result))
        except Exception as error:
            self._figures.end()
            self._answer_error(link, call_id, error)
        except BaseException as stop:
            self._figures.end()
            self._exit(link, call_id, stop)

    def _exit(self, link: Link, call_id: int, stop: BaseException) -> None:
        if self._may_exit:
            raise stop
        self._answer_error(link, call_id, RuntimeError(f"the method raised {stop!r}"))

    def _perform(self, call: Call, frame: Frame) -> Any:
        check_public(call.target, CALLABLE_DUNDERS)
        if call.kind == CallKind.METHOD:
            args, kwargs = decode_argument(call.target, frame) or ((), {})
            return getattr(self._object, call.target)(*args, **kwargs)
        if call.kind == CallKind.GET_ATTRIBUTE:
            value = getattr(self._object, call.target)
            if inspect.ismethod(value):
                raise TypeError(f"{call.target} is a method: call it")
            return value
        if call.kind == CallKind.SET_ATTRIBUTE:
            setattr(self._object, call.target, decode_argument(call.target, frame))
            return None
        if call.kind in (CallKind.CLOSE, CallKind.PING):
            return None
        raise SerializationError(f"a call of unknown kind {call.kind}")

    def _start_stream(self, link: Link, call_id: int, generator: Generator[Any, Any, Any]) -> None:
        with self._lock:
            self._streams[link, call_id] = stream = _Stream(generator)
        self._step(link, call_id, stream)

    def _step(self, link: Link, call_id: int, stream: _Stream) -> None:
        """Make one item, if it may be sent."""
        with self._lock:  # one look at both: news that come later find the stream parked, and resume it
            wanted = link.is_wanted(call_id)
            stream.parked = wanted and not link.has_credit(call_id)
        if stream.parked:
            return
        if not wanted:
            self._end_stream(link, call_id)
            try:
                stream.generator.close()
            except Exception as error:
                self._answer_error(link, call_id, error)
            else:
                link.answer_cancelled(call_id)
            return
        name = getattr(stream.generator, "__name__", "a stream")
        self._figures.begin(name)
        try:
            served_link.set(link)
            item = next(stream.generator)
            self._figures.end()
            link.send_item(call_id, self._encode("an item of", name, item))
        except StopIteration:
            self._figures.end()
            self._end_stream(link, call_id)
            link.answer_returned(call_id, streamed=True)
        except Exception as error:
            self._figures.end()
            self._end_stream(link, call_id)
            self._answer_error(link, call_id, error)
            with contextlib.suppress(Exception):  # the caller has an error already
                stream.generator.close()
        except BaseException as stop:
            self._figures.end()
            self._end_stream(link, call_id)
            self._exit(link, call_id, stop)
        else:
            self._executor.submit(lambda: self._step(link, call_id, stream))

    def _end_stream(self, link: Link, call_id: int) -> None:
        with self._lock:
            del self._streams[link, call_id]

    def _resume_stream(self, link: Link, call_id: int) -> None:
        with self._lock:
            stream = self._streams.get((link, call_id))
            if stream is None or not stream.parked:
                return
            stream.parked = False
        self._executor.submit(lambda: self._step(link, call_id, stream))

    def _answer_error(self, link: Link, call_id: int, error: BaseException) -> None:
        self._num_failed += 1
        link.answer_raised(call_id, *pack_exception(error, note=self._note, skip_frames=_num_own_frames(error)))

    # --- tasks of the event loop ----------------------------------------------------------------------------

    async def _restore(self, link: Link, call: Call) -> None:
        """The rest of `_create`, where `on_restart` is `async`."""
        try:
            await self._object.on_restart(self._num_restarts)
        except Exception as error:
            self._not_created(link, call, error)
        except SystemExit as stop:
            self._executor.submit(partial(_raise, stop))
        else:
            link.answer_returned(call.call_id)
            self._created()

    def _start_async(self, link: Link, call: Call, frame: Frame) -> None:
        self._nursery.start_soon(self._run_async, link, call, frame)

    def _drop_cancelled(self) -> None:
        """Calls of `async` methods that wait for their turn, and that nobody wants any more."""
        for link, call_id in self._async_calls.drop_unwanted():
            link.answer_cancelled(call_id)
        self._close_if_finished()

    def _close_if_finished(self) -> None:
        if self._async_calls.all_finished:
            for link, call, frame in self._waiting_to_close:
                self._executor.submit(partial(self._run, link, call, frame))
            self._waiting_to_close.clear()

    async def _run_async(self, link: Link, call: Call, frame: Frame) -> None:
        key = (link, call.call_id)
        with trio.CancelScope() as self._scopes[key]:
            if not link.may_begin(call):  # cancelled between its turn and this moment
                self._scopes[key].cancel()
            self._async_calls.begun()
            self._async_figures.begin(key, call.target)
            try:
                await self._answer_async(link, call, frame)
            except Exception as error:
                self._answer_error(link, call.call_id, error)
            except SystemExit as stop:
                if self._may_exit:
                    self._executor.submit(partial(_raise, stop))
                else:
                    self._exit(link, call.call_id, stop)
            except (KeyboardInterrupt, BaseExceptionGroup) as stop:
                self._stopped(link, call.call_id, stop)
            except trio.Cancelled:
                if trio.current_effective_deadline() == -math.inf:
                    raise
                # Else it is of a scope that has nothing to do with this call. Trio would take it for the end of ours.
                stray = RuntimeError("the method raised a trio.Cancelled that it had caught elsewhere")
                self._answer_error(link, call.call_id, stray)
            finally:
                self._async_figures.end(key)
        if self._scopes.pop(key).cancelled_caught:
            link.answer_cancelled(call.call_id)
        self._async_calls.ended(key)
        self._close_if_finished()

    def _stopped(self, link: Link, call_id: int, stop: KeyboardInterrupt | BaseExceptionGroup) -> None:
        """Ctrl-C has hit an `async` method, or what hit it came in a group, from a nursery of its own.

        The process of an actor ends of Ctrl-C. A program that has exposed an object hears of it where it hears of
        every Ctrl-C: in its main task, or without `async` in its main thread.
        """
        left: BaseException | None = stop
        if isinstance(stop, BaseExceptionGroup):  # of a call that is cancelled it may hold that too
            left = stop.split(trio.Cancelled)[1]
        if isinstance(left, Exception):
            self._answer_error(link, call_id, left)
        elif left is None or self._may_exit or not _has_interrupt(left):
            raise stop
        else:
            self._exit(link, call_id, left)
            interrupt_program()

    async def _answer_async(self, link: Link, call: Call, frame: Frame) -> None:
        check_public(call.target, CALLABLE_DUNDERS)
        await trio.lowlevel.checkpoint_if_cancelled()
        args, kwargs = decode_argument(call.target, frame) or ((), {})
        served_link.set(link)
        result = getattr(self._object, call.target)(*args, **kwargs)
        if isinstance(result, AsyncGenerator):
            self._async_calls.streams((link, call.call_id))
            self._close_if_finished()
            await self._stream_async(link, call.call_id, result)
            link.answer_returned(call.call_id, streamed=True)
        else:
            link.answer_returned(call.call_id, self._encode("the result of", call.target, await result))

    async def _stream_async(self, link: Link, call_id: int, generator: AsyncGenerator[Any, Any]) -> None:
        key, name = (link, call_id), getattr(generator, "__name__", "a stream")
        self._credit_news[key] = trio.Event()
        try:
            while True:
                while not link.has_credit(call_id):
                    self._credit_news[key] = trio.Event()
                    await self._credit_news[key].wait()
                try:
                    item = await anext(generator)
                except StopAsyncIteration:
                    return
                link.send_item(call_id, self._encode("an item of", name, item))
        finally:
            del self._credit_news[key]
            with trio.CancelScope(shield=True, deadline=trio.current_time() + 5):
                await generator.aclose()


def _num_own_frames(error: BaseException) -> int:
    """How many of the first entries of its traceback are of this file: the user's code comes after them."""
    num, tb = 0, traceback_of(error)
    while tb is not None and tb.tb_frame.f_code.co_filename == __file__:
        num, tb = num + 1, tb.tb_next
    return num


def _has_interrupt(error: BaseException) -> bool:
    if isinstance(error, BaseExceptionGroup):
        return error.subgroup(KeyboardInterrupt) is not None
    return isinstance(error, KeyboardInterrupt)


def _raise(error: BaseException) -> None:
    raise error
