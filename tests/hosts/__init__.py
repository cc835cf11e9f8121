"""Several machines on this one, for tests of clusters. `with Network() as network:` makes one; see network.py.

A test module gets the fixture `network` of fixtures.py by `pytest_plugins = ["tests.hosts.fixtures"]`. Where machines
cannot be made, the tests that ask for it are skipped.
"""

from __future__ import annotations

from tests.hosts.namespaces import HostsError as HostsError
from tests.hosts.network import Host as Host
from tests.hosts.network import Network as Network
from tests.hosts.network import hosts_unavailable as hosts_unavailable
