"""Programs with actors that end: by themselves, by a signal, at any moment. Nothing is left of them."""

from __future__ import annotations

import os
import secrets
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
import trio

import asyncparl
from asyncparl.runtime.blocks import background_tasks
from asyncparl.runtime.current import current_session
from asyncparl.runtime.stopping import SESSION_LIMIT_S
from tests.proc import process_table
from tests.runtime.actors import Echo
from tests.runtime.test_programs import LIMIT_S, REPOSITORY, run, write

# --- how it ends --------------------------------------------------------------------------------------------------

BUSY = """
    import os, signal, sys, threading, time, trio, asyncparl

    kept = []

    @asyncparl.remote_class(max_concurrency=4)
    class Worker:
        def __init__(self, seconds=0): time.sleep(seconds)
        def echo(self, value): return value
        def sleep(self): time.sleep(600)
        async def rest(self): await trio.sleep_forever()
        def stream(self):
            number = 0
            while True:
                yield number
                number += 1

    async def make_busy():
        worker = Worker()
        await worker.echo(1)
        stream, unused = worker.stream(), worker.stream()
        await anext(stream)
        kept.extend([worker, stream, unused, worker.rest(), worker.sleep(), worker.echo(2)])
        kept.extend([Worker(600), Worker().echo(3)])
        cycle = [Worker(), kept]
        cycle.append(cycle)
        unused.cancel()
"""


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("pass", (0, "")),
        ("return", (0, "")),
        ("raise ValueError('mine')", (1, "ValueError: mine")),
        ("sys.exit(7)", (7, "")),
        ("sys.exit('good bye')", (1, "good bye")),
        ("raise KeyboardInterrupt", (-signal.SIGINT, "KeyboardInterrupt")),
        ("os.kill(os.getpid(), signal.SIGINT); await trio.sleep(9)", (-signal.SIGINT, "KeyboardInterrupt")),
        ("None.missing", (1, "AttributeError: 'NoneType'")),
    ],
)
def test_a_program_in_the_middle_of_things_ends_soon_and_without_noise(
    end: str, expected: tuple[int, str], tmp_path: Path
) -> None:
    program = textwrap.dedent(BUSY) + textwrap.dedent(f"""
        async def main():
            async with asyncparl.connect():
                await make_busy()
                {end}

        if __name__ == "__main__":
            trio.run(main)
    """)
    write(tmp_path, {"program.py": program})
    done = run("-X", "dev", "program.py", cwd=tmp_path)
    code, last_line = expected
    assert done.returncode == code
    assert done.stdout == ""
    lines = done.stderr.splitlines() or [""]
    assert lines[-1].startswith(last_line)
    assert bool(lines[-1]) == bool(last_line)
    assert not any("Warning" in line or "Exception ignored" in line for line in lines)


OFFERS = """
    import asyncparl, os, signal, sys, time, trio

    @asyncparl.remote_class
    class Caller:
        async def call(self, thing):
            try:
                await thing.serve()
            except BaseException as error:
                os.write(2, f"{error!r}\\n".encode())

    class Thing:
        async def serve(self):
            async def be_interrupted():
                os.kill(os.getpid(), signal.SIGINT)
                time.sleep(9)
            if sys.argv[1] == "itself":
                await be_interrupted()
            async with trio.open_nursery() as nursery:
                nursery.start_soon(be_interrupted)

    async def main():
        async with asyncparl.connect():
            caller = Caller()
            try:
                await caller.call(asyncparl.expose(Thing()))
                await trio.sleep_forever()
            finally:
                with trio.CancelScope(shield=True):
                    await asyncparl.close(caller)  # it has its answer

    if __name__ == "__main__":
        trio.run(main)
"""


@pytest.mark.parametrize("where", ["itself", "a nursery of its"])
def test_ctrl_c_in_an_async_method_of_an_exposed_object_is_an_error_of_the_call_and_ends_the_program(
    where: str, tmp_path: Path
) -> None:
    write(tmp_path, {"program.py": textwrap.dedent(OFFERS)})
    done = run("program.py", where, cwd=tmp_path)
    assert done.returncode == -signal.SIGINT
    answer, *lines = done.stderr.splitlines()
    assert answer.startswith("[Caller#1] RuntimeError(")
    assert "the method raised" in answer and "KeyboardInterrupt()" in answer
    assert lines[-1] == "KeyboardInterrupt"
    assert not any("Exception Group" in line for line in lines)


async def test_ctrl_c_that_hits_a_task_of_the_runtime_leaves_the_block_in_no_group() -> None:
    async def be_hit() -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), trio.fail_after(LIMIT_S):
        async with asyncparl.connect():
            current_session("a test").start_soon(be_hit)
            await trio.sleep_forever()


