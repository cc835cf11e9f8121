"""Memory that both ends of a connection share: how it gets there, who may break it, and what is left of it."""

from __future__ import annotations

import gc
import os
import random
import resource
import socket
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest
import trio

from asyncparl.transport import Channel, Listener, dial, listen, sharing
from asyncparl.transport.arena import Arena
from asyncparl.transport.handshake import COME_IN, MEMORY, NONCE_BYTES, REPLY_BYTES, DialerHandshake
from asyncparl.transport.mapping import MAX_SHARED_BYTES, Mapping, create_memory
from asyncparl.transport.nng import NngChannel
from tests.transport.addresses import FRESH_ADDRESS
from tests.transport.pairs import expect_joined, join

HALF = 1 << 22
DATA = bytes(range(256)) * 1000


async def _pair(listener: Listener, shared_bytes: int = HALF) -> tuple[Channel, Channel]:
    return await join(listener, partial(dial, listener.address, shared_bytes=shared_bytes))


def _arenas(channels: tuple[Channel, Channel]) -> tuple[Arena, Arena]:
    dialer, acceptor = channels
    assert dialer.arena is not None
    assert acceptor.arena is not None
    return dialer.arena, acceptor.arena


def _lend(arena: Arena, data: bytes) -> int:
    offset = arena.lend(data)
    assert offset is not None
    return offset


def _mappings() -> list[str]:
    return [line for line in Path("/proc/self/maps").read_text().splitlines() if "memfd:asyncparl" in line]


@contextmanager
def _file(data: bytes) -> Iterator[int]:
    with tempfile.TemporaryFile() as file:
        file.write(data)
        file.flush()
        yield file.fileno()


# What a dialer may send instead of memory


def _unsealed(num_bytes: int) -> int:
    fd = os.memfd_create("x", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, num_bytes)
    return fd


def _temporary_file() -> int:
    fd, path = tempfile.mkstemp()
    os.unlink(path)
    os.ftruncate(fd, 2 * HALF)
    return fd


BAD_MEMORY: dict[str, Callable[[], int]] = {
    "a file": _temporary_file,
    "a device": lambda: os.open("/dev/zero", os.O_RDWR),
    "a socket": lambda: socket.socket(socket.AF_UNIX).detach(),
    "memory that can shrink": lambda: _unsealed(2 * HALF),
    "nothing": lambda: create_memory(0),
    "a broken page": lambda: create_memory(2 * HALF + 5),
    "three pages": lambda: create_memory(3 * 4096),
    "too much": lambda: create_memory(MAX_SHARED_BYTES + 8192),
}


async def _greet(listener: Listener) -> socket.socket:
    """A dialer that offers memory, up to its proof."""
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(listener.address.removeprefix("ipc://"))
    connection.settimeout(20)
    dialer = DialerHandshake(
        None, max_message_bytes=1 << 20, encrypt=False, share=True, route="", nonce=os.urandom(NONCE_BYTES)
    )
    connection.send(dialer.hello)
    reply = await trio.to_thread.run_sync(connection.recv, REPLY_BYTES, socket.MSG_WAITALL)
    proof, admission = dialer.answer(reply)
    assert admission.shares_memory
    connection.send(proof)
    return connection


async def _accept_others(listener: Listener, failures: list[OSError]) -> None:
    """What a program does with its visitors."""
    while True:
        visitor = await listener.accept_visitor()
        try:
            channel = visitor.open()
        except OSError as error:
            failures.append(error)
            continue
        with channel:
            await channel.send([b"welcome"])


@pytest.mark.parametrize("kind", BAD_MEMORY)
async def test_who_passes_something_else_than_memory_is_hung_up_on_and_disturbs_nobody(kind: str) -> None:
    failures: list[OSError] = []
    with trio.fail_after(60), listen(FRESH_ADDRESS["ipc"]()) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept_others, listener, failures)
            with await _greet(listener) as connection:
                fd = BAD_MEMORY[kind]()
                socket.send_fds(connection, [MEMORY], [fd])
                os.close(fd)
                assert await trio.to_thread.run_sync(connection.recv, 1) == COME_IN
                assert await trio.to_thread.run_sync(connection.recv, 1) == b""
            [failure] = failures
            assert isinstance(failure, ConnectionAbortedError)
            assert "memory" in str(failure)
            with await dial(listener.address, shared_bytes=HALF) as channel:
                assert bytes(await channel.receive()) == b"welcome"
            nursery.cancel_scope.cancel()


