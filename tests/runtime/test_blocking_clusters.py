"""How what `asyncparl.blocking.connect()` opens is found by threads, and how it ends, whatever happens."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import asyncparl
from asyncparl import blocking
from tests.runtime.actors import Echo
from tests.runtime.blocking_helpers import LIMIT_S, Plain, User, in_threads, until

REPOSITORY = Path(__file__).parents[2]


@pytest.mark.slow
def test_clusters_can_follow_and_contain_one_another_and_the_innermost_is_used() -> None:
    for _ in range(2):
        outer = blocking.connect()
        echo = Echo()
        with blocking.connect() as inner:
            assert in_threads(2, lambda _: Echo().add(1).result()) == [1, 1]
            assert (outer.num_actors, inner.num_actors) == (1, 2)
            assert echo.add(2).result() == 2
        Echo().echo().result()
        assert outer.num_actors == 2
        outer.close()
        outer.close()
        with pytest.raises(asyncparl.NotConnectedError, match="blocking"):
            Echo()
        with pytest.raises(asyncparl.ActorDied, match="session has ended"):
            echo.echo().result()
        with pytest.raises(asyncparl.NotConnectedError):
            outer.describe()
        assert "closed" in repr(outer)


def test_closing_the_outer_cluster_first_leaves_the_inner_one() -> None:
    outer, inner = blocking.connect(), blocking.connect()
    outer.close()
    assert Echo().add(1).result() == 1
    inner.close()


def test_what_waits_when_the_cluster_closes_hears_of_it() -> None:
    cluster = blocking.connect()
    echo, other = Echo(), Echo()
    exposed = blocking.expose(Plain(1))
    assert exposed.plus(1).result() == 2
    waits: list[Callable[[], Any]] = [
        lambda: echo.sleep(600).result(),
        lambda: list(echo.forever()),
        lambda: blocking.gather([echo.sleep(600)]),
    ]
    errors: list[BaseException] = []

    def wait(index: int) -> None:
        try:
            waits[index]()
        except asyncparl.ActorDied as error:
            errors.append(error)

    def close() -> None:
        other.echo().result()
        cluster.close()

    in_threads(4, lambda index: wait(index) if index < 3 else close())
    assert len(errors) == 3
    with pytest.raises(asyncparl.ActorDied):
        exposed.plus(1).result()


@pytest.mark.slow
def test_calls_made_while_the_cluster_closes_are_all_settled() -> None:
    for _ in range(3):
        cluster = blocking.connect()
        user = User()
        borrowed = user.make(1).result()
        exposed = blocking.expose(Plain(1))
        started = threading.Barrier(4, timeout=LIMIT_S)

        def call_on(index: int, started: Any = started, proxies: Any = (user, borrowed, exposed)) -> None:
            started.wait()
            calls = [proxies[0].quick, lambda: proxies[1].add(1), lambda: proxies[2].plus(1)]
            with pytest.raises(asyncparl.AsyncparlError):
                while True:
                    calls[index]().result(timeout=LIMIT_S)

        def close(started: Any = started, cluster: Any = cluster) -> None:
            started.wait()
            cluster.close()

        in_threads(4, lambda index, call=call_on, close=close: call(index) if index < 3 else close())  # type: ignore[misc]


def test_what_connect_refuses_is_raised_and_leaves_nothing() -> None:
    with pytest.raises(asyncparl.AsyncparlError):
        blocking.connect("127.0.0.1:1")
    with pytest.raises(TypeError, match="preload must be a list"):
        blocking.connect(preload="numpy")
    with pytest.raises(ValueError, match="cpus"):
        blocking.connect(cpus=-1)
    with pytest.raises(ZeroDivisionError), blocking.connect():
        Echo().echo().result()
        raise ZeroDivisionError
    assert not any(thread.name == "asyncparl-loop" for thread in threading.enumerate())


def test_a_forked_child_is_not_connected() -> None:
    cluster = blocking.connect()
    echo = Echo()
    assert echo.add(1).result() == 1
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            Echo()
        except asyncparl.NotConnectedError:
            code = 7
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    assert echo.add(1).result() == 2
    cluster.close()


# --- how processes end ------------------------------------------------------------------------------------------

PROGRAM = """
    import os, sys, threading, time
    import asyncparl.blocking as asyncparl

    @asyncparl.remote_class
    class Sleeper:
        def pid(self):
            return os.getpid()
        def sleep(self):
            time.sleep(600)

    def say(sleeper):
        print(sleeper.pid().result(), flush=True)

    if __name__ == "__main__":
