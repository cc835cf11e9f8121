"""How a zygote is started: with the standard library only, so that it can be done before anything else is imported.

Run as a script, this is the beginning of the process of a private cluster. Most of the time that it takes goes into
imports, its own and those of its zygote; so the zygote comes first, and both import at once.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping
from typing import Any, NamedTuple

THREAD_VARIABLES = ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS")
"""How many threads numerical libraries start. Read when they are loaded."""

_RUN_ZYGOTE = "from asyncparl.runtime.zygote import main; main()"


class StartedZygote(NamedTuple):
    """A zygote, and our end of the socket on which it is told what to do."""

    process: subprocess.Popen[bytes]
    control: socket.socket


def start_zygote(setup: Mapping[str, Any], environ: Mapping[str, str]) -> StartedZygote:
    """Start the process, a child of this one.

    Args:
        setup: the fields of `zygote.ZygoteSetup`, but for its socket.
        environ: its environment.
    """
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-P", "-c", _RUN_ZYGOTE, json.dumps({**setup, "control_fd": theirs.fileno()})],
            stdin=subprocess.DEVNULL,
            # Our own standard output tells our address; what a preloaded module prints must not get there.
            stdout=sys.stderr.fileno(),
            pass_fds=[theirs.fileno()],
            # What a terminal sends to its foreground as it goes away must not take those who clean up after us.
            start_new_session=True,
            # The zygote must have one thread, so numerical libraries may not start theirs when they are imported.
            env={**environ, **dict.fromkeys(THREAD_VARIABLES, "1")},
        )
    ours.setblocking(False)
    return StartedZygote(process, ours)


def _main() -> None:
    signal.pthread_sigmask(signal.SIG_SETMASK, ())  # whatever the program has blocked: it is inherited
    line = sys.stdin.buffer.readline()  # a `PrivateSetup`; nothing if the program has died meanwhile
    job = json.loads(line)["job"] if line else None
    started = job and start_zygote({name: job[name] for name in ("sys_path", "preload", "start_method")}, os.environ)

    from asyncparl.runtime.private_process import main

    main(line, started)


if __name__ == "__main__":
    _main()
