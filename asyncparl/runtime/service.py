"""A master and a node as services: what the commands `asyncparl-master` and `asyncparl-node` run.

Both are functions to be run in Trio, so that a program may also be a node, or a test a whole cluster. Cancelling one
ends it at once; setting its `stop` event ends it in good order.
"""

from __future__ import annotations

import contextlib
import errno
import importlib
import socket
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import trio

from asyncparl.errors import AsyncparlError
from asyncparl.ids import new_node_id
from asyncparl.machine import host_identity, own_address, usable_cpus, usable_memory_bytes, visible_gpus
from asyncparl.protocol.control import MAX_CONTROL_BYTES
from asyncparl.protocol.parties import NodeInfo
from asyncparl.protocol.resources import Capacity, check_capacity
from asyncparl.runtime.code.store import CodeStore
from asyncparl.runtime.jobs import own_sys_path
from asyncparl.runtime.link import MAX_MESSAGE_BYTES
from asyncparl.runtime.log import Log, Silence
from asyncparl.runtime.logs import LogStore
from asyncparl.runtime.master import Master, key_of
from asyncparl.runtime.master_link import no_master
from asyncparl.runtime.node import MAX_CODE_BYTES, Node
from asyncparl.runtime.node_config import NodeConfig
from asyncparl.runtime.node_folder import node_folder
from asyncparl.runtime.state import create_secrets, find_secret, state_folder
from asyncparl.runtime.versions import our_versions
from asyncparl.runtime.workers import WorkerPool
from asyncparl.runtime.zygote_client import ZygoteKind
from asyncparl.transport import Channel, Credentials, Listener, dial, listen, open_tunnel
from asyncparl.transport.addresses import TcpAddress, parse_dialable

_CERTIFICATE = "asyncparl.transport.certificate"
"""Slow to import, so not when the first encrypted connection waits for it."""


async def serve_master(
    address: TcpAddress,
    *,
    stop: trio.Event,
    on_ready: Callable[[str, int], None] = lambda address, port: None,
    log: Log | None = None,
) -> None:
    """Be a master at `address` until `stop` is set, or until the cluster is stopped.

    The secrets are made at the first start, and kept in the state folder under the port.

    Args:
        address: where to listen; port 0 chooses one.
        stop: ends it. The nodes and their actors go on, and find the next master at this address.
        on_ready: told where it listens, once it does.
        log: what happens is said there.

    Raises:
        OSError: the address cannot be used.
        AuthenticationError: the secrets cannot be kept or trusted.
    """
    importlib.import_module(_CERTIFICATE)
    secrets: dict[str, bytes] = {}
    with _listen(str(address), partial(key_of, secrets), MAX_CONTROL_BYTES) as listener:
        port = int(listener.address.rpartition(":")[2])
        secrets |= {str(role): secret for role, secret in create_secrets(port).items()}
        async with trio.open_nursery() as nursery:
            master = Master(nursery, our_versions(), secrets=secrets, log=log)
            nursery.start_soon(master.run, [listener])
            on_ready(listener.address, port)
            await _first_of(stop, master.over)
            nursery.cancel_scope.cancel()


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeOptions:
    """What the command line of a node says. None: by the machine."""

    cpus: float | None = None
    gpus: int | None = None
    memory_bytes: int | None = None
    name: str | None = None
    labels: dict[str, str] | None = None
    listen: str = ""
    """"host:port", or "host:first-last"; by default any free port on all interfaces."""
    advertise: str = ""
    """"host" or "host:port" as others reach this machine; by default the address by which it reaches the master."""
    preload: tuple[str, ...] = ()
    secret_file: str | None = None


