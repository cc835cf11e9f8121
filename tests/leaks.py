"""What a test must not leave behind, and how it is found. The fixtures that use it are in conftest.py.

| kind          | what counts                                           | what is tolerated                            |
|---------------|-------------------------------------------------------|----------------------------------------------|
| process       | descendants of ours; processes with the mark of this  | the resource tracker of multiprocessing      |
|               | run in their environment; forks of this process;      |                                              |
|               | children that have ended and were not waited for      |                                              |
| thread        | threads that Python knows                             | idle ones of Trio's cache                    |
| native thread | the number of all others                              | NNG's, by name; torch's, by number; those of |
|               |                                                       | a test that imports a native library first   |
| file          | descriptors, by number and target                     | what NNG and CUDA open when they are first   |
|               |                                                       | used; the pipe to the resource tracker       |
| folder        | `asyncparl-*` in the temporary folder of this run     |                                              |
| shared memory | files in /dev/shm that nobody outside of this run has |                                              |
|               | open; mappings of shared memory in this process       |                                              |

What ends in the background (NNG closes sockets so) has `GRACE_S` to end; a clean test waits for nothing. Garbage is
collected before native threads and mappings are reported, for they live as long as some object. Descriptors must be
closed.

Without /proc (not Linux) only Python's threads and the folders are seen.
"""

from __future__ import annotations

import gc
import os
import signal
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from tests.proc import Process, command_line, process_table, processes_using

GRACE_S = 2.0
POLL_S = 0.005

KINDS = ("process", "thread", "native thread", "file", "folder", "shared memory")

MARK = "ASYNCPARL_TEST_RUN"
PREFIX = "asyncparl-"
SHARED_MEMORY = Path("/dev/shm")
SEGMENT_PREFIXES = (PREFIX, "psm_", "torch_")  # ours, multiprocessing's, torch's

# These start permanent native threads when they are imported or first used.
NATIVE_LIBRARIES = ("ale_py", "cv2", "numpy", "pynng", "torch")
NNG_FILES = ("anon_inode:[eventpoll]", "anon_inode:[eventfd]")  # one each for every poller thread
NUM_CPUS = os.cpu_count() or 1


class Leak(NamedTuple):
    kind: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind}: {self.what}"


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What there is at one moment."""

    processes: frozenset[Process]
    threads: frozenset[threading.Thread]
    native_threads: Counter[str]
    """By name; "" for those that have the name of the process."""
    files: frozenset[tuple[int, str]]
    folders: frozenset[Path]
    segments: frozenset[Path]
    mappings: frozenset[str]
    libraries: frozenset[str]
    """Those of `NATIVE_LIBRARIES` that were imported, and "nng" or "cuda" once they are running."""


class LeakDetector:
    """Compares the state of this process, and of those it has started, with an earlier one."""

    def __init__(self, mark: str, grace_s: float = GRACE_S) -> None:
        self._grace_s = grace_s
        self._mark = f"{MARK}={mark}".encode()
        self._foreign: set[int] = set()
        self._torch_is_warm = False
        self._num_permanent = 0

    def snapshot(self) -> Snapshot:
        self._warm_torch()
        native_threads = Counter(_native_threads())
        return Snapshot(
            processes=process_table(self._mark, self._foreign) - _resource_tracker(),
            threads=frozenset(thread for thread in threading.enumerate() if not _is_tolerated(thread)),
            native_threads=native_threads,
            files=frozenset(_open_files()),
            folders=_entries(Path(tempfile.gettempdir()), (PREFIX,)),
            segments=_entries(SHARED_MEMORY, SEGMENT_PREFIXES),
            mappings=frozenset(_shared_mappings()),
            libraries=_libraries(native_threads),
        )

    def wait_for_leaks(self, before: Snapshot, kinds: Sequence[str] = KINDS) -> list[Leak]:
        """What is still there of all that came after `before`; at once if that is nothing."""
        deadline = time.monotonic() + self._grace_s
        collected = False
        while leaks := [leak for leak in self.leaks(before) if leak.kind in kinds]:
            if time.monotonic() > deadline:
                break
            if not collected and any(leak.kind in ("native thread", "shared memory") for leak in leaks):
                gc.collect()
                collected = True
            time.sleep(POLL_S)
        return leaks

    def leaks(self, before: Snapshot) -> list[Leak]:
        now = self.snapshot()
        return [
            *(Leak("process", command_line(process)) for process in sorted(now.processes - before.processes)),
            *(Leak("thread", repr(thread)) for thread in now.threads - before.threads),
            *self._native_thread_leaks(before, now),
            *(Leak("file", f"descriptor {fd}: {target}") for fd, target in sorted(_file_leaks(before, now))),
            *(Leak("folder", str(path)) for path in sorted(now.folders - before.folders)),
            *(
                Leak("shared memory", str(path))
                for path in sorted(now.segments - before.segments)
                if _is_ours(path, now)
            ),
            *(Leak("shared memory", f"mapped: {name}") for name in sorted(now.mappings - before.mappings)),
        ]

    def _native_thread_leaks(self, before: Snapshot, now: Snapshot) -> Iterator[Leak]:
        if now.libraries - before.libraries:
            return
        # OpenMP gives each thread that computed a pool of its own, which idle threads of Trio's cache keep.
        num_idle = sum(_is_idle_trio_thread(thread) for thread in threading.enumerate())
        limit = max(before.native_threads.total(), self._num_permanent) + num_idle * (NUM_CPUS - 1)
        num_now = now.native_threads.total()
        if num_now > limit:
            new = dict(now.native_threads - before.native_threads)
            yield Leak("native thread", f"{num_now} instead of {limit}; new, by name: {new}")

    def _warm_torch(self) -> None:
        """Start torch's pool of threads, so that no test is blamed for them."""
        torch = sys.modules.get("torch")
        if self._torch_is_warm or torch is None or not hasattr(torch, "set_num_threads"):
            return
        num_threads = torch.get_num_threads()
        torch.set_num_threads(NUM_CPUS)
        torch.ones(1 << 20).sin().sum()
        self._num_permanent = Counter(_native_threads()).total()
        torch.set_num_threads(num_threads)
        self._torch_is_warm = True


