"""Which processes belong to this test run, read from /proc.

psutil tells the children of this process, but not those whose parent has died: they belong to process 1 then. The mark
in the environment finds them wherever they are. The environment of a forked process cannot be read (the kernel shows
the one that its parent was started with), but its stack is where its parent's is, which is true of no other process.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import NamedTuple

# Positions in /proc/PID/stat after the name of the program; see proc(5).
STATE, PARENT, START_TIME = 0, 1, 19
STACK_ADDRESSES = (25, 45, 47)  # startstack, arg_start, env_start


class Process(NamedTuple):
    """A process; unlike a pid it is never used again."""

    pid: int
    start_ticks: int

    @classmethod
    def read(cls, pid: int) -> Process | None:
        fields = _stat(pid)
        return None if fields is None else cls(pid, int(fields[START_TIME]))


def process_table(mark: bytes, foreign: set[int]) -> frozenset[Process]:
    """Every process of this run but this one, also a child that has ended and was not waited for.

    Args:
        mark: what the environment of each contains.
        foreign: pids that are known to be somebody else's; kept up to date here, because looking is slow.
    """
    own_pid = os.getpid()
    pids = _pids()
    foreign &= pids
    table = {pid: fields for pid in pids - foreign if (fields := _stat(pid)) is not None}
    own_stack = _stack(table.get(own_pid, []))
    ours: dict[int, Process] = {}
    # Parents come before their children.
    for pid, fields in sorted(table.items(), key=lambda item: (int(item[1][START_TIME]), item[0])):
        if pid == own_pid:
            continue
        parent = int(fields[PARENT])
        is_dead = fields[STATE] in "ZX"
        is_fork = own_stack is not None and _stack(fields) == own_stack
        if parent == own_pid or (not is_dead and (parent in ours or is_fork or _has(pid, mark))):
            ours[pid] = Process(pid, int(fields[START_TIME]))
        elif not is_dead:
            foreign.add(pid)
    return frozenset(ours.values())


def is_gone(pid: int) -> bool:
    """Whether a process has ended; its parent may not know of it yet."""
    fields = _stat(pid)
    return fields is None or fields[STATE] == "Z"


def command_line(process: Process) -> str:
    """For people: pid, command, and whether it only has to be waited for."""
    fields = _stat(process.pid)
    if fields is None:
        return f"{process.pid} (has just ended)"
    if fields[STATE] == "Z":
        return f"{process.pid} (has ended; nobody has waited for it)"
    try:
        command = Path(f"/proc/{process.pid}/cmdline").read_bytes()
    except OSError:
        command = b""
    return f"{process.pid} {command.replace(bytes(1), b' ').decode(errors='replace')[:200]}"


def processes_using(path: Path) -> set[int]:
    """Those that have the file open or mapped, as far as we may look. Slow."""
    return {pid for pid in _pids() if _is_mapped(pid, path) or _is_open(pid, path)}


def _is_mapped(pid: int, path: Path) -> bool:
    try:
        return str(path) in Path(f"/proc/{pid}/maps").read_text(errors="replace")
    except OSError:
        return False


def _is_open(pid: int, path: Path) -> bool:
    try:
        return any(os.readlink(f"/proc/{pid}/fd/{fd}") == str(path) for fd in os.listdir(f"/proc/{pid}/fd"))
    except OSError:
        return False


def _pids() -> set[int]:
    try:
        return {int(name) for name in os.listdir("/proc") if name.isdigit()}
    except OSError:
        return set()


def _stat(pid: int) -> list[str] | None:
    try:
        text = Path(f"/proc/{pid}/stat").read_text(errors="replace")
    except OSError:
        return None
    return text.rpartition(")")[2].split()


def _stack(fields: list[str]) -> tuple[str, ...] | None:
    """Where its stack is; None if we may not know, or it has none any more."""
    addresses = tuple(fields[i] for i in STACK_ADDRESSES) if fields else ()
    return addresses if any(address != "0" for address in addresses) else None


def _has(pid: int, mark: bytes) -> bool:
    try:
        return mark in Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return False
