"""Somebody on the way: prints how many packets of this host's network device contain a text, when its input ends."""

from __future__ import annotations

import select
import socket
import sys

ETH_P_ALL = 0x0003

text = sys.argv[1].encode()
packets = socket.socket(socket.AF_PACKET, socket.SOCK_RAW, socket.ntohs(ETH_P_ALL))
packets.bind(("eth0", 0))
print("ready", flush=True)
num = 0
while True:
    ready, _, _ = select.select([sys.stdin, packets], [], [])
    if packets in ready:
        num += text in packets.recv(1 << 17)
    elif sys.stdin in ready:
        break
print(num, flush=True)
