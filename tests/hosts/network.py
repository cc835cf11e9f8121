"""Machines with cables between them and a router in the middle, all of them network namespaces.

    host a -------- router -------- nat n -------- host n
                      |
    host b -----------+

Each cable is a subnet of its own, 10.77.N.0/24 and fd77:0:0:N::/64. What is cut or partitioned the router drops, and
says nothing, as it is in the internet. A bridge in the middle would not do: when nobody answers its ARP requests, the
kernel reports "no route to host" after some seconds.

Nothing of this can be seen outside of the namespaces, so any number of networks can have the same addresses.
"""

from __future__ import annotations

import functools
import itertools
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from tests.hosts.namespaces import PREFIX, TOOLS, HostsError, Namespace, remove_all, remove_leftovers
from tests.hosts.wiring import (
    CHAINS,
    FORWARDING,
    NO_DUPLICATES,
    NO_INBOUND,
    PRIVATE,
    PUBLIC,
    Quality,
    Subnet,
    plug,
    translate,
)
from tests.proc import Process

TUN_DEVICE = Path("/dev/net/tun")
MAX_HOSTS = 254

_serial_numbers = itertools.count()


class Host:
    """A machine of the network. Its ports are its own; files and everything else are those of this machine.

    All methods block, for some hundredths of a second.

    Attributes:
        ipv4, ipv6: its addresses.
        public_ipv4, public_ipv6: where its packets seem to come from: those of its router with `nat`.
    """

    def __init__(self, network: Network, name: str, namespace: Namespace, subnet: Subnet, public: Subnet) -> None:
        self.name = name
        self.ipv4, self.ipv6 = subnet.ipv4(2), subnet.ipv6(2)
        self.public_ipv4, self.public_ipv6 = public.ipv4(2), public.ipv6(2)
        self._network = network
        self._namespace = namespace

    def __repr__(self) -> str:
        return f"<Host {self.name} {self.ipv4}>"

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs the other one on this host, for those who start processes themselves.

        Such a process is killed with the network as well, but nobody waits for it.
        """
        return self._namespace.command(arguments)

    def start(self, arguments: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a process on this host. With the network it ends, killed with all it has started, its pipes closed.

        Args:
            arguments: the command line.
            popen: for `subprocess.Popen`, but not `executable`, `shell` or `start_new_session`.
        """
        return self._namespace.start(arguments, **popen)

    def run(self, arguments: Sequence[str], **run: Any) -> subprocess.CompletedProcess[str]:
        """Run a command on this host to its end, with `subprocess.run`; what it prints is captured, as text."""
        return subprocess.run(self.command(arguments), capture_output=True, text=True, **run)  # noqa: PLW1510

    def cut(self) -> None:
        """From now on packets to and from this host vanish. It is not told, nor is anybody else."""
        self._network._set_cut(self, True)

    def heal(self) -> None:
        """Undo `cut`. Partitions stay."""
        self._network._set_cut(self, False)

    def firewall(self, *, inbound: bool) -> None:
        """With `inbound=False` nobody can open connections to this host: it does not answer.

        Connections that are open go on, and it can open others.
        """
        self._namespace.iptables(filter=CHAINS if inbound else CHAINS + NO_INBOUND)


class Network:
    """Some hosts that reach each other, and nothing else. All is removed at exit, or by the next run after a crash."""

    def __init__(self) -> None:
        self._namespaces: list[Namespace] = []
        self._ports: dict[Host, str] = {}
        self._cut: set[Host] = set()
        self._partitions: list[tuple[frozenset[Host], ...]] = []
        maker = Process.read(os.getpid())
        assert maker is not None
        self._prefix = f"{PREFIX}{maker.pid}-{maker.start_ticks}-{next(_serial_numbers)}"

    def __enter__(self) -> Self:
        remove_leftovers()
        try:
            self._router = self._add_namespace("router")
            self._router.configure(NO_DUPLICATES | FORWARDING)
            self._router.ip([f"route add blackhole 10.{PRIVATE}.0.0/16", f"route add blackhole fd{PRIVATE}::/16"])
        except BaseException:
            remove_all(self._namespaces)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        remove_all(self._namespaces)

    def host(self, name: str, *, nat: bool = False, loss: float = 0.0, delay_s: float = 0.0, seed: int = 0) -> Host:
        """Add a machine.

        Args:
            name: lower-case letters, digits and hyphens; for people.
            nat: put it behind a router that translates addresses. It can open connections to the others; they
                cannot to it, neither at its own address nor at that of its router.
            loss: which part of the packets is lost, each way. With 0.3 half of all questions are answered.
            delay_s: how long a packet is on its way, in and out.
            seed: which packets are lost; see cable.py.
        """
        number = len(self._ports) + 1
        if not re.fullmatch("[a-z0-9-]+", name) or any(name == host.name for host in self._ports):
            raise ValueError(f"a host cannot have this name, or another one has it: {name!r}")
        if number > MAX_HOSTS:
            raise ValueError(f"a network has at most {MAX_HOSTS} hosts")
        port = f"port{number}"
        public = subnet = Subnet(PUBLIC, number)
        outer = inner = self._add_namespace(f"{'nat' if nat else 'host'}-{name}")
        plug(self._router, port, outer, subnet, Quality(loss, delay_s, seed))
        if nat:
            translate(outer)
            subnet, inner = Subnet(PRIVATE, number), self._add_namespace(f"host-{name}")
            plug(outer, "inside", inner, subnet, Quality(0, 0, 0))
        host = Host(self, name, inner, subnet, public)
        self._ports[host] = port
        return host

    def partition(self, *groups: Iterable[Host]) -> None:
        """Hosts of different groups do not reach each other from now on. A host of no group still reaches all."""
        self._partitions.append(tuple(frozenset(group) for group in groups))
        self._apply()

    def heal(self) -> None:
        """Undo all partitions and cuts. Firewalls stay."""
        self._partitions.clear()
        self._cut.clear()
        self._apply()

    def _set_cut(self, host: Host, is_cut: bool) -> None:
        (self._cut.add if is_cut else self._cut.discard)(host)
        self._apply()

    def _apply(self) -> None:
        self._router.iptables(filter=[*CHAINS, *self._drops()])

    def _drops(self) -> Iterable[str]:
        for host in self._cut:
            yield f"-A FORWARD -i {self._ports[host]} -j DROP"
            yield f"-A FORWARD -o {self._ports[host]} -j DROP"
        for groups in self._partitions:
            for sources, targets in itertools.permutations(groups, 2):
                for source, target in itertools.product(sources, targets):
                    yield f"-A FORWARD -i {self._ports[source]} -o {self._ports[target]} -j DROP"

    def _add_namespace(self, label: str) -> Namespace:
        namespace = Namespace(f"{self._prefix}-{label}")
        # First, for a namespace may be there even if adding it failed.
        self._namespaces.append(namespace)
        namespace.add()
        return namespace


@functools.cache
def hosts_unavailable() -> str | None:
    """Why there cannot be networks here, or None. Found out by making one."""
    if sys.platform != "linux":
        return "network namespaces are a feature of Linux"
    if os.geteuid() != 0:
        return "only root may make network namespaces"
    if missing := [tool for tool in TOOLS if shutil.which(tool) is None]:
        return f"not installed, or not in PATH: {', '.join(missing)}"
    if not TUN_DEVICE.exists():
        return f"there is no {TUN_DEVICE}"
    try:
        with Network() as network:
            network.host("trial", nat=True, delay_s=0.001).firewall(inbound=False)
    except (HostsError, OSError) as error:
        return f"this machine does not allow it: {error}"
    return None
