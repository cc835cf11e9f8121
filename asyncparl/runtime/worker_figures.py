"""What a node asks its workers when somebody watches it.

A worker is asked over its own socket: one small packet there, one back. One that does not answer in time is not waited
for; what it says later is dropped.
"""

from __future__ import annotations

import socket
from collections.abc import Mapping

import msgspec
import trio

from asyncparl.protocol.figures import WorkerFigures
from asyncparl.runtime.figures import ASK_FIGURES
from asyncparl.runtime.zygote import MAX_PACKET_BYTES

_PATIENCE_S = 0.5

_decode = msgspec.msgpack.Decoder(WorkerFigures).decode


class WorkerAsker:
    """Asks workers. Only one round at a time."""

    def __init__(self) -> None:
        self._turn = trio.Lock()
        self._num_rounds = 0

    async def ask(self, controls: Mapping[str, socket.socket]) -> dict[str, WorkerFigures]:
        """What each of them says, as far as they answer in time. By the keys of `controls`."""
        async with self._turn:
            self._num_rounds += 1
            question = ASK_FIGURES + b"%d " % self._num_rounds
            answers: dict[str, WorkerFigures] = {}
            asked = {key: control for key, control in controls.items() if _send(control, question)}
            with trio.move_on_after(_PATIENCE_S):
                async with trio.open_nursery() as nursery:
                    for key, control in asked.items():
                        nursery.start_soon(_take_answer, key, control, question, answers)
            return answers


async def ask_one(control: socket.socket, within_s: float) -> WorkerFigures | None:
    """What one of them says, if it says so soon, and nobody else asks it at the same time."""
    answers: dict[str, WorkerFigures] = {}
    question = ASK_FIGURES + b"one "
    if _send(control, question):
        with trio.move_on_after(within_s):
            await _take_answer("", control, question, answers)
    return answers.get("")


def _send(control: socket.socket, packet: bytes) -> bool:
    try:
        control.send(packet)
    except OSError:
        return False  # it has ended, or reads nothing
    return True


async def _take_answer(key: str, control: socket.socket, question: bytes, answers: dict[str, WorkerFigures]) -> None:
    while True:
        try:
            packet = control.recv(MAX_PACKET_BYTES)
        except BlockingIOError:
            try:
                await trio.lowlevel.wait_readable(control)
            except (trio.ClosedResourceError, trio.BusyResourceError):
                return
            continue
        except OSError:
            return
        if not packet:
            return
        if packet.startswith(question):  # not one that came too late for an earlier question
            try:
                answers[key] = _decode(packet[len(question) :])
            except msgspec.MsgspecError:
                pass  # the actor's own code may write to any descriptor
            return
