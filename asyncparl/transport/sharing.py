"""Setting up the memory that both ends of a connection share. What fails here costs speed only, and is said once."""

from __future__ import annotations

import errno
import functools
import os

from asyncparl.errors import ProtocolError
from asyncparl.speaking import say
from asyncparl.transport.arena import Arena
from asyncparl.transport.mapping import Mapping, create_memory


def offer_memory(shared_bytes: int) -> int | None:
    """The descriptor of memory for a peer, with `shared_bytes` for each side; None if there is none."""
    try:
        return create_memory(2 * shared_bytes)
    except OSError as error:
        _tell(f"shared memory cannot be created: {error}")
        return None


def open_arena(memory_fd: int, *, is_dialer: bool) -> Arena | None:
    """Our end of an arena, or None if it cannot be mapped.

    Raises:
        ConnectionAbortedError: the peer has passed something else than memory, and is not to be dealt with.
    """
    try:
        return Arena(Mapping(memory_fd), is_dialer=is_dialer)
    except ProtocolError as error:
        raise ConnectionAbortedError(errno.ECONNABORTED, str(error)) from None
    except OSError as error:
        _tell(f"shared memory cannot be mapped: {error}")
        return None


def take_arena(memory_fd: int | None) -> Arena | None:
    """As `open_arena` at the listener, with what the dialer has passed. Closes the descriptor."""
    if memory_fd is None:
        _tell("no descriptor is left for shared memory")
        return None
    try:
        return open_arena(memory_fd, is_dialer=False)
    finally:
        os.close(memory_fd)


@functools.cache
def _tell(why: str) -> None:
    say(f"asyncparl: {why}. Large arrays go through sockets, which is slower.\n")
