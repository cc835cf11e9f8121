"""The fuzzer's targets, for a moment and without its guide: correct input and the same with some bytes changed."""

from __future__ import annotations

import random

import pytest

from tests.fuzz.targets import TARGETS, correct_inputs

NUM_CHANGED = 2_000


def _changed(data: bytes, dice: random.Random) -> bytes:
    changed = bytearray(data)
    for _ in range(dice.choice([1, 1, 2, 8])):
        at = dice.randrange(len(changed) + 1)
        match dice.choice(["replace", "insert", "remove"]):
            case "replace" if at < len(changed):
                changed[at] = dice.choice([0, 1, 0x7F, 0xFF, dice.randrange(256)])
            case "insert":
                changed.insert(at, dice.randrange(256))
            case _:
                del changed[at : at + dice.choice([1, 8])]
    return bytes(changed)


@pytest.mark.parametrize("name", TARGETS)
def test_whatever_a_peer_sends_is_read_or_refused_by_name(name: str) -> None:
    target, inputs, dice = TARGETS[name], correct_inputs(name, 100), random.Random(1)
    for data in inputs:
        target(data)
    for _ in range(NUM_CHANGED):
        target(_changed(dice.choice(inputs), dice))
