"""NNG channels cost no more than they should, and give everything back."""

from __future__ import annotations

import errno
import gc
import os
import resource
import socket
import stat
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest
import trio

from asyncparl.transport import Channel, Listener, dial, listen
from tests.transport.addresses import FRESH_ADDRESS

SCHEMES = ("ipc", "tcp")


async def _connect(listener: Listener, stack: ExitStack) -> tuple[Channel, Channel]:
    """A new channel of the listener, as seen by the dialer and by the acceptor; the stack closes both."""
    accepted: list[Channel] = []

    async def accept() -> None:
        accepted.append(stack.enter_context(await listener.accept()))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        dialed = stack.enter_context(await dial(listener.address))
    return dialed, accepted[0]


def _num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


async def _settled(limit: int) -> int:
    """The number of open files, once it is small enough or stays too large. NNG closes some in the background."""
    for _ in range(200):
        if _num_files() <= limit:
            break
        await trio.sleep(0.01)
    return _num_files()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_one_listener_serves_300_channels_with_the_same_few_threads(scheme: str) -> None:
    with ExitStack() as stack:
        listener = stack.enter_context(listen(FRESH_ADDRESS[scheme]()))
        pairs = [await _connect(listener, stack)]
        files, threads = _num_files(), _num_threads()
        pairs += [await _connect(listener, stack) for _ in range(299)]
        assert _num_threads() <= threads
        assert await _settled(files + 299 * 6) <= files + 299 * 6  # at each end a connection and a pipe
        for number, (dialed, _) in enumerate(pairs):
            dialed.send_nowait([number.to_bytes(4)])
        for number, (_, accepted) in enumerate(pairs):
            assert int.from_bytes(await accepted.receive()) == number


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_opening_and_closing_again_and_again_grows_nothing(scheme: str) -> None:
    async def one_cycle() -> None:
        with listen(FRESH_ADDRESS[scheme]()) as listener, ExitStack() as stack:
            dialed, accepted = await _connect(listener, stack)
            await dialed.send([bytes(100_000)])
            await accepted.receive()
            await accepted.send([b"unread"])

    for _ in range(20):
        await one_cycle()
    files, threads, memory = _num_files(), _num_threads(), _resident_bytes()
    for _ in range(200):
        await one_cycle()
    gc.collect()
    assert await _settled(files) <= files
    assert _num_threads() <= threads
    assert _resident_bytes() - memory < 4 << 20


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_closing_at_once_leaves_nothing_open(scheme: str) -> None:
    async def accept_and_close() -> None:
        while True:
            (await listener.accept()).close()

    with listen(FRESH_ADDRESS[scheme]()) as listener:
        files = _num_files()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(accept_and_close)
            for number in range(100):
                try:
                    with trio.move_on_after(0.001 * (number % 5)):
                        (await dial(listener.address)).close()
                except ConnectionError:
                    pass  # the other side was faster
            nursery.cancel_scope.cancel()
        assert await _settled(files + 2) <= files + 2  # NNG's own, if this is the first test


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_memory_of_messages_is_given_back(scheme: str) -> None:
    with listen(FRESH_ADDRESS[scheme]()) as listener, ExitStack() as stack:
        dialed, accepted = await _connect(listener, stack)
        for _ in range(1000):  # the heap finds its size
            await _pass_on(dialed, accepted)
        memory = _resident_bytes()
        for _ in range(10_000):
            await _pass_on(dialed, accepted)
        assert _resident_bytes() - memory < 4 << 20  # the 20,000 messages had 540 MB in all


async def _pass_on(dialed: Channel, accepted: Channel) -> None:
    """One small message, and one whose memory is lent."""
    dialed.send_nowait([_SMALL])
    dialed.send_nowait([_LARGE, _SMALL])
    await accepted.receive()
    await accepted.receive()


_SMALL, _LARGE = bytes(7000), bytes(40_000)


@pytest.mark.parametrize("has_waited", [False, True])
@pytest.mark.parametrize("scheme", SCHEMES)
async def test_refused_messages_leak_nothing(scheme: str, has_waited: bool) -> None:
    with listen(FRESH_ADDRESS[scheme]()) as listener, ExitStack() as stack:
        dialed, _accepted = await _connect(listener, stack)
        message = bytes(1 << 18)
        if has_waited:  # from then on a full queue is recognised before anything is copied
            with trio.move_on_after(0.1):
                while True:
                    await dialed.send([message])
        memory, num_sent, num_refused = _resident_bytes(), dialed.statistics().num_sent, 0
        while num_refused < 200:
            try:
                dialed.send_nowait([message])
            except trio.WouldBlock:
                num_refused += 1
        sent_bytes = (dialed.statistics().num_sent - num_sent) * len(message)
        assert _resident_bytes() - memory < sent_bytes + (10 << 20)  # 50 MB were refused


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_the_last_view_of_a_message_may_die_in_another_thread(scheme: str) -> None:
    with listen(FRESH_ADDRESS[scheme]()) as listener, ExitStack() as stack:
        dialed, accepted = await _connect(listener, stack)
        memory = 0
        for number in range(400):
            await dialed.send([bytes(1 << 20)])
            views = [await accepted.receive()]
            part = views[0][10:20]
            thread = threading.Thread(target=views.clear)
            thread.start()
            thread.join()
            assert part == bytes(10)
            if number == 100:
                memory = _resident_bytes()
        assert _resident_bytes() - memory < 20 << 20


