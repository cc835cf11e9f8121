"""What a worker is given to act as a driver: to find other actors, and to start some of its own."""

from __future__ import annotations

import msgspec

from asyncparl.protocol.node_messages import Job


class WorkerPass(msgspec.Struct, frozen=True):
    """The first packet on a worker's own socket. Not on its command line, which others can read."""

    master_address: str
    """Empty where there is none: then the actor cannot use others."""
    key_id: str
    key: bytes
    program_id: str
    class_path: tuple[str, str]
    job: Job
    """The program that it belongs to, as its driver opened it here."""
    num_restarts: int = 0
    """How many processes of the actor there were before this one."""
    call_timeout_s: float | None = None
    """How long a call of it may take, where the call does not say."""


CANNOT_START = b"!"
"""What a worker says first is its address, or this and the reason why it has none."""

encode_pass = msgspec.msgpack.Encoder().encode
decode_pass = msgspec.msgpack.Decoder(WorkerPass).decode
