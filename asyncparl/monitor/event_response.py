"""Server-sent events as a response: what a function tells, for as long as somebody reads it."""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable

import trio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

_PING_S = 10.0
_STUCK_S = 30.0
"""A reader that takes nothing for so long is gone, whatever its machine says."""

Tell = Callable[[str, object], Awaitable[None]]
"""Send an event of this name with this value. Returns when it has left."""


class EventResponse(Response):
    """Runs `produce` until it returns, or the reader goes. While it is silent the reader is told that we are here."""

    def __init__(self, produce: Callable[[Tell], Awaitable[None]]) -> None:
        super().__init__(media_type="text/event-stream", headers={"X-Accel-Buffering": "no"})
        del self.headers["content-length"]
        self._produce = produce

    async def __call__(self, _scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        turn = trio.Lock()

        async def write(text: str) -> None:
            async with turn:
                with trio.move_on_after(_STUCK_S) as patience:
                    await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
                if patience.cancelled_caught:
                    nursery.cancel_scope.cancel()

        async def tell(name: str, value: object) -> None:
            text = json.dumps(value, separators=(",", ":"), allow_nan=False)
            await write(f"event: {name}\ndata: {text}\n\n")

        async with trio.open_nursery() as nursery:
            nursery.start_soon(_until_gone, receive, nursery.cancel_scope)
            nursery.start_soon(_ping, write)
            await self._produce(tell)
            with trio.move_on_after(_STUCK_S):
                await send({"type": "http.response.body", "body": b"", "more_body": False})
            nursery.cancel_scope.cancel()


async def _until_gone(receive: Receive, scope: trio.CancelScope) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
    scope.cancel()


async def _ping(write: Callable[[str], Awaitable[None]]) -> None:
    while True:
        await write(": here\n\n")
        await trio.sleep(_PING_S)
