"""NNG channels cost no more than they should, and give everything back."""

from __future__ import annotations

import errno
import gc
import os
import socket
import stat
import threading
from pathlib import Path

import pytest
import trio

from asyncparl.transport import Channel, Listener, dial, listen
from tests.transport.addresses import FRESH_ADDRESS

SCHEMES = ("ipc", "tcp")


async def _connect(listener: Listener) -> tuple[Channel, Channel]:
    accepted: list[Channel] = []

    async def accept() -> None:
        accepted.append(await listener.accept())

    async with trio.open_nursery() as nursery:
        nursery.start_soon(accept)
        dialed = await dial(listener.address)
    return dialed, accepted[0]


def _num_files() -> int:
    return len(os.listdir("/proc/self/fd"))


def _num_threads() -> int:
    return len(os.listdir("/proc/self/task"))


def _resident_bytes() -> int:
    fields = Path("/proc/self/statm").read_text().split()
    return int(fields[1]) * os.sysconf("SC_PAGE_SIZE")


async def _settled(count: int, limit: int) -> int:
    """NNG gives file descriptors back in the background."""
    for _ in range(200):
        if _num_files() <= limit:
            break
        await trio.sleep(0.01)
    return _num_files() - count


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_one_listener_serves_300_channels_with_the_same_few_threads(scheme: str) -> None:
    with listen(FRESH_ADDRESS[scheme]()) as listener:
        pairs = [await _connect(listener)]
        files, threads = _num_files(), _num_threads()
        pairs += [await _connect(listener) for _ in range(299)]
        assert _num_threads() == threads
        assert await _settled(files, files + 299 * 4) <= 299 * 4  # a connection and a wake-up, at both ends
        for number, (dialed, _) in enumerate(pairs):
            dialed.send_nowait([number.to_bytes(4)])
        for number, (_, accepted) in enumerate(pairs):
            assert int.from_bytes(await accepted.receive()) == number
        for dialed, accepted in pairs:
            dialed.close()
            accepted.close()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_opening_and_closing_again_and_again_grows_nothing(scheme: str) -> None:
    async def one_cycle() -> None:
        with listen(FRESH_ADDRESS[scheme]()) as listener:
            dialed, accepted = await _connect(listener)
            with dialed, accepted:
                await dialed.send([bytes(100_000)])
                await accepted.receive()
                await accepted.send([b"unread"])

    for _ in range(20):
        await one_cycle()
    files, threads, memory = _num_files(), _num_threads(), _resident_bytes()
    for _ in range(200):
        await one_cycle()
    gc.collect()
    assert await _settled(files, files) <= 0
    assert _num_threads() <= threads
    assert _resident_bytes() - memory < 4 << 20


async def test_memory_of_messages_is_given_back() -> None:
    with listen(FRESH_ADDRESS["ipc"]()) as listener:
        dialed, accepted = await _connect(listener)
        with dialed, accepted:
            for _ in range(1000):  # the heap finds its size
                await _pass_on(dialed, accepted)
            memory = _resident_bytes()
            for _ in range(20_000):
                await _pass_on(dialed, accepted)
            assert _resident_bytes() - memory < 4 << 20  # the messages had 280 MB in all


async def _pass_on(dialed: Channel, accepted: Channel) -> None:
    """One small and one lent message, and one that is refused."""
    for _ in range(64):
        try:
            dialed.send_nowait([_SMALL])
            dialed.send_nowait([_LARGE, _SMALL])
        except trio.WouldBlock:
            break
        await accepted.receive()
        await accepted.receive()
        return


_SMALL, _LARGE = bytes(1000), bytes(40_000)


async def test_refused_messages_leak_nothing() -> None:
    with listen(FRESH_ADDRESS["ipc"]()) as listener:
        dialed, accepted = await _connect(listener)
        with dialed, accepted:
            message = bytes(1 << 20)
            with trio.move_on_after(0.2):
                while True:
                    await dialed.send([message])
            memory = _resident_bytes()
            for _ in range(200):
                with pytest.raises(trio.WouldBlock):
                    dialed.send_nowait([message])
                with trio.move_on_after(0):
                    await dialed.send([message])
            assert _resident_bytes() - memory < 20 << 20


async def test_the_last_view_of_a_message_may_die_in_another_thread() -> None:
    with listen(FRESH_ADDRESS["ipc"]()) as listener:
        dialed, accepted = await _connect(listener)
        with dialed, accepted:
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
    with listen(address) as listener:
        assert listener.address == address
        assert stat.S_IMODE(path.stat().st_mode) == 0o600
        dialed, accepted = await _connect(listener)
        assert [entry.name for entry in path.parent.iterdir() if entry.is_socket()] == [path.name]
    assert not path.exists()
    dialed.close()
    accepted.close()


async def test_the_file_of_a_dead_listener_is_replaced() -> None:
    address = FRESH_ADDRESS["ipc"]()
    path = address.removeprefix("ipc://")
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(path)
    with pytest.raises(ConnectionRefusedError):
        await dial(address)
    with listen(address) as listener:
        for channel in await _connect(listener):
            channel.close()


@pytest.mark.parametrize("scheme", SCHEMES)
async def test_an_address_in_use_is_refused(scheme: str) -> None:
    with listen(FRESH_ADDRESS[scheme]()) as listener:
        with pytest.raises(OSError, match="in use") as caught:
            listen(listener.address)
        assert caught.value.errno == errno.EADDRINUSE
        for channel in await _connect(listener):
            channel.close()


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
    with listen(address) as second:
        first.close()
        assert path.exists()
        for channel in await _connect(second):
            channel.close()


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


async def test_running_out_of_file_descriptors_is_an_os_error_and_leaves_the_channels_alone() -> None:
    import resource

    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with listen(FRESH_ADDRESS["ipc"]()) as listener:
        pairs = [await _connect(listener)]
        failure: OSError | None = None
        for room in range(1, 12):  # so that it fails at each place in turn
            resource.setrlimit(resource.RLIMIT_NOFILE, (max(map(int, os.listdir("/proc/self/fd"))) + room, hard))
            try:
                with trio.move_on_after(0.05):
                    pairs.append(await _connect(listener))
            except* OSError as group:
                failure = _first(group)
            finally:
                resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        assert failure is not None
        assert failure.errno == errno.EMFILE
        await pairs[0][0].send([b"x"])
        assert await pairs[0][1].receive() == b"x"
        pairs.append(await _connect(listener))
        for pair in pairs:
            for channel in pair:
                channel.close()


def _first(group: BaseExceptionGroup[OSError]) -> OSError:
    error: BaseException = group
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    assert isinstance(error, OSError)
    return error


async def test_an_abandoned_channel_is_closed_with_a_warning() -> None:
    with listen(FRESH_ADDRESS["ipc"]()) as listener:
        dialed, accepted = await _connect(listener)
        with dialed:
            with pytest.warns(ResourceWarning, match="unclosed channel"):
                del accepted
                gc.collect()
            with trio.fail_after(10), pytest.raises(trio.BrokenResourceError):
                await dialed.receive()
