"""What a worker is given to act as a driver: to find other actors, and to start some of its own."""

from __future__ import annotations

import msgspec

from asyncparl.protocol.control import Job


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


encode_pass = msgspec.msgpack.Encoder().encode
decode_pass = msgspec.msgpack.Decoder(WorkerPass).decode
