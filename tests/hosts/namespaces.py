"""Network namespaces with a name, which the next run removes if the one that made them could not.

The name of a namespace keeps it alive when all of its processes have ended. It contains the pid and the start time of
its maker, so that anyone can tell a leftover: that process is gone.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from tests.proc import Process

FOLDER = Path("/var/run/netns")  # where iproute2 keeps the names
PREFIX = "asyncparl-test-"
NAME = re.compile(rf"{PREFIX}(?P<pid>\d+)-(?P<start_ticks>\d+)-.+")

TOOL_TIMEOUT_S = 30.0
KILL_TIMEOUT_S = 10.0
POLL_S = 0.005

FAMILIES = ("iptables-restore", "ip6tables-restore")
TOOLS = ("ip", "nsenter", "sh", *FAMILIES)

# What a new namespace takes over from the machine it is on; everything else about TCP it has from the kernel.
TCP_DEFAULTS = {
    "ipv4/tcp_rmem": "4096 131072 6291456",
    "ipv4/tcp_wmem": "4096 16384 4194304",
}
# A namespace may choose only what the machine allows everybody. Reno always is, and like cubic it goes by losses.
SET_CONGESTION_CONTROL = """
cd /proc/sys/net/ipv4
echo cubic 2>/dev/null > tcp_congestion_control || echo reno > tcp_congestion_control
"""


class HostsError(Exception):
    """This machine did not let us make or change another one; the text is what its tool said."""


def run_tool(*command: str, script: str = "") -> str:
    """Run a command that has to succeed, with the script as its input; what it prints."""
    try:
        done = subprocess.run(
            command,
            input=script,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            check=True,
            timeout=TOOL_TIMEOUT_S,
        )
    except subprocess.CalledProcessError as error:
        raise HostsError(f"{' '.join(command)}: {error.stdout.strip()}") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise HostsError(str(error)) from error
    return done.stdout


class Namespace:
    """A network of its own for some processes, which are as they would be elsewhere otherwise."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.path = FOLDER / name
        self._processes: list[subprocess.Popen[Any]] = []

    def add(self) -> None:
        run_tool("ip", "netns", "add", self.name)

    def command(self, arguments: Sequence[str]) -> list[str]:
        """The command line that runs the other one in here, as the very process that was started."""
        return ["nsenter", f"--net={self.path}", "--", *arguments]

    def start(self, arguments: Sequence[str], **popen: Any) -> subprocess.Popen[Any]:
        """Start a process in a session of its own; `kill` ends it and what it has started."""
        process = subprocess.Popen(self.command(arguments), start_new_session=True, **popen)
        self._processes.append(process)
        return process

    def ip(self, lines: Iterable[str]) -> str:
        """Commands for `ip`, one a line; what they print."""
        return run_tool("ip", "-n", self.name, "-batch", "-", script="\n".join(lines))

    def configure(self, settings: Mapping[str, str]) -> None:
        """Values for files in /proc/sys/net, and TCP's defaults."""
        lines = [f"echo {value} > /proc/sys/net/{key}" for key, value in {**TCP_DEFAULTS, **settings}.items()]
        run_tool(*self.command(["sh", "-e"]), script="\n".join(lines) + SET_CONGESTION_CONTROL)

    def iptables(self, **tables: Iterable[str]) -> None:
        """Replace all rules of these tables, for IPv4 and IPv6, each in one step."""
        script = "".join("\n".join([f"*{table}", *rules, "COMMIT", ""]) for table, rules in tables.items())
        for restore in FAMILIES:
            run_tool(*self.command([restore, "--wait"]), script=script)

    def kill_started(self) -> None:
        """Kill what was started here, with its process groups, and wait for it."""
        for process in self._processes:
            # Once it has been waited for, its pid may be somebody else's.
            if process.poll() is None:
                os.killpg(process.pid, signal.SIGKILL)
        for process in self._processes:
            _finish(process)
        self._processes.clear()

    def remove(self) -> None:
        """Forget the name; the namespace is gone when nobody is in it. Does nothing if there is no such name."""
        try:
            if self.path.exists():
                run_tool("ip", "netns", "del", self.name)
        except HostsError:
            # Two runs may find the same leftover.
            if self.path.exists():
                raise


def remove_all(namespaces: Sequence[Namespace]) -> None:
    """Remove them with everybody who is in there. Each is tried, whatever happened to the others."""
    with ExitStack() as stack:
        for namespace in namespaces:
            stack.callback(namespace.remove)
        stack.callback(_kill_inside, [namespace.path for namespace in namespaces])
        for namespace in namespaces:
            stack.callback(namespace.kill_started)


def remove_leftovers() -> None:
    """Remove what the processes that are gone have left: killed ones remove nothing themselves."""
    names = os.listdir(FOLDER) if FOLDER.exists() else []
    remove_all([Namespace(name) for name in names if _is_leftover(name)])


def _is_leftover(name: str) -> bool:
    match = NAME.fullmatch(name)
    if match is None:
        return False
    maker = Process(int(match["pid"]), int(match["start_ticks"]))
    return Process.read(maker.pid) != maker


def _kill_inside(paths: Iterable[Path]) -> None:
    """Also those who left their process group, or whose parents are gone, and those they start meanwhile."""
    inside = {identity for path in paths if (identity := _identity(path)) is not None}
    deadline = time.monotonic() + KILL_TIMEOUT_S
    while pids := [pid for pid in _pids() if _identity(Path(f"/proc/{pid}/ns/net")) in inside]:
        if time.monotonic() > deadline:
            raise HostsError(f"these processes cannot be killed: {pids}")
        for pid in pids:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                pass  # it has just ended
        time.sleep(POLL_S)


def _identity(namespace: Path) -> tuple[int, int] | None:
    try:
        status = namespace.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


def _pids() -> list[int]:
    return [int(name) for name in os.listdir("/proc") if name.isdigit()]


def _finish(process: subprocess.Popen[Any]) -> None:
    """Wait for a process that was killed, and close our ends of its pipes."""
    if process.stdin is not None:
        try:
            process.stdin.close()
        except BrokenPipeError:
            pass  # what was still in the buffer is for nobody
    with process:
        pass
