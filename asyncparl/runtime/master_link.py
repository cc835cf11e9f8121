"""The link of a node, or of a driver, to the master: made again whenever it is lost, because nothing dies with it.

Every request to the master may be repeated without harm, so one that was lost with its link is sent again over the
next. What cannot be repaired by trying again (a wrong secret, another version) ends `run` with its error.
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable
from typing import Any

import trio

from asyncparl.errors import AsyncparlError, AuthenticationError, ResourceError
from asyncparl.machine import out_of_files
from asyncparl.protocol.control import MAX_CONTROL_BYTES, decode_answer, encode_control
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.master_messages import MasterRequest
from asyncparl.protocol.messages import CallKind
from asyncparl.runtime.call import Call, failed_call, make_call
from asyncparl.runtime.exceptions import rebuild_described
from asyncparl.runtime.link import Link
from asyncparl.runtime.pending import Reading
from asyncparl.transport import Channel, DialRefused

REQUEST_LIMIT_S = 30.0
"""How long a request waits for a master that is away."""
_FIRST_PAUSE_S = 0.05
_LAST_PAUSE_S = 1.0
_STREAM_CREDIT = 64
_AS_WORDS = Reading(decode_answer, rebuild_described)


class MasterLost(ResourceError):
    """The link to the master ended before it answered."""


def no_master(address: str, error: OSError) -> ResourceError:
    """What is said where a master cannot be dialed."""
    by_system = error.errno is not None and error.errno > 0  # names that do not exist have numbers of their own
    why = out_of_files(error) or (os.strerror(error.errno or 0) if by_system else error.strerror or str(error))
    if isinstance(error, (ConnectionAbortedError, TimeoutError)) and error.strerror != os.strerror(error.errno or 0):
        why += "; perhaps what is there is no asyncparl master"
    return ResourceError(f"no master answers at {address.removeprefix('tcp://')}: {why}")


class MasterLink:
    """Keeps one link to the master."""

    def __init__(
        self, name: str, dial: Callable[[], Awaitable[Channel]], join: Callable[[Link], Awaitable[None]]
    ) -> None:
        self._name = name
        self._dial = dial
        self._join = join
        self._link: Link | None = None
        """Only while joined."""
        self._changed = trio.Event()
        self._was_joined = False
        self._over: BaseException | None = None
        self._own_failure = ""
        """Why the last attempt to dial failed, if that is this process's own fault."""

    async def run(self, *, once_within_s: float | None = None, rejoins: bool = True) -> None:
        """Connect and join, again after each loss, until cancelled.

        Args:
            once_within_s: the first join must succeed within this time.
            rejoins: otherwise the first loss is the end.

        Raises:
            AuthenticationError, ResourceError: what the master, or the way to it, refuses for good.
            MasterLost: the link was lost, and this master will never be back.
            OSError: the master cannot be reached, within `once_within_s`.
        """
        give_up_at = trio.current_time() + (once_within_s or float("inf"))
        pause_s = _FIRST_PAUSE_S
        try:
            while True:
                try:
                    channel = await self._dial()
                except AuthenticationError:
                    # After a join it is somebody else who has the port now; the master may be back.
                    if not self._was_joined:
                        raise
                except OSError as error:
                    self._own_failure = out_of_files(error)
                    if isinstance(error, DialRefused) and not self._was_joined:
                        raise ResourceError(error.strerror or str(error)) from error
                    if trio.current_time() + pause_s > give_up_at:
                        raise
                else:
                    self._own_failure = ""
                    why = await self._use(channel)
                    if not rejoins:
                        raise MasterLost(why)
                    if self._was_joined:
                        give_up_at, pause_s = float("inf"), _FIRST_PAUSE_S
                    elif trio.current_time() + pause_s > give_up_at:
                        raise ConnectionAbortedError(f"it hung up before it answered: {why}")
                await trio.sleep(pause_s)
                pause_s = min(2 * pause_s, _LAST_PAUSE_S)
        except BaseException as error:
            self._over = error
            raise
        finally:
            self._set_link(None)

    async def _use(self, channel: Channel) -> str:
        """Until the link is lost; why."""
        link = Link(LinkCore(name=self._name, pid=os.getpid(), max_value_bytes=MAX_CONTROL_BYTES))
        link.attach(channel)
        refusals: list[AsyncparlError] = []
        try:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(self._join_over, link, refusals)
                why = await link.run()
                self._set_link(None)
                link.lose(lambda _: MasterLost(f"the master is away: {why}"))
                nursery.cancel_scope.cancel()
        finally:
            self._set_link(None)
            link.lose(lambda _: MasterLost("the link to the master was closed"))
        if refusals:
            raise refusals[0]
        return why

    async def _join_over(self, link: Link, refusals: list[AsyncparlError]) -> None:
        try:
            await self._join(link)
        except MasterLost:
            pass
        except AsyncparlError as error:
            refusals.append(error)
            link.disconnect()
        else:
            self._was_joined = True
            self._set_link(link)

    def _set_link(self, link: Link | None) -> None:
        self._link = link
        self._changed.set()
        self._changed = trio.Event()

    @property
    def is_joined(self) -> bool:
        """Whether the master has taken us in, over the present link."""
        return self._link is not None

    async def wait_joined(self) -> Link:
        """The present link, or the next."""
        while self._link is None:
            if self._over is not None:
                raise ResourceError(f"there is no master: {self._over}")
            await self._changed.wait()
        return self._link

    async def request(self, request: MasterRequest, *, limit_s: float = REQUEST_LIMIT_S) -> Any:
        """Ask the master. Waits for its answer as long as it takes, but for an absent master `limit_s`.

        Raises:
            ResourceError: it refuses, or it was away for too long.
        """
        while True:
            link = None
            with trio.move_on_after(limit_s):
                link = await self.wait_joined()
            if link is None:
                raise ResourceError(self._own_failure or f"the master has been away for {limit_s:g} s")
            try:
                return await ask(link, request)
            except MasterLost:
                continue

    def tell(self, request: MasterRequest) -> None:
        """Say something that the master also learns from the next join, should it be lost."""
        if self._link is not None:
            ask(self._link, request)


def ask(link: Link, request: Any, *, credit: int = 0) -> Call[Any]:
    """Make a control call. Nothing in its answer, nor in what it raises, is a pickle."""
    name = type(request).__name__
    if link.is_lost:
        return failed_call(name, MasterLost("the link has ended"))
    return make_call(
        link,
        name,
        CallKind.CONTROL,
        name,
        encode_control(request),
        credit=credit,
        reading=_AS_WORDS,
    )


def watch(link: Link, request: Any, *, credit: int = _STREAM_CREDIT) -> Call[Any]:
    """Make a control call that streams."""
    return ask(link, request, credit=credit)
