"""What a forked child finds of the actors and clusters of its parent: clear errors, and never a wait without an end."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.cluster.clusters import Cluster
from tests.cluster.processes import until
from tests.proc import is_gone

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 60.0

PROGRAM = """
    import os, signal, sys, threading, time
    import trio
    import asyncparl, asyncparl.blocking as blocking

    @asyncparl.remote_class
    class Worker:
        def wait(self):
            time.sleep(600)
        def items(self):
            while True:
                yield 1
        def echo(self, value):
            return value

    class Plain:
        pass

    def hangs(*_):
        raise BaseException("it hangs")

    def in_child(name, function):
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, hangs)
            signal.alarm(10)
            try:
                text = f"returned {function()!r}"
            except BaseException as error:
                text = f"{type(error).__name__}: {error}"
            signal.alarm(0)
            print(f"{name} -> {text}", flush=True)
            os._exit(0)
        assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0, name

    async def connect(*arguments):
        async with asyncparl.connect(*arguments):
            pass

    async def manage():
        async with asyncparl.RemoteManager("127.0.0.1:0"):
            pass

    def use(cluster):
        worker = Worker()
        assert worker.echo(1).result() == 1
        waiting, stream, new = worker.wait(), worker.items(), Worker()
        in_child("a call", lambda: worker.echo(1).result())
        in_child("a call of a new actor", lambda: new.echo(1).result())
        in_child("an attribute", lambda: new.x.result())
        in_child("an earlier call", waiting.result)
        in_child("an earlier stream", lambda: next(stream))
        in_child("gather", lambda: blocking.gather([waiting]))
        in_child("as_completed", lambda: list(blocking.as_completed([waiting])))
        in_child("set_attribute", lambda: blocking.set_attribute(new, "x", 1))
        in_child("a new actor", Worker)
        in_child("close", lambda: blocking.close(worker))
        in_child("kill", lambda: blocking.kill(worker))
        in_child("with", new.__enter__)
        in_child("get_actor", lambda: blocking.get_actor("x"))
        in_child("expose", lambda: blocking.expose(Plain()))
        in_child("describe", cluster.describe)
        in_child("report", lambda: cluster.report(x=1))
        in_child("connect without async", blocking.connect)
        assert new.echo("here").result() == "here" and not waiting.done()
        in_child("the end of the block", cluster.close)

    def main():
        with blocking.connect() as cluster:
            use(cluster)
        in_child("connect", lambda: trio.run(connect))
        in_child("connect to a cluster", lambda: trio.run(connect, "127.0.0.1:1"))
        in_child("RemoteManager", lambda: trio.run(manage))
        in_child("as_remote", lambda: trio.run(asyncparl.as_remote, Plain(), "127.0.0.1:1"))
        with blocking.connect():
            print("here ->", Worker().echo("still works").result())

    if __name__ == "__main__":
        main()
"""

NOT_OURS = (
    *("a call", "a call of a new actor", "an attribute", "an earlier call", "an earlier stream", "gather"),
    *("as_completed", "set_attribute", "close", "kill", "with", "describe", "report"),
)
NOT_CONNECTED = ("a new actor", "get_actor", "expose")
CANNOT_CONNECT = ("connect", "connect without async", "connect to a cluster", "RemoteManager", "as_remote")


def test_in_a_forked_child_everything_of_its_parent_is_a_clear_error_and_nothing_hangs(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(PROGRAM))
    done = subprocess.run(
        [sys.executable, str(script)],
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        timeout=LIMIT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, "")
    said = dict(line.split(" -> ", 1) for line in done.stdout.splitlines())
    assert said.pop("here") == "still works"
    assert said.pop("the end of the block") == "returned None"
    for name in NOT_OURS:
        text = said.pop(name)
        assert text.startswith("NotConnectedError: ") and "belongs to the process that this one was forked from" in text
    for name in NOT_CONNECTED:
        assert "needs a cluster" in said.pop(name)
    for name in CANNOT_CONNECT:
        text = said.pop(name)
        assert text.startswith("ResourceError: this process was forked from one that had channels") and "spawn" in text
    assert not said


FORKING = """
    import multiprocessing, os, sys, time
    import asyncparl.blocking as blocking

    @blocking.remote_class
    class Worker:
        def pid(self):
            return os.getpid()

    def live():
        time.sleep(600)

    def main(*address):
        blocking.connect(*address)
        workers = [Worker(), Worker()]
        pids = [worker.pid().result() for worker in workers]
        child = multiprocessing.get_context("fork").Process(target=live)
        child.start()
        print(*pids, child.pid, flush=True)
        time.sleep(600)

    if __name__ == "__main__":
        main(*sys.argv[1:])
"""


@pytest.mark.parametrize("is_private", [True, False])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_actors_end_with_their_program_although_a_process_lives_that_was_forked_from_it(
    number: signal.Signals, is_private: bool, tmp_path: Path
) -> None:
    """That has copies of all connections, and peers see the end of a program by the end of its connections."""
    script = tmp_path / "program.py"
    script.write_text(textwrap.dedent(FORKING))
    with Cluster(tmp_path) as cluster:
        if not is_private:
            cluster.start_master()
            cluster.start_node("node", "--cpus", "2")
        program = cluster.start([sys.executable, str(script), *([] if is_private else [cluster.address])])
        *actors, child = map(int, program.read_line().split())
        try:
            program.send(number)
            until(lambda: all(is_gone(pid) for pid in actors), within_s=10)
            assert not is_gone(child)
        finally:
            os.kill(child, signal.SIGKILL)
