"""Shared memory and processes: those that are forked, and those that end."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable

from asyncparl.transport.arena import Arena
from asyncparl.transport.mapping import Mapping

HALF = 1 << 22
DATA = bytes(range(256)) * 1000


def _lend(arena: Arena, data: bytes) -> int:
    offset = arena.lend(data)
    assert offset is not None
    return offset


def _reserve(arena: Arena, num_bytes: int) -> memoryview:
    space = arena.reserve(num_bytes)
    assert space is not None
    return space.view


def _in_a_child(check: Callable[[], bool]) -> bool:
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if check() else 2
        finally:
            os._exit(code)
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0


def test_what_a_child_can_see_is_not_used_again_and_the_child_uses_nothing() -> None:
    mapping = Mapping(None, 2 * HALF)
    lender, borrower = (Arena(mapping, is_dialer=is_dialer) for is_dialer in (True, False))
    kept = [borrower.borrow(_lend(lender, DATA), len(DATA))]
    made = [_reserve(lender, 100)]
    made[0][:] = b"m" * 100
    reading, writing = os.pipe()

    def child() -> bool:
        os.read(reading, 1)  # until the parent has let go, and used what it can
        is_same = kept[0] == DATA and made[0] == b"m" * 100
        return is_same and lender.lend(b"x") is None and lender.reserve(1) is None

    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            code = 0 if child() else 2
        finally:
            os._exit(code)
    kept.clear()
    made.clear()
    assert borrower.take_returns() == []
    while lender.lend(b"\xff" * len(DATA)) is not None:
        pass
    os.write(writing, b"x")
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    os.close(reading)
    os.close(writing)


def test_what_arrives_after_a_fork_is_returned_as_ever() -> None:
    mapping = Mapping(None, 2 * HALF)
    lender, borrower = (Arena(mapping, is_dialer=is_dialer) for is_dialer in (True, False))
    assert _in_a_child(lambda: True)
    offset = _lend(lender, DATA)
    borrower.borrow(offset, len(DATA))
    assert borrower.take_returns() == [offset]


def test_a_program_may_end_while_views_are_used_in_its_threads() -> None:
    script = """
        import threading, time
        from asyncparl.transport.arena import Arena
        from asyncparl.transport.mapping import Mapping, create_memory

        mapping = Mapping(create_memory(1 << 21))
        lender, borrower = Arena(mapping, is_dialer=True), Arena(mapping, is_dialer=False)
        del mapping
        views = [borrower.borrow(lender.lend(bytes(1 << 16)), 1 << 16) for _ in range(16)]

        def use():
            while True:
                for view in views:
                    view[:] = bytes([view[5] ^ 1]) * len(view)

        threading.Thread(target=use, daemon=True).start()
        time.sleep(0.05)
    """
    result = subprocess.run(
        [sys.executable, "-X", "dev", "-c", textwrap.dedent(script)],
        check=False,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (result.returncode, result.stdout, result.stderr) == (0, "", "")
