"""What several tests of the runtime need."""

from __future__ import annotations

import pytest

from asyncparl.runtime import node_link, ways
from tests.runtime.shared_memory import LARGE


@pytest.fixture
def little_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    """Arenas of four large arrays each way."""
    for module in (node_link, ways):
        monkeypatch.setattr(module, "SHARED_BYTES", 4 * LARGE)
