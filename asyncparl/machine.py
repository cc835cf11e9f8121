"""What this machine has, as far as this process may use it, and which machine it is. Knows nothing of the package."""

from __future__ import annotations

import contextlib
import errno
import os
import platform
import re
import resource
import socket
import sys
import tempfile
from pathlib import Path

_CGROUP_CPUS = Path("/sys/fs/cgroup/cpu.max")
_CGROUP_MEMORY = Path("/sys/fs/cgroup/memory.max")
_CGROUP_MOUNTS = ("/sys/fs/cgroup", "/sys/fs/cgroup/unified")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
_NETWORK_NAMESPACE = Path("/proc/self/ns/net")
_NVIDIA_DEVICES = "/dev"
_ENOUGH_FILES = 1 << 16
_MAX_FOLDER_BYTES = 60
"""The path of a socket file has at most 107; what comes below takes up to 40."""
_NOT_UTF8 = re.compile(r"[\x10\ud800-\udfff]")
_ESCAPED = re.compile(r"\x10([0-9a-f]{4})")
"""The control character "data link escape": whoever does not know of this has a path that can be, and is not there."""


def folder_for_sockets() -> str:
    """Where folders with socket files go: the folder for temporary files, unless its path is too long for them.

    Nor if it is not UTF-8: it becomes part of addresses.
    """
    folder = tempfile.gettempdir()
    return folder if len(os.fsencode(folder)) <= _MAX_FOLDER_BYTES and folder == printable(folder) else "/tmp"


def escape_text(text: str) -> str:
    """A text of the system's, such as a path, as one that UTF-8 can express; `restore_text` is the way back.

    Arguments and paths may be any bytes. Python has those that are no text as surrogates ("surrogateescape").
    """
    return _NOT_UTF8.sub(lambda found: f"\x10{ord(found[0]):04x}", text)


def restore_text(text: str) -> str:
    """What `escape_text` has made this of."""
    return _ESCAPED.sub(lambda found: chr(int(found[1], 16)), text)


def printable(text: str) -> str:
    """A text of the system's for people: UTF-8 can express it."""
    return text.encode(errors="backslashreplace").decode()


def usable_cpus() -> int:
    """CPUs that this process may use: its affinity, and the quota of its container if that is less."""
    num_cpus = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, min(num_cpus, _cgroup_cpus() or num_cpus))


def usable_memory_bytes() -> int:
    """The machine's memory, or the limit of its container if that is less."""
    total = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    try:
        limit = _CGROUP_MEMORY.read_text().strip()
        return min(total, int(limit))
    except (OSError, ValueError):
        return total


def visible_gpus() -> list[str]:
    """The NVIDIA GPUs that this process may use, as `CUDA_VISIBLE_DEVICES` names them. No CUDA context is made."""
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES")
    if chosen is not None:
        return [name.strip() for name in chosen.split(",") if name.strip() and name.strip() != "-1"]
    try:
        devices = os.listdir(_NVIDIA_DEVICES)
    except OSError:
        return []
    # Their numbers are not those of CUDA, which counts the ones that it sees.
    return [str(index) for index, _ in enumerate(name for name in devices if name.removeprefix("nvidia").isdigit())]


def num_oom_kills() -> int:
    """How many processes the kernel has killed for want of memory: of our control group, else of the machine."""
    for path in [*_oom_counters(), Path("/proc/vmstat")]:
        with contextlib.suppress(OSError):
            for line in path.read_text().splitlines():
                if line.startswith("oom_kill "):
                    return int(line.split()[1])
    return 0


def host_identity() -> str:
    """The same for two processes exactly if they share the kernel and its network: then socket files work between them.

    A host name would not do: containers share it, and several machines may have the same.

    Raises:
        OSError: too many files are open.
    """
    try:
        return f"{_BOOT_ID.read_text().strip()}/{os.readlink(_NETWORK_NAMESPACE)}"
    except OSError as error:
        if out_of_files(error):
            raise
        return f"{platform.node()}/{platform.system()}"


def own_address(towards: str) -> str | None:
    """Which of this machine's addresses the system would use towards another one, by name or address. Sends nothing."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(towards, 9, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None


def allow_many_files() -> None:
    """Raise this process's soft limit of open files, as far as it may: a link takes several, and actors are many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _ENOUGH_FILES if hard == resource.RLIM_INFINITY else min(hard, _ENOUGH_FILES)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        with contextlib.suppress(OSError, ValueError):  # then the usual error comes where a file cannot be opened
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def open_standard_streams() -> None:
    """Where a program was started without one of them, have it lead nowhere: its number would be given to a socket."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free
    for name in ("stdout", "stderr"):
        if getattr(sys, name) is None:
            stream = open(os.devnull, "w")  # noqa: SIM115
            setattr(sys, name, stream)
            setattr(sys, f"__{name}__", stream)  # whoever wraps the one must not close it by that


def explain(error: BaseException, who: str = "this process") -> str:
    """An error of this process in words. Where too many files are open: whose limit that is, and what to do.

    Args:
        who: which process this is, for people.
    """
    return out_of_files(error, who) or str(error) or repr(error)


def out_of_files(error: BaseException, who: str = "this process") -> str:
    """The same, but empty if it is not that too many files are open."""
    number = None
    if isinstance(error, OSError):
        with contextlib.suppress(Exception):  # whatever a class of the user's makes of it
            number = error.errno
    if number == errno.ENFILE:
        return "Too many open files on this machine: close some, or raise its limit (sysctl fs.file-max)"
    if number != errno.EMFILE:
        return ""
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    soft, hard = ("unlimited" if limit == resource.RLIM_INFINITY else limit for limit in limits)
    return (
        f"Too many open files: {who} (pid {os.getpid()}) may have {soft} (ulimit -n; its hard limit is {hard}); "
        "start it with a higher limit, or use fewer actors"
    )


def is_stopped(pid: int) -> bool:
    """Whether a process was stopped (SIGSTOP, or by a debugger); False where the system does not tell."""
    try:
        # The name in parentheses may hold anything; the state comes after it.
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "Tt"
    except (OSError, IndexError):
        return False


def python_version() -> str:
    """Such as 3.11."""
    return ".".join(platform.python_version_tuple()[:2])


def installed_version(distribution: str) -> str:
    """The version of an installed package, empty if there is none. Does not import it."""
    from importlib import metadata  # slow to import

    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return ""


def _oom_counters() -> list[Path]:
    """Where our control group counts, whichever version of control groups the machine has."""
    try:
        lines = Path("/proc/self/cgroup").read_text().splitlines()
    except OSError:
        return []
    found = []
    for _, controllers, path in (line.split(":", 2) for line in lines):
        if "memory" in controllers.split(","):
            found.append(Path(f"/sys/fs/cgroup/memory{path}/memory.oom_control"))
        elif not controllers:
            found += [Path(f"{mount}{path}/memory.events") for mount in _CGROUP_MOUNTS]
    return found


def _cgroup_cpus() -> int | None:
    """The CPU quota of the control group, rounded up; None if there is none."""
    try:
        quota, period = _CGROUP_CPUS.read_text().split()
        return None if quota == "max" else -(-int(quota) // int(period))
    except (OSError, ValueError):
        return None
