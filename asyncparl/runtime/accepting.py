"""Taking in those who dial: what master, node and worker do alike."""

from __future__ import annotations

import sys
from collections.abc import AsyncIterator

import trio

from asyncparl.transport import Listener, Visitor

_RETRY_S = 0.1


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
                sys.stderr.write(f"asyncparl: no connection can be taken at {listener.address}: {error}\n")
            was_told = True
            await trio.sleep(_RETRY_S)
        else:
            was_told = False
            yield visitor
