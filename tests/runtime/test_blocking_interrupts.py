"""Ctrl-C at any moment, and blocks that nobody leaves: what a program without `async` has opened, ends."""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import textwrap
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncparl import blocking
from asyncparl.runtime import held_block
from asyncparl.runtime.interrupts import Latch
from tests.runtime.actors import Echo
from tests.runtime.blocking_helpers import LIMIT_S, until

REPOSITORY = Path(__file__).parents[2]


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCPARL_STATE", str(tmp_path / "state"))


@pytest.fixture
def cluster() -> Iterator[blocking.Cluster]:
    with blocking.connect() as cluster:
        yield cluster


def num_loops() -> int:
    return [thread.name for thread in threading.enumerate()].count("asyncparl-loop")


# --- a latch ----------------------------------------------------------------------------------------------------


def test_a_latch_lets_all_go_that_wait_and_that_come_later() -> None:
    latch = Latch()
    assert not latch.wait(0.01)
    waiting = [threading.Thread(target=latch.wait) for _ in range(3)]
    for thread in waiting:
        thread.start()
    latch.set()
    latch.set()
    for thread in waiting:
        thread.join(LIMIT_S)
        assert not thread.is_alive()
    assert latch.wait(0)


# --- nobody holds it any more -----------------------------------------------------------------------------------


def test_a_manager_that_is_dropped_before_its_with_block_is_closed() -> None:
    before = num_loops()
    manager = blocking.RemoteManager("127.0.0.1:0")
    assert num_loops() == before + 1
    address = manager.address
    del manager
    gc.collect()
    until(lambda: num_loops() == before)
    with blocking.RemoteManager(address):  # nothing listens there any more
        pass


def test_a_connection_that_nobody_holds_stays_open() -> None:
    before = num_loops()
    blocking.connect()
    gc.collect()
    assert Echo().echo(1).result(timeout=LIMIT_S) == 1
    (kept,) = held_block._kept
    kept.close()
    until(lambda: num_loops() == before)


def test_a_connection_whose_with_block_could_not_be_left_is_closed() -> None:
    before = num_loops()
    blocking.connect().__enter__()  # and Ctrl-C comes at the very beginning of `__exit__`
    gc.collect()
    until(lambda: num_loops() == before)


def test_a_group_whose_with_block_could_not_be_left_is_ended(cluster: blocking.Cluster) -> None:
    block = blocking.supervise()
    actor = block.__enter__().add(Echo)
    assert actor.echo(1).result(timeout=LIMIT_S) == 1
    del block
    gc.collect()
    until(lambda: cluster.num_actors == 0)
    with pytest.raises(blocking.ActorDied):
        actor.echo(1).result(timeout=LIMIT_S)


# --- Ctrl-C -----------------------------------------------------------------------------------------------------

PROGRAM = """
    import gc, random, signal, sys, threading, time
    import asyncparl.blocking as asyncparl

    @asyncparl.remote_class
    class Counter:
        def next(self):
            return 1

    def listen():
        with asyncparl.RemoteManager("127.0.0.1:0"):
            pass

    def listen_and_close():
        asyncparl.RemoteManager("127.0.0.1:0").close()

    def supervise():
        with asyncparl.supervise():
            pass

    def supervise_one():
        with asyncparl.supervise() as group:
            group.add(Counter).next().result()

    def interrupted(function, after_s):
        try:
            signal.setitimer(signal.ITIMER_REAL, after_s)
            function()
            signal.setitimer(signal.ITIMER_REAL, 0)
        except KeyboardInterrupt:
            return True
        return False

    if __name__ == "__main__":
        signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(signal.SIGINT))
        rng = random.Random(int(sys.argv[1]))
        cluster, num = asyncparl.connect(), 0
        for _ in range(100):
            for function, takes_s in [(listen, 0.005), (listen_and_close, 0.005), (supervise, 0.001)] * 4:
                num += interrupted(function, 5e-5 + rng.random() * takes_s)
            num += interrupted(supervise_one, 5e-5 + rng.random() * 0.1)
        deadline = time.monotonic() + 20
        while cluster.num_actors or sum(thread.name == "asyncparl-loop" for thread in threading.enumerate()) > 1:
            assert time.monotonic() < deadline, (cluster, threading.enumerate())
            gc.collect()
            time.sleep(0.05)
        cluster.close()
        print(num)
"""


@pytest.mark.slow
@pytest.mark.parametrize("seed", [1, 2])
def test_ctrl_c_at_any_moment_leaves_no_block_open(tmp_path: Path, seed: int) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY)}
    done = subprocess.run(
        [sys.executable, str(script), str(seed)], env=environ, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) > 300
