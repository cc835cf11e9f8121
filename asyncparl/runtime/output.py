"""What a worker writes: from its pipes, as lines, to whoever listens; the last lines are kept for the death report.

The program prints them as its own output.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import trio

from asyncparl.protocol.node_messages import ActorOutput
from asyncparl.speaking import say

TAIL_LINES = 30
MAX_LINE_BYTES = 16 * 1024
_PIECE_CHARS = 4096
"""Of lines in one event: what is under way to a driver that does not look must fit into the system's buffers."""


class OutputReader:
    """Reads the two pipes of one worker until both are closed."""

    def __init__(self, out_fd: int, err_fd: int, actor_id: str, tell: Callable[[ActorOutput], None]) -> None:
        self._streams = ((trio.lowlevel.FdStream(out_fd), False), (trio.lowlevel.FdStream(err_fd), True))
        self._actor_id = actor_id
        self._tell = tell
        self._tail: deque[str] = deque(maxlen=TAIL_LINES)

    async def run(self) -> None:
        """Forward lines as they come."""
        async with trio.open_nursery() as nursery:
            for stream, is_error in self._streams:
                nursery.start_soon(self._read, stream, is_error)

    def tail(self) -> list[str]:
        """The last lines of both, in the order in which they came."""
        return list(self._tail)

    async def _read(self, stream: trio.lowlevel.FdStream, is_error: bool) -> None:
        rest = b""
        try:
            async with stream:
                async for chunk in stream:
                    *lines, rest = (rest + chunk).split(b"\n")
                    if len(rest) > MAX_LINE_BYTES:  # a line without end must not fill our memory
                        lines.append(rest)
                        rest = b""
                    self._forward(lines, is_error)
        finally:
            if rest:
                self._forward([rest], is_error)

    def _forward(self, lines: list[bytes], is_error: bool) -> None:
        if not lines:
            return
        texts = [line.decode(errors="replace") for line in lines]
        self._tail.extend(texts)
        piece: list[str] = []
        size = 0
        for text in texts:
            if piece and size + len(text) > _PIECE_CHARS:
                self._tell(ActorOutput(self._actor_id, is_error, piece))
                piece, size = [], 0
            piece.append(text)
            size += len(text)
        self._tell(ActorOutput(self._actor_id, is_error, piece))


def print_output(name: str, output: ActorOutput) -> None:
    """In the program: with the name of the actor before each line."""
    lines = [f"[{name}] {line}\n" for line in output.lines]
    if output.num_dropped:
        lines.insert(0, f"[{name}] ({output.num_dropped} lines were dropped: they came too fast)\n")
    say("".join(lines), is_error=output.is_error)
