"""The process of a private cluster: a master and a node, for one program, on this machine.

The same code as in any cluster, over socket files in a folder that only this user may enter, so without secrets. It
ends when its standard input closes, which is when the program ends, however that happens, and even if it was stopped
(SIGSTOP).
"""

from __future__ import annotations

import math
import os
import shutil
import signal
import sys
from functools import partial
from pathlib import Path

import msgspec
import trio

from asyncparl.ids import new_node_id
from asyncparl.machine import allow_many_files, host_identity, usable_memory_bytes, visible_gpus
from asyncparl.protocol.parties import NodeInfo
from asyncparl.protocol.resources import MAX_BYTES, Capacity
from asyncparl.runtime.dump_signal import tell_when_asked
from asyncparl.runtime.link import MAX_MESSAGE_BYTES
from asyncparl.runtime.logs import LogStore
from asyncparl.runtime.master import Master
from asyncparl.runtime.node import Node
from asyncparl.runtime.node_config import NodeConfig
from asyncparl.runtime.private import PrivateSetup
from asyncparl.runtime.versions import our_versions
from asyncparl.runtime.workers import WorkerPool
from asyncparl.runtime.zygote import go_on_without_parent
from asyncparl.runtime.zygote_client import ZygoteKind
from asyncparl.runtime.zygote_start import StartedZygote
from asyncparl.transport import dial, listen

_LAST_ANSWER_S = 2.0


async def _run(setup: PrivateSetup, started: StartedZygote) -> None:
    master_address, node_address = f"ipc://{setup.directory}/master", f"ipc://{setup.directory}/node"
    gpus = visible_gpus()
    info = NodeInfo(
        node_id=new_node_id(),
        name="this machine",
        capacity=_capacity(setup.cpus, len(gpus)),
        addresses=[node_address],
        host=host_identity(),
        versions=our_versions(),
    )
    async with trio.open_nursery() as nursery:
        pool = WorkerPool(nursery)
        try:
            job = setup.job
            pool.adopt(ZygoteKind(job.start_method, tuple(job.preload), tuple(job.sys_path)), started)
            nursery.start_soon(pool.run)
            nursery.start_soon(_until_eof, nursery.cancel_scope)
            master = Master(nursery, our_versions())
            with (
                listen(master_address, max_message_bytes=MAX_MESSAGE_BYTES) as for_driver,
                listen("memory://master") as for_node,
                listen(node_address, max_message_bytes=MAX_MESSAGE_BYTES) as node_listener,
            ):
                nursery.start_soon(master.run, [for_driver, for_node])
                config = NodeConfig(
                    info=info,
                    directory=setup.directory,
                    master_address=master_address,
                    gpus=gpus,
                    logs=LogStore(Path(setup.directory)) if setup.keeps_logs else None,
                )
                node = Node(config, pool, partial(dial, "memory://master"), nursery)
                nursery.start_soon(node.run, [node_listener])
                await node.master.joined.wait()
                sys.stdout.write(f"{master_address}\n")
                sys.stdout.flush()
                await node.over.wait()
                # The program closes our standard input once it has the answer.
                await trio.sleep(_LAST_ANSWER_S)
        finally:
            nursery.cancel_scope.cancel()  # first, so that nobody still waits for what is closed
            pool.close()


def _capacity(cpus: float | None, num_gpus: int) -> Capacity:
    """Without a number of CPUs nobody waits for them, nor for memory: `max_memory` is then a limit only."""
    if cpus is None:
        return Capacity(math.inf, num_gpus, MAX_BYTES)
    return Capacity(cpus, num_gpus, usable_memory_bytes())


async def _until_eof(scope: trio.CancelScope) -> None:
    """The program is gone when our standard input ends; so are we."""
    async with trio.lowlevel.FdStream(os.dup(0)) as stdin:
        async for _ in stdin:
            pass
    scope.cancel()


def main(line: bytes, started: StartedZygote | None) -> None:
    """Run a private cluster. Its folder is the first argument, so that it is removed whatever becomes of the rest.

    Args:
        line: a `PrivateSetup`; nothing if the program has died meanwhile.
        started: the zygote for the workers of the program.
    """
    allow_many_files()
    go_on_without_parent()
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    tell_when_asked("the private cluster of a program")
    try:
        if started is not None:
            trio.run(_run, msgspec.json.decode(line, type=PrivateSetup), started)
    finally:
        shutil.rmtree(sys.argv[1], ignore_errors=True)
