"""The leak check must find every kind of leak, or all tests that rely on it prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest
import trio

from tests.leaks import MARK, POLL_S, LeakDetector
from tests.proc import Process


class Finder:
    """Looks for what came since it was made."""

    def __init__(self) -> None:
        self._detector = LeakDetector(os.environ[MARK])
        self._before = self._detector.snapshot()

    def finds(self, *kinds: str) -> bool:
        """Whether these kinds are there and no other, possibly after others have ended."""
        deadline = time.monotonic() + 5
        while (found := {leak.kind for leak in self._detector.leaks(self._before)}) != set(kinds):
            if time.monotonic() > deadline:
                pytest.fail(f"found {found}")
            time.sleep(POLL_S)
        return True


@pytest.fixture
def leaks() -> Finder:
    return Finder()


def test_nothing_is_found_where_nothing_is_left(leaks: Finder) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    with tempfile.TemporaryDirectory(prefix="asyncparl-"), tempfile.TemporaryFile():
        pass
    assert leaks.finds()


def test_a_child_is_found(leaks: Finder) -> None:
    with _sleeper():
        assert leaks.finds("process")
    assert leaks.finds()


def test_a_child_that_nobody_waited_for_is_found(leaks: Finder) -> None:
    pid = os.posix_spawn("/bin/true", ["true"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert leaks.finds("process")
    os.waitpid(pid, 0)


def test_a_grandchild_whose_parent_has_died_is_found(leaks: Finder) -> None:
    pid = _orphan(os.environ)
    assert leaks.finds("process")
    os.kill(pid, signal.SIGKILL)


@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_grandchild_whose_parent_has_died_is_found(leaks: Finder) -> None:
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        grandchild = os.fork()
        if grandchild == 0:
            time.sleep(60)
        else:
            os.write(writer, str(grandchild).encode())
        os._exit(0)
    os.waitpid(child, 0)
    pid = int(os.read(reader, 32))
    os.close(reader)
    os.close(writer)
    assert leaks.finds("process")
    os.kill(pid, signal.SIGKILL)


def test_the_processes_of_others_are_not_ours(leaks: Finder) -> None:
    # Started by a process that has ended, without our mark: like a program that was started in another terminal.
    pid = _orphan({"PATH": os.environ["PATH"]})
    assert leaks.finds()
    os.kill(pid, signal.SIGKILL)


def test_a_thread_is_found(leaks: Finder) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert leaks.finds("thread")
    stop.set()
    thread.join()


def test_threads_of_trio_are_found_while_they_are_busy(leaks: Finder) -> None:
    stop = threading.Event()

    async def abandon() -> None:
        with trio.move_on_after(0.05):
            await trio.to_thread.run_sync(stop.wait, abandon_on_cancel=True)

    trio.run(abandon)
    assert leaks.finds("thread")
    stop.set()
    assert leaks.finds()


SIMULATORS = """
    from ale_py.vector_env import AtariVectorEnv
    from tests.leaks import LeakDetector

    detector = LeakDetector("its own")
    before = detector.snapshot()
    simulators = [AtariVectorEnv("pong", num_envs=4) for _ in range(3)]
    print([leak.kind for leak in detector.leaks(before)])
    simulators.append(simulators)  # a cycle: only the garbage collector can free it
    del simulators
    print(detector.wait_for_leaks(before))
"""


def test_the_threads_of_a_simulator_are_found_while_it_lives() -> None:
    """In a process of its own: here idle threads of earlier tests may stand for as many native ones."""
    pytest.importorskip("ale_py.vector_env")
    command, root = [sys.executable, "-c", textwrap.dedent(SIMULATORS)], Path(__file__).parents[1]
    found = subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=60, check=True)
    assert found.stdout.splitlines() == ["['native thread']", "[]"]


def test_an_open_file_is_found(leaks: Finder) -> None:
    reader, writer = os.pipe()
    assert leaks.finds("file")
    os.close(reader)
    assert leaks.finds("file")
    os.close(writer)


def test_a_socket_of_nng_is_found_and_its_pool_is_not(leaks: Finder) -> None:
    pynng = pytest.importorskip("pynng")
    with pynng.Pair1() as socket:
        assert socket.recv_fd
        assert leaks.finds("file")
    assert leaks.finds()


def test_a_folder_of_the_runtime_is_found(leaks: Finder) -> None:
    folder = tempfile.mkdtemp(prefix="asyncparl-")
    assert leaks.finds("folder")
    Path(folder).rmdir()


def test_a_shared_memory_segment_is_found(leaks: Finder) -> None:
    segment = Path("/dev/shm/asyncparl-test-of-the-leak-check")
    segment.touch()
    try:
        assert leaks.finds("shared memory")
    finally:
        segment.unlink()


def test_a_mapping_is_found_and_the_resource_tracker_is_not(leaks: Finder) -> None:
    memory = SharedMemory(create=True, size=1)
    assert leaks.finds("file", "shared memory")
    memory.close()
    memory.unlink()
    assert leaks.finds()


def test_a_segment_that_another_program_uses_is_not_ours(leaks: Finder) -> None:
    script = """
        exec 3> /dev/shm/asyncparl-of-another
        (sleep 60 < /dev/null > /dev/null 2> /dev/null & echo $!)
    """
    command = ["bash", "-c", script]
    pid = int(subprocess.run(command, check=True, capture_output=True, env={"PATH": os.environ["PATH"]}).stdout)
    try:
        assert leaks.finds()
    finally:
        os.kill(pid, signal.SIGKILL)
        Path("/dev/shm/asyncparl-of-another").unlink()


def test_a_pid_that_is_used_again_is_another_process() -> None:
    process = Process.read(os.getpid())
    assert process is not None
    assert process != Process(process.pid, process.start_ticks + 1)


def test_looking_takes_less_than_ten_milliseconds(leak_detector: LeakDetector) -> None:
    times = []
    for _ in range(10):
        start = time.thread_time()
        leak_detector.snapshot()
        times.append(time.thread_time() - start)
    assert min(times) < 0.01


def test_the_fixture_fails_the_test_that_leaks_and_no_other(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(
        """
        import os, pytest
        from tests.leaks import MARK, POLL_S, LeakDetector

        @pytest.fixture(scope="session")
        def leak_detector():
            return LeakDetector(os.environ[MARK], grace_s=0.05)
        """
    )
    pytester.makepyfile(
        """
        import os, subprocess, tempfile, threading

        def test_clean():
            pass

        def test_process():
            subprocess.Popen(["sleep", "60"]).returncode = 0

        def test_thread():
            threading.Thread(target=threading.Event().wait, daemon=True).start()

        def test_file():
            os.pipe()

        def test_folder():
            tempfile.mkdtemp(prefix="asyncparl-")

        def test_clean_again():
            pass
        """
    )
    monkeypatch.setenv("PYTHONPATH", str(Path(__file__).parent.parent))
    result = pytester.runpytest_subprocess("-p", "tests.conftest")
    result.assert_outcomes(passed=6, errors=4)
    for kind in ("process", "thread", "file", "folder"):
        result.stdout.re_match_lines(
            [rf"_+ ERROR at teardown of test_{kind} _+", r"This test left behind:", rf"  {kind}: .*"]
        )


@contextmanager
def _sleeper() -> Iterator[None]:
    process = subprocess.Popen(["sleep", "60"])
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _orphan(environ: Mapping[str, str]) -> int:
    """Start a process whose parent has ended."""
    script = "sleep 60 > /dev/null & echo $!"
    return int(subprocess.run(["bash", "-c", script], check=True, stdout=subprocess.PIPE, env=environ).stdout)
