"""Taking in those who dial: what master, node and worker do alike."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

import trio

from asyncparl.machine import explain
from asyncparl.speaking import say
from asyncparl.transport import Listener, Visitor

_RETRY_S = 0.1
_LOOK_INTERVAL_S = 1.0


async def visitors(listener: Listener) -> AsyncIterator[Visitor]:
    """Those who dialed and proved themselves, for as long as the listener is open.

    Where this process has too many files open, nobody is taken in until that has changed.
    """
    was_told = False
    while True:
        try:
            visitor = await listener.accept_visitor()
        except trio.ClosedResourceError:
            return
        except OSError as error:
            if not was_told:
                say(f"asyncparl: no connection can be taken at {listener.address}: {explain(error)}\n")
            was_told = True
            await trio.sleep(_RETRY_S)
        else:
            was_told = False
            yield visitor


async def take_in_all(listener: Listener, take_in: Callable[[Visitor], None]) -> None:
    """Give everybody to `take_in`, for as long as the listener is open.

    It may raise OSError: the visitor has gone already, or there is no descriptor for it, and it will dial again.
    """
    async with trio.open_nursery() as nursery:
        if listener.address.startswith("ipc:"):
            nursery.start_soon(_stay_reachable, listener)
        async for visitor in visitors(listener):
            with contextlib.suppress(OSError):
                take_in(visitor)
        nursery.cancel_scope.cancel()


async def _stay_reachable(listener: Listener) -> None:
    """Also when something cleans up the folder for temporary files, where our socket file is."""
    while True:
        await trio.sleep(_LOOK_INTERVAL_S)
        with contextlib.suppress(OSError, trio.ClosedResourceError):
            listener.restore()


def may_control(visitor: Visitor, name: str) -> bool:
    """Whether who came on no route of ours may have a link for control requests. If not, it has been refused."""
    if visitor.route:
        visitor.refuse(f"a {name} has nothing at {visitor.route!r}")
    elif visitor.peer_host and not visitor.encrypted:
        visitor.refuse("control links between machines must be encrypted")
    else:
        return True
    return False