async def test_who_passes_no_descriptor_has_a_channel_without_an_arena() -> None:
    with trio.fail_after(60), listen(FRESH_ADDRESS["ipc"]()) as listener:
        async with trio.open_nursery() as nursery:
            accepted: list[Channel] = []

            async def accept() -> None:
                accepted.append(await listener.accept())

            nursery.start_soon(accept)
            with await _greet(listener) as connection:
                connection.send(MEMORY)
                assert await trio.to_thread.run_sync(connection.recv, 1) == COME_IN
                connection.setblocking(False)
                with NngChannel(
                    socket.socket(fileno=connection.detach()), max_send_bytes=99, max_receive_bytes=99
                ) as a:
                    await trio.testing.wait_all_tasks_blocked()
                    with accepted[0] as b:
                        assert b.arena is None
                        await expect_joined(a, b)


@pytest.mark.parametrize("instead", [b"", b"x", b"\x00"])
async def test_who_never_sends_the_memory_is_no_guest(instead: bytes) -> None:
    failures: list[OSError] = []
    with trio.fail_after(60), listen(FRESH_ADDRESS["ipc"]()) as listener:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept_others, listener, failures)
            with await _greet(listener) as silent:
                silent.send(instead)
                with await dial(listener.address, shared_bytes=HALF) as channel:
                    assert bytes(await channel.receive()) == b"welcome"
                silent.setblocking(False)
                with pytest.raises(ConnectionResetError if instead else BlockingIOError):
                    silent.recv(1)
            nursery.cancel_scope.cancel()
    assert not failures


async def test_a_connection_handed_over_takes_its_memory_along() -> None:
    with trio.fail_after(60), listen(FRESH_ADDRESS["ipc"]()) as listener:
        here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        handed: list[Channel] = []

        async def hand_over() -> None:
            from asyncparl.transport import open_admitted

            connection, admission = (await listener.accept_visitor()).hand_over()
            with connection:
                socket.send_fds(here, [b"x"], [connection.fileno()])
            _, [fd], _, _ = socket.recv_fds(there, 1, 1)
            handed.append(open_admitted(socket.socket(fileno=fd), admission))

        with here, there:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(hand_over)
                dialed = await dial(listener.address, shared_bytes=HALF)
            with dialed, handed[0]:
                for lender, borrower in (_arenas((dialed, handed[0])), _arenas((handed[0], dialed))):
                    assert borrower.borrow(_lend(lender, DATA), len(DATA)) == DATA


async def test_the_memory_cannot_be_cut_by_whoever_has_its_descriptor() -> None:
    fd = create_memory(2 * HALF)
    try:
        for call in (partial(os.ftruncate, fd, 0), partial(os.ftruncate, fd, 4 * HALF)):
            with pytest.raises(PermissionError):
                call()
    finally:
        os.close(fd)


# Systems without it


