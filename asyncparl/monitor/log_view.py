"""Logs of actors, as a page follows them, as a file, and as a death report."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

from asyncparl.errors import AsyncparlError, ResourceError
from asyncparl.monitor.event_response import Tell
from asyncparl.monitor.watch import TOO_MANY, TooManyWatchers, Watch

MAX_SHOWN = 1000
"""Lines that a page is sent at first, and keeps."""
ALL_LINES = 1 << 30
_MAX_LINE_CHARS = 4000


@dataclass(frozen=True, slots=True)
class LogReader:
    """Finds the node that has a log."""

    watch: Watch

    async def node_of(self, actor_id: str) -> str:
        """Raises ResourceError."""
        for picture in (self.watch.picture, await self.watch.look(no_older_than_s=0.5)):
            row = picture.all_actors.get(actor_id)
            if row is not None and row.node_id:
                return row.node_id
            if row is not None:
                raise ResourceError("the actor has not started yet")
        raise ResourceError("no such actor is known here, or it has ended long ago")

    async def wait_node(self, actor_id: str) -> str:
        """The same, once the actor has a place. For those who watch. Raises ResourceError."""
        picture = await self.watch.look(no_older_than_s=1.0)
        while (row := picture.all_actors.get(actor_id)) is not None and not row.node_id:
            picture = await self.watch.wait_newer(picture.number)
        return await self.node_of(actor_id)

    async def whole(self, actor_id: str) -> AsyncIterator[str]:
        """All of it. Raises ResourceError, at once if there is none."""
        node_id = await self.node_of(actor_id)
        lines = self._lines(node_id, actor_id)
        first = await anext(lines, "")

        async def text() -> AsyncIterator[str]:
            yield first
            async for chunk in lines:
                yield chunk

        return text()

    async def death(self, actor_id: str) -> dict[str, Any] | None:
        """How it ended, with its last lines; None if nobody knows."""
        try:
            node_id = await self.node_of(actor_id)
        except ResourceError:
            return None
        death = await self.watch.source.read_death(node_id, actor_id)
        if death is None:
            return None
        return {
            "reason": death.explain(),
            "exit_code": death.exit_code,
            "signal": death.signal,
            "num_restarts": death.num_restarts,
            "log_tail": [line[:_MAX_LINE_CHARS] for line in death.log_tail],
        }

    async def _lines(self, node_id: str, actor_id: str) -> AsyncIterator[str]:
        source = self.watch.source
        async with source.read_log(node_id, actor_id, ALL_LINES, follow=False) as chunks:
            async for chunk in chunks:
                yield "".join(f"{line}\n" for line in chunk)


async def follow_log(watch: Watch, logs: LogReader, actor_id: str, text: str, tell: Tell) -> None:
    """The events of a page that follows a log: "lines", then "end" with the reason.

    Args:
        text: only lines with it, in the whole log; empty: the last lines.
    """
    why = "the actor has ended"
    try:
        with watch.watching():
            node_id = await logs.wait_node(actor_id)
            num_lines = ALL_LINES if text else MAX_SHOWN
            async with watch.source.read_log(node_id, actor_id, num_lines, follow=True) as chunks:
                async for chunk in chunks:
                    lines = [line[:_MAX_LINE_CHARS] for line in chunk if text.lower() in line.lower()]
                    if lines:
                        await tell("lines", lines)
    except AsyncparlError as error:
        why = f"there is no more of this log: {error}"
    except TooManyWatchers:
        why = TOO_MANY
    await tell("end", why)  # the page hangs up