@pytest.mark.parametrize("num_checkpoints", range(12))
async def test_tasks_behind_a_block_end_whenever_the_block_is_cancelled(num_checkpoints: int) -> None:
    """At the very beginning too: `nursery.start` would have waited there for ever."""

    async def cancel_later() -> None:
        for _ in range(num_checkpoints):
            await trio.lowlevel.checkpoint()
        outside.cancel()

    with trio.move_on_after(5) as patience:
        async with trio.open_nursery() as nursery:
            with trio.CancelScope() as outside:
                if num_checkpoints:
                    nursery.start_soon(cancel_later)
                else:
                    outside.cancel()
                async with background_tasks() as tasks:
                    tasks.start_soon(trio.sleep_forever)
                    await trio.sleep_forever()
    assert outside.cancelled_caught
    assert not patience.cancelled_caught


@pytest.mark.parametrize("after_s", [0, 0.01, 0.05, 0.2])
async def test_connect_can_be_cancelled_at_any_moment(after_s: float) -> None:
    with trio.fail_after(LIMIT_S), trio.move_on_after(after_s) as given_up:
        async with asyncparl.connect():
            await trio.sleep_forever()
    assert given_up.cancelled_caught


async def test_an_actor_that_is_killed_while_others_wait_for_the_same_imports_ends_alone(tmp_path: Path) -> None:
    """And when all who wait are killed, those that come next do not wait for what is being killed."""
    module = f"slow_{secrets.token_hex(4)}"
    write(tmp_path, {f"{module}.py": "import time; time.sleep(3)"})
    sys.path.insert(0, str(tmp_path))
    try:
        with trio.fail_after(LIMIT_S):
            async with asyncparl.connect(preload=[module]):
                first, second = Echo(), Echo()
                killed = first.add(1)
                await trio.sleep(0.5)
                await asyncparl.kill(first)
                with pytest.raises(asyncparl.ActorDied):
                    await killed
                assert await second.add(1) == 1
            async with asyncparl.connect(preload=[module]):
                first, second = Echo(), Echo()
                await trio.sleep(0.5)
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(asyncparl.kill, first)
                    nursery.start_soon(asyncparl.kill, second)
                    others = [Echo() for _ in range(3)]
                assert await asyncparl.gather([other.add(1) for other in others]) == [1, 1, 1]
    finally:
        sys.path.remove(str(tmp_path))


LEAVING = """
    import asyncparl, os, signal, sys, trio, trio.testing

    @asyncparl.remote_class
    class Worker:
        def echo(self, value): return value

    async def main(what):
        async with asyncparl.connect(preload=["endless"] if what == "starting" else None):
            try:
                await globals()[what]()
                print("waits", flush=True)
                await trio.sleep_forever()
            finally:
                trio.lowlevel.spawn_system_task(tell_that_it_waits_again)

    async def starting():
        with trio.move_on_after(1) as patience:
            await Worker().echo(1)
        assert patience.cancelled_caught  # its process cannot be there yet

    async def stopped():
        await Worker().echo(1)
        with open(f"/proc/self/task/{os.getpid()}/children") as children:
            for pid in children.read().split():
                os.kill(int(pid), signal.SIGSTOP)

    async def tell_that_it_waits_again():
        await trio.testing.wait_all_tasks_blocked(0.1)
        print("leaves", flush=True)

    if __name__ == "__main__":
        trio.run(main, sys.argv[1])
"""


@pytest.mark.parametrize(("what", "words"), [("starting", ["waits\n"]), ("stopped", ["waits\n", "leaves\n"])])
def test_ctrl_c_ends_a_program_soon_whose_actors_are_starting_and_the_second_one_whose_cluster_does_not_answer(
    what: str, words: list[str], tmp_path: Path
) -> None:
    write(tmp_path, {"program.py": textwrap.dedent(LEAVING), "endless.py": "import time; time.sleep(600)"})
    mark, before = secrets.token_hex(8), process_table(b"LEAVING", set())
    environ = {**os.environ, "PYTHONPATH": str(REPOSITORY), "LEAVING": mark}
    command = [sys.executable, str(tmp_path / "program.py"), what]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ) as program:
        assert program.stdout is not None
        for word in words:
            assert program.stdout.readline() == word
            program.send_signal(signal.SIGINT)
        _, errors = program.communicate(timeout=SESSION_LIMIT_S / 2)
    assert program.returncode == -signal.SIGINT
    assert errors.splitlines()[-1] == "KeyboardInterrupt"
    assert process_table(f"LEAVING={mark}".encode(), set()) <= before