def kill(processes: frozenset[Process]) -> None:
    """End what a test has left, so that only this one test fails."""
    for process in processes:
        try:
            os.kill(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass


def _is_idle_trio_thread(thread: threading.Thread) -> bool:
    # They end by themselves after ten idle seconds. A busy one has the name of its function.
    return thread.name.startswith("Trio thread ")


def _is_tolerated(thread: threading.Thread) -> bool:
    # A dummy stands for a native thread that once called into Python.
    return isinstance(thread, threading._DummyThread) or _is_idle_trio_thread(thread)


def _native_threads() -> Iterator[str]:
    """The names of the threads that Python did not start, without NNG's: its pool is of fixed size, and permanent."""
    known = {thread.native_id for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)}
    own_name = _thread_name(os.getpid())
    for thread_id in _numbers("/proc/self/task"):
        if thread_id not in known:
            name = _thread_name(thread_id)
            if name is not None and not name.startswith("nng:"):
                yield "" if name == own_name else name


def _thread_name(thread_id: int) -> str | None:
    try:
        return Path(f"/proc/self/task/{thread_id}/comm").read_text().rstrip("\n")
    except OSError:
        return None


def _open_files() -> Iterator[tuple[int, str]]:
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    for fd in _numbers("/proc/self/fd"):
        try:
            target = os.readlink(f"/proc/self/fd/{fd}")
        except OSError:
            continue  # the one that listed the folder
        if fd != getattr(tracker, "_fd", None) and not target.startswith("/dev/nvidia"):
            yield fd, target


def _file_leaks(before: Snapshot, now: Snapshot) -> set[tuple[int, str]]:
    new = set(now.files - before.files)
    first_used = now.libraries - before.libraries
    if "cuda" in first_used:
        return set()
    if "nng" in first_used:
        num_pollers = sum(name.startswith("nng:poll") for name in _all_thread_names())
        for target in NNG_FILES:
            new -= set(sorted(file for file in new if file[1] == target)[:num_pollers])
    return new


def _all_thread_names() -> list[str]:
    return [_thread_name(thread_id) or "" for thread_id in _numbers("/proc/self/task")]


def _libraries(native_threads: Counter[str]) -> frozenset[str]:
    found = {name for name in NATIVE_LIBRARIES if name in sys.modules}
    if "pynng" in found and any(name.startswith("nng:") for name in _all_thread_names()):
        found.add("nng")
    if any(name.startswith("cuda") for name in native_threads):
        found.add("cuda")
    return frozenset(found)


def _resource_tracker() -> frozenset[Process]:
    tracker = getattr(sys.modules.get("multiprocessing.resource_tracker"), "_resource_tracker", None)
    pid = getattr(tracker, "_pid", None)
    process = None if pid is None else Process.read(pid)
    return frozenset() if process is None else frozenset([process])


def _entries(folder: Path, prefixes: tuple[str, ...]) -> frozenset[Path]:
    try:
        names = os.listdir(folder)
    except OSError:
        return frozenset()
    return frozenset(folder / name for name in names if name.startswith(prefixes))


def _is_ours(segment: Path, now: Snapshot) -> bool:
    """Whether nobody outside of this run uses it: other programs have segments there too."""
    ours = {process.pid for process in now.processes} | {os.getpid()}
    return segment.exists() and processes_using(segment) <= ours


def _shared_mappings() -> Iterator[str]:
    try:
        lines = Path("/proc/self/maps").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        if "/memfd:" in line or "/dev/shm/" in line:
            _, _, _, _, inode, name = line.split(maxsplit=5)
            yield f"{name} (inode {inode})"


def _numbers(folder: str) -> list[int]:
    try:
        return [int(name) for name in os.listdir(folder)]
    except OSError:
        return []
