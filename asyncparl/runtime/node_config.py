"""What a node is made of, and what it needs of its worker processes."""

from __future__ import annotations

import socket
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from asyncparl.protocol.figures import WorkerFigures
from asyncparl.protocol.node_messages import ActorExited, ActorOutput, ActorStarted
from asyncparl.protocol.parties import NodeInfo
from asyncparl.runtime.code.store import CodeStore
from asyncparl.runtime.log import Log, Silence
from asyncparl.runtime.logs import LogStore
from asyncparl.runtime.worker_process import WorkerSpec
from asyncparl.transport import Admission


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeConfig:
    """What a node is made of."""

    info: NodeInfo
    directory: str
    """Only its user may enter it: the socket files of workers are there."""
    master_address: str = ""
    """For actors that use other actors."""
    secret: bytes = b""
    """Empty in a private cluster: whoever can reach its socket files is let in."""
    gpus: Sequence[str] = ()
    """The names of its GPUs, in the order of their ids."""
    preload: tuple[str, ...] = ()
    store: CodeStore | None = None
    logs: LogStore | None = None
    log: Log = field(default_factory=Silence)
    dial_back: Callable[[str], Awaitable[None]] | None = None
    """Connect to the master's port with a relay route, and take in whoever is there."""


class Workers(Protocol):
    """What a node needs of its worker processes; `WorkerPool`, or a simulated one."""

    async def start(
        self, spec: WorkerSpec, on_output: Callable[[ActorOutput], None], on_exit: Callable[[ActorExited], None]
    ) -> ActorStarted: ...
    def owner_of(self, actor_id: str) -> int | None: ...
    def hand_over(self, actor_id: str, connection: socket.socket, admission: Admission) -> bool: ...
    async def stop(self, actor_id: str, grace_s: float, *, is_final: bool = False) -> None: ...
    async def stop_owned_by(self, owner: int, grace_s: float, reason: str, *, is_gone: bool) -> None: ...
    async def stop_all(self, grace_s: float, reason: str, *, is_final: bool = False) -> None: ...
    def pids(self) -> dict[str, int]: ...
    def why_starting(self, actor_id: str) -> str: ...
    async def figures(self) -> dict[str, WorkerFigures]: ...