@contextmanager
def _limit_of_file_size(num_bytes: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (num_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


async def test_where_memory_is_refused_channels_work_without_and_it_is_said_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    sharing._tell.cache_clear()
    with trio.fail_after(60), listen(FRESH_ADDRESS["ipc"]()) as listener, _limit_of_file_size(HALF):
        for _ in range(2):
            a, b = await _pair(listener)
            with a, b:
                assert a.arena is b.arena is None
                await expect_joined(a, b)
    assert capfd.readouterr().err.count("Large arrays go through sockets") == 1


async def test_where_nothing_can_be_mapped_channels_work_without_and_it_is_said_once(
    capfd: pytest.CaptureFixture[str],
) -> None:
    sharing._tell.cache_clear()
    soft, hard = resource.getrlimit(resource.RLIMIT_AS)
    size = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    with trio.fail_after(60), listen(FRESH_ADDRESS["ipc"]()) as listener:
        a, b = await _pair(listener, 1 << 20)  # whatever else is needed is there by now
        with a, b:
            resource.setrlimit(resource.RLIMIT_AS, (size + (256 << 20), hard))
            try:
                c, d = await _pair(listener, 1 << 30)
            finally:
                resource.setrlimit(resource.RLIMIT_AS, (soft, hard))
            with c, d:
                assert c.arena is d.arena is None
                await expect_joined(c, d)
    assert capfd.readouterr().err.count("cannot be mapped") == 1


# What is left of it


async def test_memory_is_freed_with_the_last_view_and_needs_no_descriptor() -> None:
    before = _mappings()
    with trio.fail_after(60), listen(FRESH_ADDRESS["ipc"]()) as listener:
        a, b = await _pair(listener)
        assert len(_mappings()) == len(before) + 2
        assert not any(
            "memfd" in os.readlink(f"/proc/self/fd/{fd.name}")
            for fd in Path("/proc/self/fd").iterdir()
            if fd.is_symlink()
        )
        with a, b:
            lender, borrower = _arenas((a, b))
            view = borrower.borrow(_lend(lender, DATA), len(DATA))[100:]
        del lender, borrower
        assert len(_mappings()) == len(before) + 1
        assert view == DATA[100:]
        del view
        assert _mappings() == before


async def test_many_channels_leave_no_mapping() -> None:
    before = _mappings()
    with trio.fail_after(60), listen(FRESH_ADDRESS["ipc"]()) as listener:
        for _ in range(20):
            a, b = await _pair(listener)
            with a, b:
                lender, borrower = _arenas((b, a))
                borrower.borrow(_lend(lender, DATA), len(DATA))
        del lender, borrower, a, b
    gc.collect()
    assert _mappings() == before


async def test_pages_that_are_not_needed_any_more_go_back_to_the_system() -> None:
    fd = create_memory(2 * HALF)
    lender, borrower = (Arena(Mapping(fd), is_dialer=is_dialer) for is_dialer in (True, False))

    def use(data: bytes) -> None:
        assert borrower.borrow(_lend(lender, data), len(data)) == data
        for offset in borrower.take_returns():
            lender.take_back(offset)

    use(b"x" * HALF)
    assert os.fstat(fd).st_blocks * 512 >= HALF
    for _ in range(200):
        use(DATA)
    assert os.fstat(fd).st_blocks * 512 <= 2 * len(DATA)
    use(b"y" * HALF)
    os.close(fd)


async def test_threads_may_lend_hold_and_drop_as_they_like() -> None:
    mapping = Mapping(None, 2 << 20)
    lender, borrower = (Arena(mapping, is_dialer=is_dialer) for is_dialer in (True, False))
    num_lent, wrong = 0, list[str]()

    def use(seed: int) -> None:
        nonlocal num_lent
        lots, held = random.Random(seed), list[tuple[memoryview, int]]()
        for _ in range(2000):
            size, fill = lots.randrange(1, 20_000), lots.randrange(256)
            offset = lender.lend(bytes([fill]) * size)
            if offset is not None:
                num_lent += 1
                held.append((borrower.borrow(offset, size), fill))
            if held and (offset is None or lots.random() < 0.7):
                view, fill = held.pop(lots.randrange(len(held)))
                if bytes(view) != bytes([fill]) * len(view):
                    wrong.append(f"{fill} is overwritten")
                del view
            for returned in borrower.take_returns():
                lender.take_back(returned)

    async with trio.open_nursery() as nursery:
        for seed in range(4):
            nursery.start_soon(trio.to_thread.run_sync, use, seed)
    assert not wrong
    assert num_lent > 4000
    for returned in borrower.take_returns():
        lender.take_back(returned)
    assert (lender.num_in_use, lender.num_lent) == (0, 0)
