"""What a program with a ticket may do at a node, and what not. It speaks the protocol by itself here."""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import AsyncIterator, Iterator
from typing import Any

import msgspec
import psutil
import pytest
import trio

from asyncparl.errors import AsyncparlError, AuthenticationError, ResourceError
from asyncparl.ids import new_actor_id, new_driver_id
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.master_messages import (
    AskPlace,
    JoinDriver,
    JoinNode,
    LeaveDriver,
    NodeTicket,
    Placed,
    StopCluster,
)
from asyncparl.protocol.node_messages import ListLogs, OpenJob, ReadLog, StartActor, StopActor
from asyncparl.protocol.parties import NodeInfo
from asyncparl.protocol.resources import Capacity, Demand, Lease
from asyncparl.protocol.tickets import SignedLease, Ticket, encode_ticket, sign_lease, ticket_key, ticket_key_id
from asyncparl.runtime.link import Link
from asyncparl.runtime.master_link import ask, watch
from asyncparl.runtime.program import Program
from asyncparl.runtime.versions import our_versions
from asyncparl.transport import Credentials, dial
from tests.cluster.clusters import Cluster


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("leases")) as cluster:
        cluster.start_master()
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """With a node that survives everything, and starts nothing that it should not."""
    with shared_cluster.one_test() as cluster:
        node = cluster.start_node("node", "--cpus", "4")
        yield cluster
        assert node.process.poll() is None, node.errors()
        assert cluster.asyncparl("actors").stdout == "no actors\n"


@contextlib.asynccontextmanager
async def linked(address: str, credentials: Credentials) -> AsyncIterator[Link]:
    link = Link(LinkCore(name="test", pid=os.getpid()))
    link.attach(await dial(address, credentials=credentials, encrypt=True))
    async with trio.open_nursery() as nursery:
        nursery.start_soon(link.run)
        try:
            yield link
        finally:
            link.disconnect()
            nursery.cancel_scope.cancel()
    link.lose(lambda _: ConnectionError("the link was lost"))


def driver_credentials(cluster: Cluster) -> Credentials:
    return Credentials("driver", bytes.fromhex(cluster.secret("driver").read_text()))


@contextlib.asynccontextmanager
async def joined(cluster: Cluster) -> AsyncIterator[tuple[Link, str]]:
    """A program at the master, and its id."""
    driver_id = new_driver_id()
    async with linked(f"tcp://{cluster.address}", driver_credentials(cluster)) as master:
        await ask(master, JoinDriver(driver_id, "test", our_versions(), "token"))
        yield master, driver_id
        await ask(master, LeaveDriver())


@contextlib.asynccontextmanager
async def at_node(placed: NodeTicket, **replaced: Any) -> AsyncIterator[Link]:
    """A link to the node that a ticket is for."""
    address = next(address for address in placed.node.addresses if address.startswith("tcp:"))
    ticket = msgspec.structs.replace(placed, **replaced)
    async with linked(address, Credentials(ticket_key_id(ticket.ticket), ticket.key)) as node:
        yield node


async def place(master: Link) -> tuple[str, Placed]:
    actor_id = new_actor_id()
    return actor_id, await ask(master, AskPlace(actor_id, "Probe#1", Demand(cpus=0)))


def lease_of(placed: Placed) -> Lease:
    """What was signed."""
    lease, _expires = msgspec.msgpack.decode(placed.lease.lease_bytes, type=tuple[Lease, float])
    return lease


async def open_job(node: Link) -> None:
    await ask(node, OpenJob(Program(preload=[], start_method="fork").local_job()))


async def failure(call: Any) -> BaseException:
    with trio.fail_after(5):
        try:
            value = await call
        except Exception as error:
            return error
    raise AssertionError(f"it succeeded with {value!r}")


async def test_a_lease_starts_its_actor(cluster: Cluster) -> None:
    """So that the others fail for their reason."""
    async with joined(cluster) as (master, _):
        actor_id, placed = await place(master)
        async with at_node(placed.ticket) as link:
            await open_job(link)
            started = await ask(link, StartActor(actor_id, "Probe#1", placed.lease))
            assert psutil.pid_exists(started.pid)
    with trio.fail_after(5):
        while psutil.pid_exists(started.pid):
            await trio.sleep(0.02)


async def test_a_lease_that_was_changed_starts_nothing(cluster: Cluster) -> None:
    async with joined(cluster) as (master, _):
        actor_id, placed = await place(master)
        larger = msgspec.structs.replace(lease_of(placed), demand=Demand(cpus=4))
        forged = [
            SignedLease(sign_lease(bytes(32), larger, 1e12).lease_bytes, placed.lease.signature),
            sign_lease(driver_credentials(cluster).key, larger, 1e12),
            SignedLease(placed.lease.lease_bytes, b""),
        ]
        async with at_node(placed.ticket) as link:
            await open_job(link)
            for signed in forged:
                error = await failure(ask(link, StartActor(actor_id, "Probe#1", signed)))
                assert "a lease that the master of this cluster did not sign" in str(error)


