"""What a master or a node has said to its log, kept for those who look at it later through a monitor."""

from __future__ import annotations

import time
from collections import deque
from typing import Any

from asyncparl.protocol.figures import MAX_HAPPENINGS, Happening
from asyncparl.runtime.log import Log

_MAX_FIELD_CHARS = 500


class Journal:
    """A `Log` that passes everything on, and remembers the last of it. Bounded."""

    def __init__(self, log: Log, *, size: int = MAX_HAPPENINGS) -> None:
        self._log = log
        self._happenings: deque[Happening] = deque(maxlen=size)
        self._num = 0

    def info(self, event: str, **fields: Any) -> None:
        """Something that an operator may want to know."""
        self._log.info(event, **fields)
        self._note(event, fields, is_warning=False)

    def warning(self, event: str, **fields: Any) -> None:
        """Something that an operator may want to change."""
        self._log.warning(event, **fields)
        self._note(event, fields, is_warning=True)

    def after(self, number: int) -> list[Happening]:
        """What was noted after that one, as far as it is remembered; oldest first."""
        return [happening for happening in self._happenings if happening.number > number]

    def _note(self, event: str, fields: dict[str, Any], *, is_warning: bool) -> None:
        self._num += 1
        texts = {name: str(value)[:_MAX_FIELD_CHARS] for name, value in fields.items()}
        self._happenings.append(Happening(self._num, time.time(), is_warning, event, texts))
