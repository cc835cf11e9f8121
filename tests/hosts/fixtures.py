"""The fixture for tests with several machines; `pytest_plugins = ["tests.hosts.fixtures"]` makes it known."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.hosts.network import Network, hosts_unavailable


@pytest.fixture
def network() -> Iterator[Network]:
    """A network without hosts; the test is skipped where there cannot be one."""
    reason = hosts_unavailable()
    if reason is not None:
        pytest.skip(f"no network namespaces: {reason}")
    with Network() as network:
        yield network
