"""How connections end while NNG owns them."""

from __future__ import annotations

import os
import socket
import threading
import time
from collections.abc import Iterator

import pytest

from asyncparl.transport.closing import HALF_CLOSED_S, LINGER_S, RELEASE_S, Closer, Connection

TIMEOUT_S = 30.0


class Owner:
    """Stands for the NNG socket that has a connection, of which one end is in our hands."""

    def __init__(self) -> None:
        self.connection, self.peer = socket.socketpair()
        self.closed = threading.Event()
        self.closed_at = 0.0
        self.may_close = threading.Event()
        self.may_close.set()
        self.num_discards = 0

    def discard(self) -> None:
        self.num_discards += 1

    def close(self) -> None:
        self.may_close.wait(TIMEOUT_S)
        self.closed_at = time.monotonic()
        self.closed.set()

    def let_go(self) -> None:
        self.connection.close()
        self.peer.close()


@pytest.fixture
def owner() -> Iterator[Owner]:
    owner = Owner()
    yield owner
    owner.may_close.set()
    owner.let_go()


def test_a_connection_is_released_when_its_descriptor_is_closed_even_if_the_number_is_used_again(owner: Owner) -> None:
    connection = Connection(owner.connection)
    assert not connection.is_released()
    number = owner.connection.fileno()
    owner.connection.close()
    assert connection.is_released()
    other, other_peer = socket.socketpair()
    with other, other_peer:
        if other.fileno() != number:
            os.dup2(other.fileno(), number)
        assert connection.is_released()
        connection.shut_down(socket.SHUT_RDWR)
        other.send(b"x")  # nobody has touched it
        assert other_peer.recv(1) == b"x"
        if other.fileno() != number:
            os.close(number)


def test_shutting_down_is_seen_by_the_peer_and_leaves_the_descriptor_alone(owner: Owner) -> None:
    connection = Connection(owner.connection)
    connection.shut_down(socket.SHUT_WR)
    assert owner.peer.recv(1) == b""
    assert not connection.is_released()
    owner.peer.send(b"x")
    assert owner.connection.recv(1) == b"x"


def test_an_owner_is_closed_once_it_has_released_the_connection(owner: Owner) -> None:
    closer = Closer()
    closer.end(Connection(owner.connection), owner, linger=True)
    owner.peer.settimeout(TIMEOUT_S)
    assert owner.peer.recv(1) == b""  # the peer sees the end,
    assert not owner.closed.is_set()
    owner.connection.close()  # NNG closes its side,
    assert owner.closed.wait(TIMEOUT_S)  # and then it is safe
    assert owner.num_discards > 0


def test_what_is_written_late_still_arrives(owner: Owner) -> None:
    Closer().end(Connection(owner.connection), owner, linger=True)
    owner.connection.send(b"late")
    assert owner.peer.recv(10) == b"late"
    owner.connection.close()
    assert owner.closed.wait(TIMEOUT_S)


def test_an_owner_that_does_not_release_the_connection_is_closed_all_the_same(owner: Owner) -> None:
    start = time.monotonic()
    Closer().end(Connection(owner.connection), owner, linger=False)
    assert owner.closed.wait(TIMEOUT_S)
    assert owner.closed_at - start >= HALF_CLOSED_S + RELEASE_S > LINGER_S
    with pytest.raises(BrokenPipeError):
        owner.connection.send(b"x")
    assert owner.connection.recv(1) == b""


def test_ending_does_not_wait_for_the_owner_and_one_thread_serves_all(owner: Owner) -> None:
    closer, others = Closer(), [Owner() for _ in range(20)]
    owner.may_close.clear()
    connection = Connection(owner.connection)
    owner.connection.close()
    closer.end(connection, owner, linger=False)
    for other in others:
        closer.end(Connection(other.connection), other, linger=False)
        other.let_go()
    assert not owner.closed.is_set()
    assert sum(thread.name == "asyncparl closer" for thread in threading.enumerate()) == 1
    owner.may_close.set()
    for other in (owner, *others):
        assert other.closed.wait(TIMEOUT_S)