async def serve_node(
    master: TcpAddress,
    options: NodeOptions,
    *,
    stop: trio.Event,
    join_within_s: float | None = None,
    on_ready: Callable[[str], None] = lambda name: None,
    log: Log | None = None,
) -> None:
    """Be a node of the cluster at `master` until `stop` is set, or until the cluster is stopped.

    Args:
        master: where the master listens. If it goes away, the node looks for it there for ever.
        options: what the node offers.
        stop: ends it in good order: its actors get a moment, the master is told.
        join_within_s: how long the master may be unreachable at the start.
        on_ready: told the node's name, once it has joined.
        log: what happens is said there.

    Raises:
        AuthenticationError: there is no secret, or it is not the cluster's.
        ResourceError: the master cannot be reached in time, or does not take this node, and why.
        OSError: there is no port to listen at.
        ValueError: an option that makes no sense.
    """
    secret = find_secret("node", master.port, secret_file=options.secret_file)
    gpus = _chosen_gpus(options.gpus)
    capacity = _capacity(options, len(gpus))
    preload = (*options.preload, _CERTIFICATE)
    importlib.import_module(_CERTIFICATE)
    credentials = Credentials("node", secret)
    with node_folder() as directory, contextlib.ExitStack() as stack:
        nodes: list[Node] = []
        keys = lambda key_id: nodes[0].key(key_id) if nodes else None  # noqa: E731  # the node is made below
        remote = stack.enter_context(_listen_anywhere(options.listen, keys))
        local = stack.enter_context(listen(f"ipc://{directory}/node", keys=keys, max_message_bytes=MAX_MESSAGE_BYTES))
        info = NodeInfo(
            node_id=new_node_id(),
            name=options.name or socket.gethostname(),
            capacity=capacity,
            addresses=[local.address, *_advertised(options.advertise, remote.address, master)],
            host=host_identity(),
            versions=our_versions(),
        )
        store = CodeStore(state_folder() / "code")
        store.trim(MAX_CODE_BYTES, set())
        config = NodeConfig(
            info=info,
            directory=directory,
            master_address=str(master),
            secret=secret,
            gpus=gpus,
            preload=preload,
            store=store,
            logs=LogStore(Path(directory)),
            log=log or Silence(),
            dial_back=partial(_dial_back, master, credentials, remote),
        )
        failures: list[Exception] = []
        async with trio.open_nursery() as nursery:
            pool = WorkerPool(nursery, directory)
            try:
                pool.warm(ZygoteKind("fork", preload, tuple(own_sys_path())))
                nursery.start_soon(pool.run)
                nodes.append(Node(config, pool, partial(_dial_master, master, credentials), nursery))
                run = partial(nodes[0].run, [remote, local], join_within_s=join_within_s)
                nursery.start_soon(_keep_failure, run, master, failures, nursery.cancel_scope)
                await _first_of(nodes[0].master.joined, stop)
                if nodes[0].master.joined.is_set():
                    on_ready(nodes[0].master.name)
                await _first_of(stop, nodes[0].over)
                await nodes[0].drain("its node was stopped")
            finally:
                nursery.cancel_scope.cancel()
                pool.close()
        if failures:
            raise failures[0]


async def _keep_failure(
    run: Callable[[], Awaitable[None]], master: TcpAddress, failures: list[Exception], scope: trio.CancelScope
) -> None:
    """What ends a task for good reason is raised outside of the nursery, so that it comes in no group."""
    try:
        await run()
    except AsyncparlError as error:
        failures.append(error)
        scope.cancel()
    except OSError as error:
        failures.append(no_master(str(TcpAddress(master.host, master.port)), error))
        scope.cancel()


async def _dial_master(master: TcpAddress, credentials: Credentials) -> Channel:
    return await dial(str(master), credentials=credentials, encrypt=True, max_message_bytes=MAX_CONTROL_BYTES)


async def _dial_back(master: TcpAddress, credentials: Credentials, listener: Listener, route: str) -> None:
    listener.adopt(await open_tunnel(str(master), credentials=credentials, route=route))


async def _first_of(*events: trio.Event) -> None:
    async with trio.open_nursery() as nursery:

        async def wait(event: trio.Event) -> None:
            await event.wait()
            nursery.cancel_scope.cancel()

        for event in events:
            nursery.start_soon(wait, event)


def _listen_anywhere(where: str, keys: Callable[[str], bytes | None]) -> Listener:
    return _listen(f"tcp://{where}" if where else "tcp://[::]:0", keys, MAX_MESSAGE_BYTES)


def _listen(address: str, keys: Callable[[str], bytes | None], max_message_bytes: int) -> Listener:
    try:
        return listen(address, keys=keys, max_message_bytes=max_message_bytes)
    except OSError as error:
        if "[::]" not in address or error.errno not in (errno.EAFNOSUPPORT, errno.EADDRNOTAVAIL):
            raise
        # A machine without IPv6.
        return listen(address.replace("[::]", "0.0.0.0"), keys=keys, max_message_bytes=max_message_bytes)


def _advertised(advertise: str, listening_at: str, master: TcpAddress) -> list[str]:
    """Where others may find us. None of it needs to be right: there is the relay."""
    host, _, port = listening_at.removeprefix("tcp://").rpartition(":")
    if advertise:
        address = f"tcp://{advertise}" if _has_port(advertise) else f"tcp://{advertise}:{port}"
        return [str(parse_dialable(address))]
    if host.strip("[]") not in ("::", "0.0.0.0"):
        return [listening_at]
    hosts = filter(None, map(own_address, (master.host, _ELSEWHERE, _ELSEWHERE_6)))
    return [str(TcpAddress(host, int(port))) for host in dict.fromkeys(hosts)]


# Addresses that belong to nobody: the system says which of ours it would use, and sends nothing.
_ELSEWHERE, _ELSEWHERE_6 = "192.0.2.1", "2001:db8::1"


def _has_port(text: str) -> bool:
    host, separator, port = text.rpartition(":")
    return bool(separator) and port.isdigit() and (":" not in host or host.endswith("]"))


def _chosen_gpus(number: int | None) -> list[str]:
    gpus = visible_gpus()
    if number is None:
        return gpus
    if number > len(gpus):
        raise ValueError(f"--gpus {number}, but this machine has {len(gpus)} that may be used")
    return gpus[:number]


def _capacity(options: NodeOptions, num_gpus: int) -> Capacity:
    capacity = Capacity(
        cpus=usable_cpus() if options.cpus is None else options.cpus,
        num_gpus=num_gpus,
        memory_bytes=usable_memory_bytes() if options.memory_bytes is None else options.memory_bytes,
        labels=options.labels or {},
    )
    check_capacity(capacity)
    return capacity
