"""Fresh addresses for the tests to listen at, by scheme."""

from __future__ import annotations

import itertools
import tempfile
from collections.abc import Callable

_numbers = itertools.count()

FRESH_ADDRESS: dict[str, Callable[[], str]] = {
    "ipc": lambda: f"ipc://{tempfile.gettempdir()}/{next(_numbers)}",
    "tcp": lambda: "tcp://127.0.0.1:0",
    "memory": lambda: f"memory://{next(_numbers)}",
}
