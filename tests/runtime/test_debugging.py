"""What does everybody wait for? A signal makes a process say it; deaths and warnings name what had hung."""

from __future__ import annotations

import faulthandler
import logging
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import AsyncIterator
from typing import Any

import psutil
import pytest
import trio

import asyncparl
from asyncparl import blocking
from asyncparl.runtime.dump import MAX_LINES, describe_process
from asyncparl.runtime.session import program_name
from tests.runtime.limited import Hanging, Slow

LIMIT_S = 10.0


class Said:
    """What was written to standard error, as it comes."""

    def __init__(self, capfd: pytest.CaptureFixture[str]) -> None:
        self._capfd = capfd
        self.text = ""

    async def by(self, name: str) -> str:
        """All that this process says of itself, once; without the prefix of its lines."""
        with trio.fail_after(LIMIT_S):
            while True:
                self.text += self._capfd.readouterr().err
                lines = [line.rpartition("] ")[2] if line.startswith("[") else line for line in self.text.splitlines()]
                begins = [number for number, line in enumerate(lines) if line.startswith(f"--- what {name} ")]
                if begins and "---" in lines[begins[0] :]:
                    self.text = ""
                    return "\n".join(lines[begins[0] : lines.index("---", begins[0])])
                await trio.sleep(0.01)


@pytest.fixture
def said(capfd: pytest.CaptureFixture[str]) -> Said:
    return Said(capfd)


@pytest.fixture
async def slow() -> AsyncIterator[Any]:
    async with asyncparl.connect():
        actor: Any = Slow()
        await actor.pid()
        yield actor


async def wait_for_slow(actor: Any) -> None:
    await actor.nap("waited for", 60)


# --- the signal -------------------------------------------------------------------------------------------------


async def test_a_program_says_where_its_tasks_wait_and_which_calls_have_no_answer(slow: Any, said: Said) -> None:
    forgotten = slow.sleep("forgotten", 1.0)
    async with trio.open_nursery() as nursery:
        for _ in range(2):
            nursery.start_soon(wait_for_slow, slow)
        await trio.sleep(0.3)
        os.kill(os.getpid(), signal.SIGUSR1)
        text = await said.by(program_name())
        nursery.cancel_scope.cancel()
    assert "  Slow#1.nap for 0." in text
    assert "  Slow#1.sleep for 0." in text and ", for which nobody waits now" in text
    assert "wait_for_slow (2 of them)" in text
    assert 'in wait_for_slow: await actor.nap("waited for", 60)' in text
    assert "  of asyncparl's own: " in text and "Link._send_refused" in text
    assert await forgotten == "forgotten"  # everything goes on


async def test_an_actor_says_what_it_runs_and_what_that_waits_for(slow: Any, said: Said) -> None:
    hanging: Any = Hanging()
    pid = await hanging.pid()
    calls = [hanging.in_another_actor(slow, 60), hanging.in_python(2.0), hanging.pid()]
    await trio.sleep(0.5)
    os.kill(pid, signal.SIGUSR1)
    text = await said.by("Hanging#1")
    assert "  Hanging.in_another_actor for 0." in text
    assert "  Hanging.in_python for 0." in text
    assert "  calls of Hanging that wait for their turn: 1" in text
    assert "  Slow#1.nap for 0." in text
    assert 'in in_another_actor: return str(await other.nap("hanging", seconds))' in text
    assert "threads, and where each of them is:\n  MainThread\n" in text
    assert "in in_python: " in text
    calls[0].cancel()
    assert await calls[2] == pid


@pytest.mark.parametrize("how", ["in_native_code", "in_the_event_loop"])
async def test_an_actor_that_hangs_says_so_too(slow: Any, said: Said, how: str) -> None:
    hanging: Any = Hanging()
    pid = await hanging.pid()
    call = getattr(hanging, how)(3.0)
    await trio.sleep(0.7)
    start = time.monotonic()
    os.kill(pid, signal.SIGUSR1)
    text = await said.by("Hanging#1")
    assert time.monotonic() - start < 2.0
    assert f"  Hanging.{how} for " in text
    assert f" in {how}: " in text
    await call
    await hanging.pid()  # so that it is over, there too
    os.kill(pid, signal.SIGUSR1)
    assert "no method runs" in await said.by("Hanging#1")


