"""What is between the machines: cables, addresses, routes and the rules of firewalls.

A cable is a pair of devices, one in the namespace of a router and one, called eth0, in that of another machine. Both
ends know the other's Ethernet address beforehand. Otherwise frames that are lost or late would now and then show up as
"no route to host", which is not what a bad connection of many parts looks like.
"""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

from tests.hosts.namespaces import HostsError, Namespace

CABLE_PROGRAM = Path(__file__).parent / "cable.py"

PUBLIC, PRIVATE = 77, 78  # the second part of the addresses; nobody but their NAT knows the way to private ones
MAC_ADDRESSES = {1: "02:00:00:00:00:01", 2: "02:00:00:00:00:02"}  # by the end of the cable
READY_TIMEOUT_S = 10.0
POLL_S = 0.01

# Duplicate addresses are looked for during a second, in which an IPv6 address is of no use.
NO_DUPLICATES = {"ipv6/conf/all/disable_ipv6": "0", "ipv6/conf/default/accept_dad": "0"}
FORWARDING = {"ipv4/ip_forward": "1", "ipv6/conf/all/forwarding": "1"}

CHAINS = [":INPUT ACCEPT [0:0]", ":FORWARD ACCEPT [0:0]", ":OUTPUT ACCEPT [0:0]"]
# Only the first packet of a connection, for the others go on.
NO_INBOUND = [
    "-A INPUT -i eth0 -p tcp --syn -m conntrack --ctstate NEW -j DROP",
    "-A INPUT -i eth0 -p udp -m conntrack --ctstate NEW -j DROP",
]
# Silent like the router of most homes, also about what belongs to no connection of those inside.
NAT_FILTER = [
    *CHAINS,
    "-A INPUT -i eth0 -p tcp -j DROP",
    "-A INPUT -i eth0 -p udp -j DROP",
]
NAT_RULES = ["-A POSTROUTING -o eth0 -j MASQUERADE"]


class Subnet(NamedTuple):
    """A cable with its two ends: 1 is towards the router, 2 is away from it."""

    kind: int
    number: int

    def ipv4(self, end: int) -> str:
        return f"10.{self.kind}.{self.number}.{end}"

    def ipv6(self, end: int) -> str:
        return f"fd{self.kind}:0:0:{self.number:x}::{end}"

    def connect(self, device: str, end: int) -> list[str]:
        """Commands for `ip` about the device at this end."""
        other = 3 - end
        return [
            f"link set {device} address {MAC_ADDRESSES[end]}",
            f"link set {device} up",
            f"addr add {self.ipv4(end)}/24 dev {device}",
            f"addr add {self.ipv6(end)}/64 dev {device}",
            f"neigh add {self.ipv4(other)} lladdr {MAC_ADDRESSES[other]} dev {device}",
            f"neigh add {self.ipv6(other)} lladdr {MAC_ADDRESSES[other]} dev {device}",
        ]

    def connect_host(self) -> list[str]:
        """The same for the end away from the router, which leads to all others."""
        return [
            "link set lo up",
            *self.connect("eth0", 2),
            f"route add default via {self.ipv4(1)}",
            f"route add default via {self.ipv6(1)}",
        ]


class Quality(NamedTuple):
    """What happens to each frame in a cable, whichever way it goes; see cable.py."""

    loss: float
    delay_s: float
    seed: int

    @property
    def is_perfect(self) -> bool:
        return self.loss == 0 and self.delay_s == 0


def plug(router: Namespace, port: str, inner: Namespace, subnet: Subnet, quality: Quality) -> None:
    """Lay a cable from the port of the router to the other's eth0, with addresses and routes."""
    inner.configure(NO_DUPLICATES)
    if quality.is_perfect:
        cable = f"link add {port} type veth peer name eth0 netns {inner.name}"
    else:
        _start_lossy_cable(router, port, "far", quality)
        cable = f"link set far netns {inner.name} name eth0"
    router.ip([cable, *subnet.connect(port, 1)])
    inner.ip(subnet.connect_host())
    _wait_until_ready(router, port, inner)


def translate(router: Namespace) -> None:
    """Let the router hide what is behind it: the world sees only the address of its eth0."""
    router.configure(FORWARDING)
    router.iptables(nat=NAT_RULES, filter=NAT_FILTER)


def _wait_until_ready(router: Namespace, port: str, inner: Namespace) -> None:
    """The kernel lets packets pass a moment after both ends are up, and adds an IPv6 address a moment later."""
    deadline = time.monotonic() + READY_TIMEOUT_S
    while "NO-CARRIER" in router.ip([f"link show {port}"]) or inner.ip(["addr show tentative"]):
        if time.monotonic() > deadline:
            raise HostsError(f"the cable between {router.name} and {inner.name} does not come up")
        time.sleep(POLL_S)


def _start_lossy_cable(namespace: Namespace, near: str, far: str, quality: Quality) -> None:
    """Both ends are in the namespace when this returns. They are there as long as the process runs."""
    arguments = [near, far, *map(str, quality)]
    process = namespace.start(
        [sys.executable, "-I", "-S", str(CABLE_PROGRAM), *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert process.stdout is not None
    line = process.stdout.readline()
    if line != "ready\n":
        raise HostsError(line + process.stdout.read())
