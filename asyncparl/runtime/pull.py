"""Actors that come by themselves: a program opens a `RemoteManager`, others offer it objects with `as_remote`.

Nothing is started and nothing is placed: the object lives in the process that offers it, for as long as it likes. The
links are those of any actor, and so is the secret: the one for drivers, of the manager's port.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter, deque
from collections.abc import AsyncIterator
from functools import partial
from typing import Any, NoReturn

import trio

from asyncparl.errors import ActorDied, CallCancelled, CallFate
from asyncparl.machine import explain
from asyncparl.protocol.link import LinkCore, LinkState
from asyncparl.protocol.messages import CallKind
from asyncparl.runtime.accepting import take_in_all
from asyncparl.runtime.addresses import parse_host_and_port
from asyncparl.runtime.blocks import background_tasks
from asyncparl.runtime.executor import Executor
from asyncparl.runtime.handle import LinkedHandle
from asyncparl.runtime.host import ActorHost
from asyncparl.runtime.link import MAX_MESSAGE_BYTES, Link
from asyncparl.runtime.options import check_concurrency
from asyncparl.runtime.remote import Proxy
from asyncparl.runtime.state import create_secrets, find_secret, remove_secrets
from asyncparl.speaking import say
from asyncparl.transport import Channel, Credentials, DialRefused, Visitor, check_process, dial, listen

MAX_WAITING = 1000
"""Objects that were offered and not taken yet."""
_OFFER_ROUTE = "offer/"
_PAUSE_S = 0.5
_SAY_AFTER_S = 3.0


class OfferedHandle(LinkedHandle):
    """An object that somebody offered, as the manager's program holds it."""

    def __init__(self, name: str, host: str) -> None:
        super().__init__(name, callee=None, process_id="")
        self._host = host
        self._gone = trio.Event()
        self._why = ""

    def reference(self) -> NoReturn:
        """Only the manager's program is joined to it."""
        raise TypeError(f"{self.name} was offered to this program: it cannot be sent to another one")

    def identity(self) -> tuple[str, int]:
        """There is one handle of it."""
        return "", id(self)

    async def serve(self, channel: Channel) -> None:
        """Until the object is gone."""
        self._link.attach(channel)
        try:
            why = await self._link.run()
            self._why = self._why or ("it was withdrawn" if self._link.core.state is LinkState.CLOSING else why)
        finally:
            self._why = self._why or "its manager has ended"
            self._link.lose(self._why_dead)
            self._gone.set()

    @property
    def state(self) -> str:
        """For people."""
        return "gone" if self._link.is_lost else f"offered by {self._host or 'this machine'}"

    def public_names(self) -> list[str]:
        """Unknown: its class may not exist here."""
        return []

    async def wait_created(self) -> None:
        """It exists."""

    async def close(self) -> None:
        """Let the object go, after everything that was called before. `as_remote` returns over there."""
        with contextlib.suppress(Exception):  # it is gone already
            await self.call(CallKind.CLOSE, "close")
        await self.kill()

    async def kill(self) -> None:
        """Let the object go at once."""
        self.let_go("it was let go")
        await self._gone.wait()

    def let_go(self, why: str) -> None:
        """Say goodbye: it is not to be offered again."""
        self._why = self._why or why
        self._link.disconnect()

    @property
    def is_gone(self) -> bool:
        """Whether calling it is no use."""
        return self._link.is_lost

    def _why_dead(self, fate: CallFate) -> BaseException:
        return ActorDied(self.name, self._why, fate=fate)


class Manager:
    """What `RemoteManager` gives. It takes the objects that are offered; `async for agent in manager` takes all."""

    def __init__(self, address: str, tasks: trio.Nursery) -> None:
        self.address = address
        """Where it listens; with the port that was chosen."""
        self._tasks = tasks
        self._offers: deque[OfferedHandle] = deque()
        self._present: set[OfferedHandle] = set()
        """Taken or not."""
        self._news = trio.Event()
        self._names: Counter[str] = Counter()

    async def get_remote(self) -> Proxy:
        """The next object that is offered, in the order of arrival. Waits for one."""
        await trio.lowlevel.checkpoint()
        while True:
            while self._offers:
                if not (handle := self._offers.popleft()).is_gone:
                    return Proxy(handle)
            await self._news.wait()

    def __aiter__(self) -> Manager:
        return self

    async def __anext__(self) -> Proxy:
        return await self.get_remote()

    async def _serve(self, handle: OfferedHandle, channel: Channel) -> None:
        self._present.add(handle)
        await handle.serve(channel)
        self._present.discard(handle)
        if handle in self._offers:
            self._offers.remove(handle)

    def _let_all_go(self) -> None:
        for handle in self._present:
            handle.let_go("its manager has ended")

    def _take_in(self, visitor: Visitor) -> None:
        if not visitor.route.startswith(_OFFER_ROUTE):
            visitor.refuse("this is a RemoteManager, which takes objects of `as_remote` only")
        elif sum(not handle.is_gone for handle in self._offers) >= MAX_WAITING:
            visitor.refuse(f"{MAX_WAITING} objects wait to be taken already")
        else:
            class_name = visitor.route.removeprefix(_OFFER_ROUTE)
            self._names[class_name] += 1
            handle = OfferedHandle(f"{class_name}#{self._names[class_name]}", visitor.peer_host)
            self._tasks.start_soon(self._serve, handle, visitor.open())
            self._offers.append(handle)
            self._news.set()
            self._news = trio.Event()


