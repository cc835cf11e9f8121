"""NNG channels to other processes: how their end is noticed, and what a fork may still do."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
import trio
import trio.testing

from asyncparl.transport import Channel, listen
from tests.transport.addresses import FRESH_ADDRESS
from tests.transport.peers import peer_process

KINDS = ("ipc", "tcp", "tls")
TIMEOUT_S = 30.0


def _fresh_address(kind: str) -> str:
    return FRESH_ADDRESS["tcp" if kind == "tls" else kind]()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_killed_peer_is_noticed_by_a_waiting_receiver(kind: str) -> None:
    with trio.fail_after(TIMEOUT_S), listen(_fresh_address(kind)) as listener:
        async with peer_process("send_and_leave", listener.address, encrypt=kind == "tls") as process:
            with await listener.accept() as channel:
                assert bytes(await channel.receive()) == b"hello"
                async with trio.open_nursery() as nursery:

                    async def receive() -> None:
                        with pytest.raises(trio.BrokenResourceError):
                            await channel.receive()

                    nursery.start_soon(receive)
                    await trio.testing.wait_all_tasks_blocked(0.01)
                    process.kill()


@pytest.mark.parametrize("kind", KINDS)
async def test_a_killed_peer_is_noticed_by_a_waiting_sender(kind: str) -> None:
    with trio.fail_after(TIMEOUT_S), listen(_fresh_address(kind)) as listener:
        async with peer_process("ignore", listener.address, encrypt=kind == "tls") as process:
            with await listener.accept() as channel:
                assert bytes(await channel.receive()) == b"hello"
                async with trio.open_nursery() as nursery:
                    nursery.start_soon(_send_until_it_fails, channel)
                    await _wait_until_it_sends_no_more(channel)
                    process.kill()


async def _send_until_it_fails(channel: Channel) -> None:
    with pytest.raises(trio.BrokenResourceError):
        while True:
            await channel.send([bytes(64 * 1024)])


async def _wait_until_it_sends_no_more(channel: Channel) -> None:
    num_sent = -1
    while channel.statistics().num_sent > num_sent:
        num_sent = channel.statistics().num_sent
        await trio.sleep(0.1)


@pytest.mark.parametrize("kind", KINDS)
async def test_a_peer_that_exits_without_closing_is_noticed(kind: str) -> None:
    with trio.fail_after(TIMEOUT_S), listen(_fresh_address(kind)) as listener:
        async with peer_process("send_and_leave", listener.address, encrypt=kind == "tls") as process:
            with await listener.accept() as channel:
                assert bytes(await channel.receive()) == b"hello"
                await channel.send([b"now leave"])
                with pytest.raises(trio.BrokenResourceError):
                    await channel.receive()
                assert await process.wait() == 0  # NNG's clean-up at exit does not hang


@pytest.mark.parametrize("kind", KINDS)
async def test_a_listener_goes_on_after_a_peer_was_killed(kind: str) -> None:
    with trio.fail_after(TIMEOUT_S), listen(_fresh_address(kind)) as listener:
        for _ in range(2):
            async with peer_process("echo", listener.address, encrypt=kind == "tls") as process:
                with await listener.accept() as channel:
                    await channel.send([b"x"])
                    assert bytes(await channel.receive()) == b"x"
                    process.kill()
                    with pytest.raises(trio.BrokenResourceError):
                        await channel.receive()


# Outside of Trio, because no Trio program survives a fork: parent and child would share what its loop waits with.
FORK = """
import os, sys, time, trio
from asyncparl.transport import dial, listen

async def connect():
    listener = listen(sys.argv[1])
    accepted = []
    async def accept():
        accepted.append(await listener.accept())
    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        dialed = await dial(listener.address)
    return listener, dialed, accepted[0]

async def try_everything():
    for call in (lambda: dialed.send([b"x"]), dialed.receive, dialed.wait_sendable, listener.accept,
                 lambda: dial(listener.address)):
        try: await call()
        except RuntimeError as error: assert "fork" in str(error)
        else: raise AssertionError
    for call in (lambda: dialed.send_nowait([b"x"]), dialed.receive_nowait, lambda: listen("tcp://127.0.0.1:0")):
        try: call()
        except RuntimeError as error: assert "fork" in str(error)
        else: raise AssertionError

listener, dialed, accepted = trio.run(connect)
pid = os.fork()
if pid == 0:
    trio.run(try_everything)
    dialed.close(); accepted.close(); listener.close()  # nothing of this reaches the parent
    del dialed, accepted, listener
    sys.exit(7)
_, status = os.waitpid(pid, 0)
assert os.waitstatus_to_exitcode(status) == 7, status
dialed.send_nowait([b"still"])
while True:
    try:
        assert accepted.receive_nowait() == b"still"
        break
    except trio.WouldBlock:
        time.sleep(0.001)
path = sys.argv[1].removeprefix("ipc://")
assert path.startswith("tcp:") or os.path.exists(path)
for thing in (dialed, accepted, listener):
    thing.close()
assert not os.path.exists(path)
print("parent works")
"""


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_a_forked_child_gets_a_clear_error_ends_cleanly_and_does_not_disturb_its_parent(scheme: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, FRESH_ADDRESS[scheme]()],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "parent works\n", "")


@pytest.mark.parametrize("scheme", ["ipc", "tcp"])
def test_channels_that_nobody_closed_do_not_keep_a_process_from_ending(scheme: str) -> None:
    script = FORK[: FORK.index("pid =")] + "import gc\nlistener.close()\ndel dialed, accepted\ngc.collect()\n"
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", script, FRESH_ADDRESS[scheme]()],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=False,
    )
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_fork_before_the_first_channel_may_use_channels() -> None:
    script = """
    import os, sys, trio
    import asyncparl.transport.nng
    from asyncparl.transport import listen
    pid = os.fork()
    async def main():
        listen("tcp://127.0.0.1:0").close()
    trio.run(main)
    if pid:
        assert os.waitpid(pid, 0)[1] == 0
    """
    subprocess.run([sys.executable, "-c", textwrap.dedent(script)], timeout=TIMEOUT_S, check=True)


@pytest.mark.parametrize(("scheme", "limit"), [("ipc", 1), ("tcp", 8)])
def test_there_are_the_same_few_threads_whatever_the_machine(scheme: str, limit: int) -> None:
    script = FORK[: FORK.index("pid =")] + "print(len(os.listdir('/proc/self/task')))\n"
    script += "for thing in (dialed, accepted, listener): thing.close()\n"
    done = subprocess.run(
        [sys.executable, "-c", script, FRESH_ADDRESS[scheme]()],
        capture_output=True,
        timeout=TIMEOUT_S,
        check=True,
        text=True,
    )
    assert int(done.stdout) <= limit


@pytest.mark.parametrize(
    "statement",
    [
        "import asyncparl.transport",
        "import asyncparl.transport.memory",
        "import asyncparl.transport.endpoints, asyncparl.transport.unix",
    ],
)
def test_pynng_is_imported_only_when_an_address_needs_it(statement: str) -> None:
    script = f"{statement}; import sys; assert 'pynng' not in sys.modules"
    subprocess.run([sys.executable, "-c", script], timeout=TIMEOUT_S, check=True)