async def test_the_cluster_says_where_its_own_tasks_wait_and_nobody_dies_of_the_question(slow: Any, said: Said) -> None:
    pid = await slow.pid()
    zygote = psutil.Process(pid).parent()
    assert zygote is not None
    node = zygote.parent()
    assert node is not None
    for process in (node, zygote):
        process.send_signal(signal.SIGUSR1)
    text = await said.by("the private cluster of a program")
    assert "  WorkerPool.run\n" in text
    assert " in run: await self._deadlines_changed.wait()" in text
    assert await slow.pid() == pid
    async with Slow() as another:  # the zygote lives
        os.kill(await another.pid(), signal.SIGUSR1)
        assert "what Slow#2" in await said.by("Slow#2")


def test_a_program_without_async_says_it_while_it_waits(capfd: pytest.CaptureFixture[str]) -> None:
    with blocking.connect():
        slow: Any = Slow()
        threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGUSR1)).start()
        assert slow.nap("nap", 1.0).result() == "nap"
        text = capfd.readouterr().err
    assert "  Slow#1.nap for 0." in text
    assert 'assert slow.nap("nap", 1.0).result() == "nap"' in text
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL


def test_a_program_whose_block_another_thread_ended_does_not_answer_any_more(capfd: pytest.CaptureFixture[str]) -> None:
    heard: list[int] = []
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    cluster = blocking.connect()
    ours = signal.getsignal(signal.SIGUSR1)
    assert callable(ours)
    closing = threading.Thread(target=cluster.close)
    closing.start()
    closing.join()
    with blocking.connect():
        assert signal.getsignal(signal.SIGUSR1) is not ours
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    cluster = blocking.connect()
    ours = signal.getsignal(signal.SIGUSR1)
    assert callable(ours)
    ours.before = lambda number, _: heard.append(number)  # type: ignore[attr-defined]
    closing = threading.Thread(target=cluster.close)
    closing.start()
    closing.join()
    capfd.readouterr()
    os.kill(os.getpid(), signal.SIGUSR1)
    assert heard == [signal.SIGUSR1]
    assert "what " not in capfd.readouterr().err
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


async def test_it_is_listened_to_only_while_connected_and_only_if_nobody_else_does(said: Said) -> None:
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    heard: list[int] = []
    async with asyncparl.connect():
        ours = signal.getsignal(signal.SIGUSR1)
        assert callable(ours)
        async with asyncparl.connect():
            assert signal.getsignal(signal.SIGUSR1) is ours
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_DFL
    signal.signal(signal.SIGUSR1, lambda number, _: heard.append(number))
    try:
        async with asyncparl.connect():
            os.kill(os.getpid(), signal.SIGUSR1)
            await trio.lowlevel.checkpoint()
        assert heard == [signal.SIGUSR1]
    finally:
        signal.signal(signal.SIGUSR1, signal.SIG_DFL)
    async with asyncparl.connect():
        signal.signal(signal.SIGUSR1, signal.SIG_IGN)  # who comes later may have it too
    assert signal.getsignal(signal.SIGUSR1) is signal.SIG_IGN
    signal.signal(signal.SIGUSR1, signal.SIG_DFL)


async def test_what_listens_in_c_is_left_alone(tmp_path: Any) -> None:
    with (tmp_path / "stacks").open("w") as file:
        faulthandler.register(signal.SIGUSR1, file)
        try:
            async with asyncparl.connect():
                os.kill(os.getpid(), signal.SIGUSR1)
        finally:
            faulthandler.unregister(signal.SIGUSR1)
    assert "test_what_listens_in_c_is_left_alone" in (tmp_path / "stacks").read_text()


PROGRAM = textwrap.dedent("""
    import os, signal, sys
    import trio, asyncparl
    from tests.runtime.limited import Slow

    async def main():
        async with asyncparl.connect():
            slow = Slow()
            os.kill(await slow.pid(), signal.SIGUSR2)
            os.kill(os.getpid(), signal.SIGUSR2)
            print(signal.getsignal(signal.SIGUSR1) == signal.SIG_DFL)
            await trio.sleep(1)

    trio.run(main)
""")


def _run(choice: str) -> subprocess.CompletedProcess[str]:
    environ = os.environ | {"ASYNCPARL_DUMP_SIGNAL": choice}
    return subprocess.run([sys.executable, "-c", PROGRAM], env=environ, capture_output=True, text=True, check=False)