ODD_PLACES = """
    import os, shutil, signal, sys, tempfile, time
    import asyncparl, trio

    @asyncparl.remote_class
    class Worker:
        def pid(self): return os.getpid()
        def sleep(self): time.sleep(600)

    async def work():
        async with asyncparl.connect():
            worker = Worker()
            print(await worker.pid(), end=" ")
            worker.sleep()
            began = trio.current_time()
        print("soon" if trio.current_time() < began + 5 else "late")

    if __name__ == "__main__":
        where = sys.argv[1]
        if where == "long temporary folder":
            os.environ["TMPDIR"] = tempfile.mkdtemp(prefix="l" * 120, dir=".")
        elif where == "blocked signals":
            signal.pthread_sigmask(signal.SIG_BLOCK, signal.valid_signals())
        else:
            os.mkdir("short-lived")
            os.chdir("short-lived")
            os.rmdir(os.getcwd())
        tempfile.tempdir = None
        trio.run(work)
"""


@pytest.mark.parametrize("where", ["long temporary folder", "blocked signals"])
def test_a_program_works_and_ends_as_usual_with(where: str, tmp_path: Path) -> None:
    write(tmp_path, {"program.py": textwrap.dedent(ODD_PLACES)})
    done = run("program.py", where, cwd=tmp_path)
    assert (done.returncode, done.stderr) == (0, "")
    pid, when = done.stdout.split()
    assert pid.isdigit() and when == "soon"


def test_a_program_whose_working_directory_is_gone_is_told_so(tmp_path: Path) -> None:
    write(tmp_path, {"program.py": textwrap.dedent(ODD_PLACES)})
    done = run("program.py", "nowhere", cwd=tmp_path)
    last = done.stderr.splitlines()[-1]
    assert last.startswith(
        "asyncparl.errors.ResourceError: the working directory of this program does not exist any more"
    )


MOMENTS = 14
"""How many times `MORTAL` says that it might end now."""
MORTAL = textwrap.dedent(BUSY) + textwrap.dedent("""
    moment, number = int(sys.argv[1]), int(sys.argv[2])
    at = -1

    def die():
        os.kill(os.getpid(), number)

    def now():
        global at
        at += 1
        if at == moment:
            die()

    def soon(seconds):
        global at
        at += 1
        if at == moment:
            timer = threading.Timer(seconds, die)
            timer.daemon = True
            timer.start()

    async def main():
        for seconds in (0, 0.05, 0.1, 0.2, 0.4):
            soon(seconds)
        async with asyncparl.connect():
            now()
            worker = Worker()
            now()
            await worker.echo(1)
            now()
            await make_busy()
            now()
            other = Worker()
            await other.echo(1)
            soon(0)
            await asyncparl.close(other)
            now()
            soon(0.01)
            async with asyncparl.connect():
                Worker()
                now()
            soon(0)
        time.sleep(5 if moment > at else 0)  # there are more moments than that

    if __name__ == "__main__":
        trio.run(main)
        print("it was not killed")
""")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT, signal.SIGTERM])
def test_a_program_may_be_killed_at_any_moment(number: signal.Signals, tmp_path: Path) -> None:
    write(tmp_path, {"program.py": MORTAL})
    mark, before = secrets.token_hex(8), process_table(b"MORTAL", set())
    programs = [
        subprocess.Popen(
            [sys.executable, str(tmp_path / "program.py"), str(moment), str(int(number))],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "MORTAL": mark},
        )
        for moment in range(MOMENTS)
    ]
    for moment, program in enumerate(programs):
        output, errors = program.communicate(timeout=LIMIT_S)
        assert (program.returncode, output) == (-number, ""), (moment, errors)
    deadline = time.monotonic() + 15
    while left := process_table(f"MORTAL={mark}".encode(), set()) - before:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def test_a_test_that_fails_and_keeps_its_actors_is_no_harm_to_the_next(pytester: pytest.Pytester) -> None:
    pytester.makepyfile(
        test_inner="""
        import sys
        import asyncparl

        kept = []

        class Plain:
            def fail(self): raise ValueError("mine")

        Remote = None

        async def test_first():
            async with asyncparl.connect():
                worker = Worker()
                stream = worker.stream()
                await anext(stream)
                kept.append((worker, stream, worker.rest()))
                try:
                    await worker.fail()
                except ValueError as error:
                    kept.append(error)
                assert False, "on purpose"

        async def test_second():
            assert kept
            async with asyncparl.connect() as cluster:
                assert await Worker().echo(1) == 1
                assert cluster.num_actors == 1
            for call in kept[0][1:]:
                assert call.done()

        @asyncparl.remote_class(max_concurrency=2)
        class Worker:
            def echo(self, value): return value
            def fail(self): raise ValueError("mine")
            def stream(self): yield from range(10)
            async def rest(self):
                import trio
                await trio.sleep_forever()
    """
    )
    pytester.makeini("[pytest]\ntrio_mode = true\nfilterwarnings = error\n")
    pytester.syspathinsert(REPOSITORY)
    result = pytester.runpytest_subprocess("-q", timeout=LIMIT_S)
    result.assert_outcomes(passed=1, failed=1)
    assert "on purpose" in result.stdout.str()