@contextlib.asynccontextmanager
async def RemoteManager(address: str, *, secret_file: str | None = None) -> AsyncIterator[Manager]:  # noqa: N802
    """Listen at `address` for objects that other programs offer with `as_remote`. The block's end lets them all go.

    Args:
        address: "host:port"; "0.0.0.0:8037" is every interface.
        secret_file: the secret that they must have. By default the one in this user's state folder for this port, made
            if there is none: copy that file to the other machines.

    Raises:
        AuthenticationError: the secret cannot be read, kept or trusted.
        OSError: the address cannot be used.
        ResourceError: this process is a fork of one that has used such a thing.
        ValueError: it is no address.
    """
    check_process()
    parsed = parse_host_and_port(address)
    keys: dict[str, bytes] = {}
    with listen(str(parsed), keys=keys.get, max_message_bytes=MAX_MESSAGE_BYTES) as listener:
        port = int(listener.address.rpartition(":")[2])
        keys["driver"] = create_secrets(port)["driver"] if secret_file is None else _secret(port, secret_file)
        async with background_tasks() as tasks:
            manager = Manager(listener.address.removeprefix("tcp://"), tasks)
            tasks.start_soon(take_in_all, listener, manager._take_in)
            try:
                yield manager
            finally:
                manager._let_all_go()
                if not parsed.port and secret_file is None:
                    remove_secrets(port)  # nobody will look for this port again


async def as_remote(
    thing: object,
    address: str,
    *,
    secret_file: str | None = None,
    encrypt: bool = False,
    max_concurrency: int = 1,
) -> None:
    """Offer an object to the `RemoteManager` at `address`, and serve its calls until the manager lets it go.

    Waits for a manager that is not there yet, and offers the object again when the connection is lost. Methods without
    `async` run one at a time in a thread of their own, `async` ones in this event loop.

    Cancellation: withdraws the object. A running method without `async` is waited for.

    Raises:
        AuthenticationError: there is no secret, or the manager has another.
        ConnectionRefusedError: whoever listens there takes no objects; the message says why.
        ResourceError: as for `RemoteManager`.
        TypeError, ValueError: it is no address, or `max_concurrency` no number of 1 or more.
    """
    check_process()
    check_concurrency(max_concurrency)
    parsed = parse_host_and_port(address)
    credentials = Credentials("driver", _secret(parsed.port, secret_file))
    class_name = type(thing).__name__
    offer = partial(
        dial,
        str(parsed),
        credentials=credentials,
        route=_OFFER_ROUTE + class_name,
        encrypt=encrypt,
        may_stall=True,
        max_message_bytes=MAX_MESSAGE_BYTES,
    )
    async with _method_thread(class_name) as executor:
        while True:
            channel = await _dial_patiently(offer, address)
            if await _serve_once(thing, class_name, channel, executor, max_concurrency):
                return


@contextlib.asynccontextmanager
async def _method_thread(class_name: str) -> AsyncIterator[Executor]:
    """The thread for methods without `async`. A method that raises SystemExit ends the block with it."""
    executor, stops, token = Executor(), list[BaseException](), trio.lowlevel.current_trio_token()
    with trio.CancelScope() as scope:

        def run() -> None:
            try:
                executor.run()
            except BaseException as stop:
                stops.append(stop)
                token.run_sync_soon(scope.cancel)

        thread = threading.Thread(target=run, name=f"asyncparl {class_name}")
        thread.start()
        try:
            yield executor
        finally:
            executor.stop()
            with trio.CancelScope(shield=True):
                await trio.to_thread.run_sync(thread.join)
    if stops:
        raise stops[0]


async def _dial_patiently(offer: Any, address: str) -> Channel:
    say_at = trio.current_time() + _SAY_AFTER_S
    while True:
        try:
            return await offer()  # type: ignore[no-any-return]
        except DialRefused:
            raise
        except OSError as error:
            if trio.current_time() > say_at:
                say(f"asyncparl: waiting for a RemoteManager at {address}: {explain(error)}\n")
                say_at = float("inf")
            await trio.sleep(_PAUSE_S)


async def _serve_once(
    thing: object, class_name: str, channel: Channel, executor: Executor, max_concurrency: int
) -> bool:
    """Over one connection; whether the manager let the object go."""
    async with background_tasks() as tasks:
        host = ActorHost(executor, tasks, f"raised in {class_name} (pid {os.getpid()} on {os.uname().nodename})")
        host.adopt(thing, max_concurrency)
        link = Link(LinkCore(name=class_name, pid=os.getpid()), host)
        link.attach(channel)
        ended = trio.Event()

        async def run() -> None:
            with trio.CancelScope(shield=True):  # it is the goodbye below that ends it
                await link.run()
            ended.set()

        tasks.start_soon(run)
        try:
            await ended.wait()
            was_let_go = link.core.state is LinkState.CLOSING
        finally:
            link.disconnect()
            link.lose(lambda _: CallCancelled("the link was lost"))
            host.link_lost(link)
    return was_let_go


def _secret(port: int, secret_file: str | None) -> bytes:
    return find_secret("driver", port, secret_file=secret_file)