def test_another_signal_may_be_chosen() -> None:
    done = _run("usr2")
    assert done.returncode == 0, done.stderr
    assert done.stdout == "True\n"
    assert "--- what python (pid " in done.stderr
    assert "[Slow#1] --- what Slow#1 (pid " in done.stderr


def test_or_none() -> None:
    done = _run("none")
    assert done.returncode == -signal.SIGUSR2  # it does what it did before
    assert "--- what" not in done.stderr


def test_a_signal_that_does_not_exist_is_named() -> None:
    done = _run("SIGNONE")
    assert done.returncode == 1
    assert "ValueError: ASYNCPARL_DUMP_SIGNAL must be the name of a signal, such as SIGUSR2, or 'none'" in done.stderr


async def test_it_can_be_told_in_any_thread_while_everything_changes(slow: Any) -> None:
    texts: list[list[str]] = []

    def ask() -> None:
        texts.extend(describe_process("us") for _ in range(100))

    async def add() -> None:
        await slow.add(1, 2)

    async def churn() -> None:
        while True:
            async with trio.open_nursery() as nursery:
                for _ in range(10):
                    nursery.start_soon(add)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(churn)
        await trio.to_thread.run_sync(ask)
        nursery.cancel_scope.cancel()
    assert all(text[0].startswith("--- what us (pid ") and text[-1] == "---" for text in texts)


async def test_it_is_not_longer_than_anybody_reads(slow: Any) -> None:
    async with trio.open_nursery() as nursery:
        for number in range(200):
            nursery.start_soon(wait_for_slow, slow, name=f"task {number}")
        await trio.sleep(0.5)
        lines = describe_process("us")
        nursery.cancel_scope.cancel()
    assert len(lines) == MAX_LINES + 2
    assert "  ... and 150 more" in lines
    assert lines[-2].endswith(" lines more")


# --- deaths, and long waits -------------------------------------------------------------------------------------


async def test_the_death_of_an_actor_names_the_method_that_had_hung(slow: Any) -> None:
    hanging: Any = Hanging()
    await hanging.pid()
    call, other = hanging.in_native_code(30.0), hanging.pid()
    await trio.sleep(1.3)
    start = time.monotonic()
    await asyncparl.kill(hanging)
    assert time.monotonic() - start < 1.0
    for each in (call, other):
        with pytest.raises(asyncparl.ActorDied) as caught:
            await each
        reason = "it was killed by its owner, when it had been running in_native_code for 1 s"
        assert caught.value.reason.replace(" 2 s", " 1 s") == reason


async def test_what_had_just_begun_is_no_reason(slow: Any) -> None:
    call = slow.sleep("sleep", 30.0)
    await trio.sleep(0.1)
    await asyncparl.kill(slow)
    with pytest.raises(asyncparl.ActorDied) as caught:
        await call
    assert caught.value.reason == "it was killed by its owner"


async def test_an_actor_that_stands_still_is_killed_all_the_same_at_once(slow: Any) -> None:
    os.kill(await slow.pid(), signal.SIGSTOP)
    start = time.monotonic()
    await asyncparl.kill(slow)
    assert time.monotonic() - start < 1.0


async def test_calls_that_are_waited_for_for_long_are_warned_of_once_if_the_program_wants(
    caplog: pytest.LogCaptureFixture,
) -> None:
    async with asyncparl.connect(warn_after_s=1.0):
        slow: Any = Slow()
        await slow.nap("short", 0.1)
        forgotten = slow.nap("forgotten", 2.2)
        caplog.clear()  # the machine may be so slow that the start of the actor takes long
        assert await slow.nap("long", 2.0) == "long"
        await trio.sleep(0.5)
        assert forgotten.done()
    [record] = caplog.records
    assert (record.name, record.levelno) == ("asyncparl", logging.WARNING)
    assert record.getMessage().startswith("asyncparl: Slow#1.nap has been waited for for 1.")
    assert (record.actor, record.method) == ("Slow#1", "nap")  # type: ignore[attr-defined]
    assert record.waited_s > 1.0  # type: ignore[attr-defined]


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), "60"])
def test_a_time_that_makes_no_sense_is_one_clear_error(value: Any) -> None:
    async def main() -> None:
        async with asyncparl.connect(warn_after_s=value):
            pass

    with pytest.raises((TypeError, ValueError), match=r"^warn_after_s must be "):
        trio.run(main)
    with pytest.raises((TypeError, ValueError), match=r"^warn_after_s must be "):
        blocking.connect(warn_after_s=value)
