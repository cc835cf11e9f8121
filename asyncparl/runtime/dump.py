"""What everybody in this process waits for, in words: the answer to a signal, see `dump_signal.py`.

It may be asked for in a signal handler, and of a process that hangs: nothing here takes a lock, or waits for long.
"""

from __future__ import annotations

import contextlib
import linecache
import os
import queue
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from types import FrameType

import trio

from asyncparl.runtime.activity import WaitingCall, loops, servings, waiting_calls

MAX_LINES = 400
_MAX_FRAMES = 12
_MAX_CALLS = 50
_LOOP_LIMIT_S = 0.5

Place = tuple[FrameType, int]
"""A frame, and the line in it."""

_THIS = os.path.dirname(os.path.dirname(os.path.abspath(__file__))) + os.sep
_PLUMBING = tuple(
    os.path.dirname(os.path.abspath(sys.modules[name].__file__ or "")) + os.sep for name in ("trio", "outcome")
)
_STANDARD = (os.path.dirname(os.path.abspath(contextlib.__file__)) + os.sep, "<frozen ")
_LOOP = frozenset(function.__code__ for function in (trio.run, trio._core._run.unrolled_run))
_INSTALLED = ("site-packages", "dist-packages")


def describe_process(name: str) -> list[str]:
    """What this process does, line by line; `name` is what it is for people."""
    what = f"{name} (pid {os.getpid()})" if name else f"pid {os.getpid()}"
    lines = [f"--- what {what} does at {time.strftime('%H:%M:%S')} ---"]
    for part in (_methods, _calls, _tasks, _threads):
        try:
            lines += part()
        except Exception as error:  # it looks at what others change in this very moment
            lines.append(f"({part.__name__.strip('_')} cannot be told: {type(error).__name__}: {error})")
    if len(lines) > MAX_LINES:
        lines[MAX_LINES:] = [f"... and {len(lines) - MAX_LINES} lines more"]
    return [*lines, "---"]


def _methods() -> list[str]:
    lines = []
    for serving in servings():
        lines += [f"  {serving.class_name}.{name} for {_seconds(age_s)}" for name, age_s in serving.all_running()]
        if serving.num_waiting:
            lines.append(f"  calls of {serving.class_name} that wait for their turn: {serving.num_waiting}")
    return ["methods that run:", *lines] if lines else ["no method runs"]


def _calls() -> list[str]:
    waiting = waiting_calls()
    calls = [call for call in waiting if not call.is_request]
    lines = [f"  {call.name} for {_seconds(call.age_s)}{_who_waits(call)}" for call in calls[:_MAX_CALLS]]
    if len(calls) > _MAX_CALLS:
        lines.append(f"  ... and {len(calls) - _MAX_CALLS} more")
    lines = ["calls that wait for an answer:", *lines] if lines else ["no call waits for an answer"]
    requests = [f"{call.name} for {_seconds(call.age_s)}" for call in waiting if call.is_request]
    return [*lines, f"requests to master and nodes: {', '.join(requests)}"] if requests else lines


def _who_waits(call: WaitingCall) -> str:
    return "" if call.is_awaited else ", for which nobody waits now"


# --- tasks --------------------------------------------------------------------------------------------------


def _tasks() -> list[str]:
    here = trio.lowlevel.current_root_task() if trio.lowlevel.in_trio_run() else None
    lines = [
        line
        for root, token in loops()
        for line in (_describe_tasks(root) if root is here else _ask_for_tasks(root, token))
    ]
    return ["tasks, and where each of them waits:", *lines] if lines else []


def _ask_for_tasks(root: trio.lowlevel.Task, token: trio.lowlevel.TrioToken) -> list[str]:
    """Of a loop in another thread. Only that may look: Python does not bear that a coroutine runs meanwhile."""
    answers: queue.SimpleQueue[list[str]] = queue.SimpleQueue()
    try:
        token.run_sync_soon(lambda: answers.put(_describe_tasks(root)))
        return answers.get(timeout=_LOOP_LIMIT_S)
    except trio.RunFinishedError:
        return []
    except queue.Empty:
        return ["  the event loop does not answer: something runs in it that does not `await`"]


def _describe_tasks(root: trio.lowlevel.Task) -> list[str]:
    own: Counter[str] = Counter()
    lines = _tree(root, 1, own)
    if not lines:  # a process of ours alone: then these are what there is
        return _tree(root, 1, None)
    counted = ", ".join(f"{number} x {name}" if number > 1 else name for name, number in sorted(own.items()))
    return [*lines, f"  of asyncparl's own: {counted}"]


