"""A cable that takes its time and loses frames: a program that passes Ethernet frames between two TAP devices.

    python cable.py NEAR FAR LOSS DELAY_S SEED

It makes both devices, prints "ready", and ends when its standard input does; the devices are gone then. The kernel can
do the same (netem), but many are built without.

What is lost depends on the seed and on the number of frames that came before it in the same direction. Multicasts do
not count, and are not lost: only the kernels at both ends send them, whenever they like.
"""

from __future__ import annotations

import fcntl
import os
import random
import select
import struct
import sys
import time
from collections import deque
from dataclasses import dataclass, field

# linux/if_tun.h
TUNSETIFF = 0x400454CA
IFF_TAP, IFF_NO_PI = 0x0002, 0x1000

MAX_FRAME_BYTES = 1 << 16
MAX_FRAMES_AT_ONCE = 64  # so that what is due does not wait for a flood to end


def main() -> None:
    near_name, far_name, loss, delay_s, seed = sys.argv[1:]
    near, far = open_tap(near_name), open_tap(far_name)
    # Each direction draws its own lots, so that it does not matter when the frames of the other come.
    forward(
        Direction(near, far, float(loss), float(delay_s), random.Random(f"{seed} in")),
        Direction(far, near, float(loss), float(delay_s), random.Random(f"{seed} out")),
    )


def open_tap(name: str) -> int:
    """A new device in the namespace of this process."""
    tap = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(tap, TUNSETIFF, struct.pack("16sH22x", name.encode(), IFF_TAP | IFF_NO_PI))
    return tap


@dataclass(slots=True)
class Direction:
    """Frames on their way from one device to the other, in the order in which they are due."""

    source: int
    target: int
    loss: float
    delay_s: float
    lots: random.Random
    _frames: deque[tuple[float, bytes]] = field(default_factory=deque)

    def take(self, now: float) -> None:
        """Read some of the frames that wait at the source."""
        for _ in range(MAX_FRAMES_AT_ONCE):
            try:
                frame = os.read(self.source, MAX_FRAME_BYTES)
            except BlockingIOError:
                return
            if is_multicast(frame) or self.lots.random() >= self.loss:
                self._frames.append((now + self.delay_s, frame))

    def pass_on(self, now: float) -> float | None:
        """Write the frames that are due; the time when the next one is, if there is one."""
        while self._frames and self._frames[0][0] <= now:
            _, frame = self._frames.popleft()
            try:
                os.write(self.target, frame)
            except OSError:
                pass  # a device that is down takes nothing, like a machine that is off
        return self._frames[0][0] if self._frames else None


def forward(*directions: Direction) -> None:
    """Until the standard input ends."""
    print("ready", flush=True)
    stop = sys.stdin.fileno()
    while True:
        due = [time_s for direction in directions if (time_s := direction.pass_on(time.monotonic())) is not None]
        timeout_s = max(min(due) - time.monotonic(), 0) if due else None
        ready, _, _ = select.select([stop, *(direction.source for direction in directions)], [], [], timeout_s)
        if stop in ready:
            return
        for direction in directions:
            if direction.source in ready:
                direction.take(time.monotonic())


def is_multicast(frame: bytes) -> bool:
    return bool(frame[0] & 1)


if __name__ == "__main__":
    main()
