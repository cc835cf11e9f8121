"""The leak check must find every kind of leak, or all tests that rely on it prove nothing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from multiprocessing.shared_memory import SharedMemory
from pathlib import Path

import pytest
import trio

from tests.leaks import MARK, LeakDetector
from tests.proc import Process


@pytest.fixture
def detector() -> LeakDetector:
    return LeakDetector(os.environ[MARK], grace_s=0.05)


@pytest.fixture
def kinds_left_by(detector: LeakDetector) -> Callable[[], list[str]]:
    """The kinds of what came since the test began."""
    before = detector.snapshot()
    return lambda: sorted({leak.kind for leak in detector.wait_for_leaks(before)})


def test_nothing_is_found_where_nothing_is_left(kinds_left_by: Callable[[], list[str]]) -> None:
    subprocess.run([sys.executable, "-c", ""], check=True)
    thread = threading.Thread(target=int)
    thread.start()
    thread.join()
    with tempfile.TemporaryDirectory(prefix="asyncparl-"), tempfile.TemporaryFile():
        pass
    assert kinds_left_by() == []


def test_a_child_is_found(kinds_left_by: Callable[[], list[str]]) -> None:
    with _sleeper():
        assert kinds_left_by() == ["process"]
    assert kinds_left_by() == []


def test_a_child_that_nobody_waited_for_is_found(kinds_left_by: Callable[[], list[str]]) -> None:
    pid = os.posix_spawn("/bin/true", ["true"], os.environ)
    os.waitid(os.P_PID, pid, os.WEXITED | os.WNOWAIT)
    assert kinds_left_by() == ["process"]
    os.waitpid(pid, 0)


def test_a_grandchild_whose_parent_has_died_is_found(kinds_left_by: Callable[[], list[str]]) -> None:
    pid = _orphan(os.environ)
    assert kinds_left_by() == ["process"]
    os.kill(pid, signal.SIGKILL)


def test_a_forked_grandchild_whose_parent_has_died_is_found(kinds_left_by: Callable[[], list[str]]) -> None:
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
    assert kinds_left_by() == ["process"]
    os.kill(pid, signal.SIGKILL)


def test_the_processes_of_others_are_not_ours(kinds_left_by: Callable[[], list[str]]) -> None:
    # Started by a process that has ended, without our mark: like a program that was started in another terminal.
    pid = _orphan({"PATH": os.environ["PATH"]})
    assert kinds_left_by() == []
    os.kill(pid, signal.SIGKILL)


def test_a_thread_is_found(kinds_left_by: Callable[[], list[str]]) -> None:
    stop = threading.Event()
    thread = threading.Thread(target=stop.wait)
    thread.start()
    assert kinds_left_by() == ["thread"]
    stop.set()
    thread.join()


async def test_threads_of_trio_are_found_while_they_are_busy(kinds_left_by: Callable[[], list[str]]) -> None:
    stop = threading.Event()
    with trio.move_on_after(0.05):
        await trio.to_thread.run_sync(stop.wait, abandon_on_cancel=True)
    # Trio's own descriptors are open while it runs.
    assert "thread" in kinds_left_by()
    stop.set()
    assert "thread" not in kinds_left_by()


def test_the_threads_of_a_simulator_are_found_while_it_lives(detector: LeakDetector) -> None:
    vector_env = pytest.importorskip("ale_py.vector_env")
    before = detector.snapshot()
    simulators = [vector_env.AtariVectorEnv("pong", num_envs=4) for _ in range(3)]
    leaks = detector.wait_for_leaks(before)
    assert [leak.kind for leak in leaks] == ["native thread"]
    simulators.append(simulators)  # a cycle: only the garbage collector can free it
    del simulators
    assert detector.wait_for_leaks(before) == []


def test_an_open_file_is_found(kinds_left_by: Callable[[], list[str]]) -> None:
    reader, writer = os.pipe()
    assert kinds_left_by() == ["file"]
    os.close(reader)
    assert kinds_left_by() == ["file"]
    os.close(writer)


def test_a_socket_of_nng_is_found_and_its_pool_is_not(kinds_left_by: Callable[[], list[str]]) -> None:
    pynng = pytest.importorskip("pynng")
    with pynng.Pair1() as socket:
        assert socket.recv_fd
        assert kinds_left_by() == ["file"]
    assert kinds_left_by() == []


def test_a_folder_of_the_runtime_is_found(kinds_left_by: Callable[[], list[str]]) -> None:
    folder = tempfile.mkdtemp(prefix="asyncparl-")
    assert kinds_left_by() == ["folder"]
    Path(folder).rmdir()


def test_a_shared_memory_segment_is_found(kinds_left_by: Callable[[], list[str]]) -> None:
    segment = Path("/dev/shm/asyncparl-test-of-the-leak-check")
    segment.touch()
    try:
        assert kinds_left_by() == ["shared memory"]
    finally:
        segment.unlink()


def test_a_mapping_is_found_and_the_resource_tracker_is_not(kinds_left_by: Callable[[], list[str]]) -> None:
    memory = SharedMemory(create=True, size=1)
    assert kinds_left_by() == ["file", "shared memory"]
    memory.close()
    memory.unlink()
    assert kinds_left_by() == []


def test_a_segment_that_another_program_uses_is_not_ours(kinds_left_by: Callable[[], list[str]]) -> None:
    script = """
        exec 3> /dev/shm/asyncparl-of-another
        (sleep 60 < /dev/null > /dev/null 2> /dev/null & echo $!)
    """
    command = ["bash", "-c", script]
    pid = int(subprocess.run(command, check=True, capture_output=True, env={"PATH": os.environ["PATH"]}).stdout)
    try:
        assert kinds_left_by() == []
    finally:
        os.kill(pid, signal.SIGKILL)
        Path("/dev/shm/asyncparl-of-another").unlink()


def test_a_pid_that_is_used_again_is_another_process() -> None:
    process = Process.read(os.getpid())
    assert process is not None
    assert process != Process(process.pid, process.start_ticks + 1)


def test_looking_takes_less_than_ten_milliseconds(detector: LeakDetector) -> None:
    times = []
    for _ in range(10):
        start = time.perf_counter()
        detector.snapshot()
        times.append(time.perf_counter() - start)
    assert min(times) < 0.01


def test_the_fixture_fails_the_test_that_leaks_and_no_other(
    pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytester.makeconftest(
        """
        import os, pytest
        from tests.leaks import MARK, LeakDetector

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