def _tree(task: trio.lowlevel.Task, depth: int, own: Counter[str] | None) -> list[str]:
    """A task with its children. Those that run no code of the program's are counted in `own`, or told of too."""
    places = _places(task)
    theirs = [place for place in places if _is_theirs(place)]
    ours = [place for place in places if _file(place).startswith(_THIS)]
    told = theirs[-_MAX_FRAMES:] or ([] if own is not None else ours[-1:])
    lines = [f"{'  ' * depth}{_short_name(task)}"] if told else []
    lines += [f"{'  ' * depth}  {_line_of(place)}" for place in told]
    if own is not None and ours and not told:
        own[ours[-1][0].f_code.co_qualname] += 1
    children = [child for nursery in task.child_nurseries for child in sorted(nursery.child_tasks, key=_short_name)]
    alike = Counter(tuple(_tree(child, depth + bool(lines), own)) for child in children)
    for (first, *rest), number in ((block, number) for block, number in alike.items() if block):
        lines += [f"{first} ({number} of them)" if number > 1 else first, *rest]
    return lines


def _places(task: trio.lowlevel.Task) -> list[Place]:
    """Where it waits, from its outermost function to the innermost one; without what Trio does itself."""
    places = [(frame, line) for frame, line in task.iter_await_frames()]
    return [place for place in places if not _file(place).startswith(_PLUMBING)]


def _is_theirs(place: Place) -> bool:
    """Whether it is code of the program, or of a library of its."""
    is_command_line = _file(place) == "<string>" and place[0].f_code.co_name == "<module>"
    return not is_command_line and not _file(place).startswith((_THIS, *_PLUMBING, *_STANDARD))


def _short_name(task: trio.lowlevel.Task) -> str:
    """The function; with its class, if it is one of ours."""
    *_, holder, name = ("", *task.name.split("."))
    return f"{holder}.{name}" if task.name.startswith("asyncparl.") else name


# --- threads ------------------------------------------------------------------------------------------------


def _threads() -> list[str]:
    """Those that run code of the program's; an event loop that rests is told of by its tasks."""
    names = {thread.ident: thread.name for thread in threading.enumerate()}
    with _nobody_else_runs():
        stacks = [(str(names.get(key, key)), list(_stack(frame))) for key, frame in sys._current_frames().items()]
    lines = []
    for name, stack in sorted(stacks, key=lambda each: each[0]):
        theirs = [place for place in _in_loop(stack) if _is_theirs(place)]
        if theirs:
            lines.append(f"  {name}")
            lines += [f"    {_line_of(place)}" for place in theirs[-_MAX_FRAMES:]]
    return ["threads, and where each of them is:", *lines] if lines else []


@contextlib.contextmanager
def _nobody_else_runs() -> Iterator[None]:
    """Other threads do not go on while we look at their frames, as far as Python lets us say so."""
    interval_s = sys.getswitchinterval()
    sys.setswitchinterval(1.0)
    try:
        yield
    finally:
        sys.setswitchinterval(interval_s)


def _in_loop(stack: list[Place]) -> list[Place]:
    """What an event loop runs at this moment; of a thread without one, everything."""
    inner = [number for number, (frame, _) in enumerate(stack) if frame.f_code in _LOOP]
    return stack[inner[-1] + 1 :] if inner else stack


def _stack(frame: FrameType | None) -> Iterator[Place]:
    """From the outermost function inwards."""
    stack: list[Place] = []
    while frame is not None:
        stack.append((frame, frame.f_lineno))
        frame = frame.f_back
    return reversed(stack)


# --- words --------------------------------------------------------------------------------------------------


def _file(place: Place) -> str:
    return place[0].f_code.co_filename


def _line_of(place: Place) -> str:
    frame, number = place
    path = _file(place)
    text = linecache.getline(path, number, frame.f_globals).strip()
    return f"{_short_path(path)}:{number} in {frame.f_code.co_name}" + (f": {text}" if text else "")


def _short_path(path: str) -> str:
    for marker in _INSTALLED:
        if marker in path:
            return path.rpartition(marker + os.sep)[2]
    with contextlib.suppress(OSError, ValueError):
        here = os.path.relpath(path)
        return path if here.startswith("..") else here
    return path


def _seconds(seconds: float) -> str:
    return f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