# Socket files


async def test_a_socket_file_is_for_its_owner_only_and_goes_with_its_listener() -> None:
    address = FRESH_ADDRESS["ipc"]()
    path = Path(address.removeprefix("ipc://"))
    with ExitStack() as stack, listen(address) as listener:
        assert listener.address == address
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        await _connect(listener, stack)
        assert [entry.name for entry in path.parent.iterdir() if entry.is_socket()] == [path.name]
        listener.close()
        assert not path.exists()


async def test_the_file_of_a_dead_listener_is_replaced() -> None:
    address = FRESH_ADDRESS["ipc"]()
    path = address.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with pytest.raises(ConnectionRefusedError):
        await dial(address)
    with listen(address) as listener, ExitStack() as stack:
        await _connect(listener, stack)


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_address_in_use_is_refused(scheme: str) -> None:
    with listen(FRESH_ADDRESS[scheme]()) as listener, ExitStack() as stack:
        with pytest.raises(OSError, match="in use") as caught:
            listen(listener.address)
        assert caught.value.errno == errno.EADDRINUSE
        await _connect(listener, stack)


async def test_a_file_that_is_no_socket_is_left_alone(tmp_path: Path) -> None:
    file = tmp_path / "f"
    file.write_text("precious")
    with pytest.raises(OSError, match="in use"):
        listen(f"ipc://{file}")
    assert file.read_text() == "precious"


async def test_a_listener_does_not_remove_the_file_of_its_successor() -> None:
    address = FRESH_ADDRESS["ipc"]()
    path = Path(address.removeprefix("ipc://"))
    first = listen(address)
    path.unlink()
    with listen(address) as second, ExitStack() as stack:
        first.close()
        assert path.exists()
        await _connect(second, stack)


async def test_dialing_where_no_file_is_says_so() -> None:
    with pytest.raises(FileNotFoundError):
        await dial(FRESH_ADDRESS["ipc"]())


async def test_dialing_a_port_where_nobody_listens_is_refused() -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        with pytest.raises(ConnectionRefusedError):
            await dial(f"tcp://127.0.0.1:{unused.getsockname()[1]}")


async def test_a_full_backlog_makes_the_dialer_wait_and_then_give_up() -> None:
    address = FRESH_ADDRESS["ipc"]()
    with socket.socket(socket.AF_UNIX) as listening, socket.socket(socket.AF_UNIX) as first:
        listening.bind(address.removeprefix("ipc://"))
        listening.listen(0)
        first.connect(address.removeprefix("ipc://"))
        with pytest.raises(TimeoutError):
            await dial(address, timeout_s=0.1)


# Running out of something


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_running_out_of_file_descriptors_is_an_os_error_and_leaves_the_channels_alone(scheme: str) -> None:
    with listen(FRESH_ADDRESS[scheme]()) as listener, ExitStack() as stack:
        dialed, accepted = await _connect(listener, stack)
        failures: list[OSError] = []
        for room in range(12):  # so that it fails at each place in turn
            with _few_file_descriptors(room):
                try:
                    with trio.move_on_after(0.05):
                        await _connect(listener, stack)
                except* OSError as group:
                    failures.append(_first(group))
        assert {failure.errno for failure in failures} == {errno.EMFILE}
        await dialed.send([b"x"])
        assert bytes(await accepted.receive()) == b"x"
        await _connect(listener, stack)


@contextmanager
def _few_file_descriptors(room: int) -> Iterator[None]:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + 20, hard))
    taken: list[int] = []
    try:
        with pytest.raises(OSError, match="Too many open files"):
            while True:
                taken.append(os.dup(0))
        for _ in range(room):
            os.close(taken.pop())
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        for fd in taken:
            os.close(fd)


def _first(group: BaseExceptionGroup[OSError]) -> OSError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, OSError)
    return error


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_abandoned_channel_is_closed_with_a_warning(scheme: str) -> None:
    with listen(FRESH_ADDRESS[scheme]()) as listener:
        pair: list[Channel] = []
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_accept_into, listener, pair)
            dialed = await dial(listener.address)
        with dialed:
            with pytest.warns(ResourceWarning, match="unclosed channel"):
                _forget(pair)
            with trio.fail_after(10), pytest.raises(trio.BrokenResourceError):
                await dialed.receive()


def _forget(channels: list[Channel]) -> None:
    channels.clear()
    gc.collect()


async def _accept_into(listener: Listener, channels: list[Channel]) -> None:
    channels.append(await listener.accept())