async def test_a_lease_that_has_expired_starts_nothing_until_it_is_asked_for_again(cluster: Cluster) -> None:
    secret = bytes.fromhex(cluster.secret("node").read_text())
    async with joined(cluster) as (master, _):
        actor_id, placed = await place(master)
        expired = sign_lease(secret, lease_of(placed), time.time() - 0.1)
        async with at_node(placed.ticket) as link:
            await open_job(link)
            error = await failure(ask(link, StartActor(actor_id, "Probe#1", expired)))
            assert isinstance(error, ResourceError) and str(error).startswith("Probe#1 was started too late: ")
            again = await ask(master, AskPlace(actor_id, "Probe#1", Demand(cpus=0)))
            assert lease_of(again) == lease_of(placed) and again.lease != placed.lease
            started = await ask(link, StartActor(actor_id, "Probe#1", again.lease))
            assert psutil.pid_exists(started.pid)
            await ask(link, StopActor(actor_id, 0.0))


async def test_a_lease_of_another_program_or_actor_starts_nothing(cluster: Cluster) -> None:
    async with joined(cluster) as (master, _), joined(cluster) as (other_master, _):
        actor_id, placed = await place(master)
        other_id, other_placed = await place(other_master)
        async with at_node(placed.ticket) as link:
            await open_job(link)
            for stolen in (
                StartActor(other_id, "Probe#1", other_placed.lease),
                StartActor(actor_id, "Probe#1", other_placed.lease),
                StartActor(new_actor_id(), "Probe#1", placed.lease),
            ):
                assert "this lease is for something else" in str(await failure(ask(link, stolen)))


async def test_a_ticket_that_was_changed_or_invented_opens_nothing(cluster: Cluster) -> None:
    async with joined(cluster) as (master, driver_id):
        _, placed = await place(master)
        node_id = placed.ticket.node.node_id
        longer = encode_ticket(Ticket(driver_id, node_id, 1e12, os.urandom(16)))
        ours = driver_credentials(cluster).key
        for replaced in (
            {"ticket": longer},
            {"ticket": longer, "key": ticket_key(ours, longer)},
            {"key": ours},
            {"ticket": encode_ticket(Ticket(driver_id, "another node", 1e12, os.urandom(16)))},
        ):
            with pytest.raises((AsyncparlError, OSError)):
                async with at_node(placed.ticket, **replaced):
                    pass


async def test_a_program_cannot_stop_an_actor_of_another(cluster: Cluster) -> None:
    async with joined(cluster) as (master, _), joined(cluster) as (other_master, _):
        actor_id, placed = await place(master)
        _, other_placed = await place(other_master)
        async with at_node(placed.ticket) as owner, at_node(other_placed.ticket) as other:
            await open_job(owner)
            started = await ask(owner, StartActor(actor_id, "Probe#1", placed.lease))
            await ask(other, StopActor(actor_id, 0.0))
            assert psutil.pid_exists(started.pid)
            await ask(owner, StopActor(actor_id, 0.0))
            assert not psutil.pid_exists(started.pid)


async def test_a_program_cannot_join_in_the_name_of_another(cluster: Cluster) -> None:
    async with joined(cluster) as (master, driver_id):
        async with linked(f"tcp://{cluster.address}", driver_credentials(cluster)) as thief:
            error = await failure(ask(thief, JoinDriver(driver_id, "thief", our_versions(), "another")))
            assert isinstance(error, AuthenticationError)
        await place(master)  # the one who was there first is still there


async def test_ids_that_are_paths_are_refused(cluster: Cluster) -> None:
    async with joined(cluster) as (master, _):
        for actor_id in ("../../tmp/x", "/etc/x", "", "a" * 65, "a b"):
            error = await failure(ask(master, AskPlace(actor_id, "Probe#1", Demand(cpus=0))))
            assert "the id of an actor must have" in str(error)


async def test_who_takes_only_tiny_messages_is_hung_up_on_and_harms_nobody(cluster: Cluster) -> None:
    channel = await dial(
        f"tcp://{cluster.address}", credentials=driver_credentials(cluster), encrypt=True, max_message_bytes=1
    )
    with channel, trio.fail_after(5), pytest.raises(trio.BrokenResourceError):
        await channel.receive()
    async with joined(cluster) as (master, _):
        await place(master)


async def test_a_program_is_no_node_and_does_not_stop_the_cluster(cluster: Cluster) -> None:
    async with joined(cluster) as (master, _):
        info = NodeInfo("x", "x", Capacity(100), [], "x", our_versions())
        assert "this takes the secret of a node" in str(await failure(ask(master, JoinNode(info, 1, [], False))))
        assert "this takes the secret of a node" in str(await failure(ask(master, StopCluster())))


async def test_asking_for_a_log_that_is_not_there_harms_nobody(cluster: Cluster) -> None:
    async with joined(cluster) as (master, _):
        _, placed = await place(master)
        async with at_node(placed.ticket) as link:
            with pytest.raises(Exception, match="no-such-actor"), trio.fail_after(5):
                async for _ in watch(link, ReadLog("no-such-actor", 10, False)):
                    pass
        async with at_node(placed.ticket) as link:
            assert (await ask(link, ListLogs())).logs is not None
