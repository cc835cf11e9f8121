"""Weights that actors of one host read in place: never while they are written, never those of somebody else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from numpy.typing import NDArray

import asyncparl
from asyncparl.rl import WeightLayout
from asyncparl.training import Trainer, TrainingConfig
from asyncparl.training.actor import ActorSetup, RolloutActor
from asyncparl.training.build import find_interface, make_model
from asyncparl.training.environments import CATCH_ID
from asyncparl.training.exchange import Delivery, NewestWeights
from asyncparl.training.weight_board import BoardAddress, BoardReader, WeightBoard

LIMIT_S = 100
NUM_BYTES = 5000
NUM_SLOTS = 3


def weights(value: int) -> NDArray[np.uint8]:
    return np.full(NUM_BYTES, value, np.uint8)


def reader_of(board: WeightBoard) -> BoardReader:
    reader = BoardReader.open(board.address)
    assert reader is not None
    return reader


def test_a_version_is_written_once_however_many_read_it() -> None:
    with WeightBoard(NUM_BYTES, NUM_SLOTS) as board:
        reader = reader_of(board)
        slots = [board.lend(7, weights(7)), board.lend(7, weights(99)), board.lend(7, weights(99))]
        assert len(set(slots)) == 1 and slots[0] is not None
        assert np.array_equal(reader.weights(slots[0]), weights(7))


def test_what_is_being_read_is_not_written_to() -> None:
    with WeightBoard(NUM_BYTES, NUM_SLOTS) as board:
        reader = reader_of(board)
        slots: list[Any] = [board.lend(version, weights(version)) for version in range(NUM_SLOTS)]
        assert sorted(slots) == list(range(NUM_SLOTS))
        assert board.lend(50, weights(50)) is None
        assert board.lend(1, weights(1)) == slots[1]
        board.give_back(slots[1])
        assert board.lend(51, weights(51)) is None  # there is one reader left
        board.give_back(slots[1])
        assert board.lend(52, weights(52)) == slots[1]
        assert [int(reader.weights(slot)[-1]) for slot in slots] == [0, 52, 2]


def test_slots_take_memory_when_they_are_used() -> None:
    with WeightBoard(10 << 20, num_slots=100) as board:
        packed = np.ones(10 << 20, np.uint8)
        for version in range(5):
            slot = board.lend(version, packed)
            assert slot == 0
            board.give_back(slot)
        assert os.fstat(board.address.fd).st_blocks * 512 < 11 << 20


def test_actors_cannot_write_to_it() -> None:
    with WeightBoard(NUM_BYTES, NUM_SLOTS) as board:
        view = reader_of(board).weights(0)
        assert not view.flags.writeable
        with pytest.raises(ValueError, match=r"cannot set WRITEABLE flag"):
            view.setflags(write=True)


@pytest.mark.parametrize(
    "change",
    [
        lambda address: address._replace(host="another"),
        lambda address: address._replace(token=bytes(16)),
        lambda address: address._replace(fd=10_000),
        lambda address: address._replace(fd=os.open("/dev/null", os.O_RDONLY)),
        lambda address: address._replace(num_bytes=10 * NUM_BYTES),
    ],
    ids=["host", "token", "no descriptor", "no file", "too short"],
)
def test_who_cannot_see_it_finds_none(change: Callable[[BoardAddress], BoardAddress]) -> None:
    with WeightBoard(NUM_BYTES, NUM_SLOTS) as board:
        address = change(board.address)
        assert BoardReader.open(address) is None
        if os.path.exists(f"/proc/self/fd/{address.fd}") and address.fd != board.address.fd:
            os.close(address.fd)


def test_a_reader_sees_it_to_the_end_of_the_reader(tmp_path: Path) -> None:
    with WeightBoard(NUM_BYTES, NUM_SLOTS) as board:
        reader, slot = reader_of(board), board.lend(3, weights(3))
        assert slot is not None
    assert np.array_equal(reader.weights(slot), weights(3))
    assert BoardReader.open(board.address) is None
    assert board.lend(4, weights(4)) is None


def test_another_process_reads_what_this_one_writes() -> None:
    program = (
        "import sys; from asyncparl.training.weight_board import BoardAddress, BoardReader\n"
        "reader = BoardReader.open(BoardAddress(**eval(sys.argv[1])))\n"
        "for line in sys.stdin: print(int(reader.weights(int(line)).sum()), flush=True)\n"
    )
    with WeightBoard(NUM_BYTES, NUM_SLOTS) as board:
        command = [sys.executable, "-c", program, repr(board.address._asdict())]
        with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdin is not None and process.stdout is not None
            for version in (1, 2, 250):
                slot = board.lend(version, weights(version))
                assert slot is not None
                process.stdin.write(f"{slot}\n")
                process.stdin.flush()
                assert int(process.stdout.readline()) == version * NUM_BYTES
                board.give_back(slot)
            process.stdin.close()
            assert process.wait(LIMIT_S) == 0


# --- actors -------------------------------------------------------------------------------------------------------

CONFIG = TrainingConfig(env=CATCH_ID, envs_per_actor=2, batch_size=2, unroll_length=5, num_actors=2)


def packed_weights(seed: int) -> NDArray[np.uint8]:
    torch.manual_seed(seed)
    model = make_model(find_interface(CONFIG), None)
    return WeightLayout.of(model).pack(model)


@pytest.mark.slow
async def test_an_actor_plays_the_same_with_weights_from_the_board() -> None:
    newest = NewestWeights(0, packed_weights(0))
    with trio.fail_after(LIMIT_S), WeightBoard(newest.packed.nbytes, NUM_SLOTS) as board:
        async with asyncparl.connect():
            setup = ActorSetup(CONFIG, None, first_environment=0)
            elsewhere = board.address._replace(host="another")
            actors: list[Any] = [RolloutActor(setup, board.address), RolloutActor(setup, elsewhere)]
            sees = [await Delivery(actor, newest, None).wait() for actor in actors]
            assert sees == [True, False]
            for version in (1, 2, 3, 4, 5):
                newest.version, newest.packed = version, packed_weights(version)
                await Delivery(actors[0], newest, board).wait()
                await Delivery(actors[1], newest, None).wait()
                one, other = [(await actor.rollout()) for actor in actors]
                assert one.record.weights_version == other.record.weights_version == version
                assert np.array_equal(one.rollout.behaviour_log_probs, other.rollout.behaviour_log_probs)
                assert np.array_equal(one.rollout.actions, other.rollout.actions)
            counts = [(await actor.statistics())["weights_read_in_place"] for actor in actors]
            assert counts == [5, 0]


@pytest.mark.slow
async def test_an_actor_that_died_gives_its_slot_back() -> None:
    newest = NewestWeights(1, packed_weights(0))
    with trio.fail_after(LIMIT_S), WeightBoard(newest.packed.nbytes, NUM_SLOTS) as board:
        async with asyncparl.connect():
            actor: Any = RolloutActor(ActorSetup(CONFIG, None, first_environment=0), board.address)
            await Delivery(actor, newest, None).wait()
            await asyncparl.kill(actor)
            for _ in range(2 * NUM_SLOTS):
                newest.version += 1
                delivery = Delivery(actor, newest, board)
                assert delivery._slot is not None
                with pytest.raises(asyncparl.ActorDied):
                    await delivery.wait()


@pytest.mark.slow
@pytest.mark.parametrize("settings", [{}, {"algorithm": "a2c"}, {"repeatable": True, "num_actors": 1}], ids=str)
async def test_a_run_has_its_actors_read_weights_in_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, settings: dict[str, Any]
) -> None:
    lent: list[int | None] = []
    lend = WeightBoard.lend
    monkeypatch.setattr(WeightBoard, "lend", lambda *args: (lent.append(lend(*args)), lent[-1])[1])
    config = CONFIG.replace(steps=2000, batch_size=4, **settings)
    with trio.fail_after(LIMIT_S):
        result = await Trainer(config, run_dir=tmp_path / "run").run()
    assert result.agent_steps >= 2000
    assert len(lent) > 10 and None not in lent