"""

UNGUARDED = """
    import asyncparl.blocking as asyncparl

    @asyncparl.remote_class
    class Doubler:
        def double(self, x):
            return 2 * x
"""

ENDS = {
    "the end of the block": "with asyncparl.connect(): say(Sleeper())",
    "the end of the main thread": "cluster = asyncparl.connect(); say(Sleeper())",
    "the end of the main thread, while another waits": """
        cluster = asyncparl.connect()
        sleeper = Sleeper()
        def wait():
            try:
                sleeper.sleep().result()
            except asyncparl.ActorDied as error:
                assert "session has ended" in str(error)
        threading.Thread(target=wait).start()
        say(Sleeper())
    """,
    "the end of the main thread, while a pool waits": """
        from concurrent.futures import ThreadPoolExecutor
        cluster = asyncparl.connect()
        ThreadPoolExecutor().submit(Sleeper().sleep().result)
        say(Sleeper())
    """,
    "the end of the main thread, while code of the user keeps the event loop": """
        class Stopper:
            async def stop(self):
                time.sleep(600)
        sys.modules["asyncparl.runtime.held_block"]._EXIT_LIMIT_S = 0.5
        sys.stderr = sys.stdout
        cluster = asyncparl.connect()
        say(Sleeper())
        asyncparl.expose(Stopper()).stop()
    """,
    "sys.exit in the block": "with asyncparl.connect(): say(Sleeper()); sys.exit(0)",
    "two clusters": "a, b = asyncparl.connect(), asyncparl.connect(); say(Sleeper())",
    "a child that was forked": """
        cluster = asyncparl.connect()
        sleeper = Sleeper()
        say(sleeper)
        if os.fork() == 0:
            sys.exit()
        os.wait()
        assert sleeper.pid().result()
    """,
}


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], subprocess.Popen[str]]]:
    started: list[subprocess.Popen[str]] = []

    def start(end: str) -> subprocess.Popen[str]:
        script = tmp_path / "program.py"
        script.write_text(textwrap.dedent(PROGRAM) + textwrap.indent(textwrap.dedent(end), " " * 4) + "\n")
        environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
        process = subprocess.Popen(
            [sys.executable, str(script)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
        )
        started.append(process)
        return process

    folders = set(Path(tempfile.gettempdir()).glob("asyncparl-*"))
    yield start
    for process in started:
        process.kill()
        process.communicate()
    until(lambda: not set(Path(tempfile.gettempdir()).glob("asyncparl-*")) - folders)


@pytest.mark.parametrize("end", ENDS)
def test_nothing_is_left_however_a_program_ends(end: str, start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start(ENDS[end])
    out, err = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, err) == (0, "")
    pid, *said = out.splitlines()
    assert bool(said) == ("keeps the event loop" in end)
    until(lambda: not psutil.pid_exists(int(pid)))


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_program_that_is_interrupted_or_killed_while_it_waits_leaves_nothing(
    number: signal.Signals, start: Callable[[str], subprocess.Popen[str]]
) -> None:
    process = start("with asyncparl.connect(): sleeper = Sleeper(); say(sleeper); sleeper.sleep().result()")
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(number)
    _, err = process.communicate(timeout=LIMIT_S)
    assert err.strip().endswith("KeyboardInterrupt") == (number == signal.SIGINT)
    until(lambda: not psutil.pid_exists(pid))


def test_an_interrupt_during_connect_leaves_nothing(start: Callable[[str], subprocess.Popen[str]]) -> None:
    process = start(
        """
        from asyncparl.runtime.private import PrivateCluster
        start = PrivateCluster.start
        def start_and_say(*args, **options):
            cluster = start(*args, **options)
            print(cluster._process.pid, flush=True)
            return cluster
        PrivateCluster.start = start_and_say
        asyncparl.connect()
        """
    )
    assert process.stdout is not None
    pid = int(process.stdout.readline())
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=LIMIT_S)
    assert err.strip().endswith("KeyboardInterrupt")
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize("how", ["with asyncparl.connect(): print", "cluster = asyncparl.connect(); print"])
def test_a_script_needs_no_main_guard(how: str, tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(f"{textwrap.dedent(UNGUARDED)}\n{how}(Doubler().double(21).result())\n")
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    command = [sys.executable, str(script)]
    done = subprocess.run(command, capture_output=True, text=True, env=environ, timeout=30, check=False)
    assert (done.stdout, done.stderr) == ("42\n", "")
