"""Weights that actors of one host read in place: never while they are written, never those of somebody else."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from numpy.typing import NDArray
from trio.testing import MockClock

import asyncparl
from asyncparl.rl import WeightLayout
from asyncparl.training import Trainer, TrainingConfig
from asyncparl.training.actor import ActorSetup, RolloutActor
from asyncparl.training.build import find_interface, make_model
from asyncparl.training.environments import CATCH_ID
from asyncparl.training.exchange import Delivery, NewestWeights
from asyncparl.training.weight_board import BoardAddress, BoardMemory, BoardReader, this_host
from asyncparl.training.weight_boards import Seat, WeightBoard, WeightBoards

LIMIT_S = 100
NUM_BYTES = 5000
NUM_SLOTS = 3


def weights(value: int) -> NDArray[np.uint8]:
    return np.full(NUM_BYTES, value, np.uint8)


@pytest.fixture
def memory() -> Iterator[BoardMemory]:
    memory = BoardMemory(NUM_BYTES, NUM_SLOTS)
    yield memory
    memory.close()


def reader_of(memory: BoardMemory) -> BoardReader:
    reader = BoardReader.open(memory.address)
    assert reader is not None
    return reader


def board_of(memory: BoardMemory) -> WeightBoard:
    async def write(slot: int, packed: NDArray[np.uint8]) -> bool:
        return memory.write(slot, packed)

    return WeightBoard(memory.address, write)


async def test_a_version_is_written_once_however_many_read_it(memory: BoardMemory) -> None:
    board, reader = board_of(memory), reader_of(memory)
    slots = [await board.lend(7, weights(7)), await board.lend(7, weights(99)), await board.lend(7, weights(99))]
    assert len(set(slots)) == 1 and slots[0] is not None
    assert np.array_equal(reader.weights(slots[0]), weights(7))


async def test_what_is_being_read_is_not_written_to(memory: BoardMemory) -> None:
    board, reader = board_of(memory), reader_of(memory)
    slots: list[Any] = [await board.lend(version, weights(version)) for version in range(NUM_SLOTS)]
    assert sorted(slots) == list(range(NUM_SLOTS))
    assert await board.lend(50, weights(50)) is None
    assert await board.lend(1, weights(1)) == slots[1]
    board.give_back(slots[1])
    assert await board.lend(51, weights(51)) is None  # there is one reader left
    board.give_back(slots[1])
    assert await board.lend(52, weights(52)) == slots[1]
    assert [int(reader.weights(slot)[-1]) for slot in slots] == [0, 52, 2]


async def test_who_wants_what_is_being_written_waits_for_it(memory: BoardMemory, autojump_clock: MockClock) -> None:
    written: list[int] = []

    async def write(slot: int, packed: NDArray[np.uint8]) -> bool:
        await trio.sleep(1)
        written.append(slot)
        return memory.write(slot, packed)

    board, reader, num_read = WeightBoard(memory.address, write), reader_of(memory), 0

    async def read(version: int) -> None:
        nonlocal num_read
        slot = await board.lend(version, weights(version))
        assert slot is not None and np.array_equal(reader.weights(slot), weights(version))
        num_read += 1
        await trio.sleep(5)

    async with trio.open_nursery() as nursery:
        for version in (1, 2, 1, 2, 1):
            nursery.start_soon(read, version)
    assert (num_read, len(written), trio.current_time()) == (5, 2, 6)


async def test_what_could_not_be_written_is_lent_to_nobody(memory: BoardMemory, autojump_clock: MockClock) -> None:
    async def write(slot: int, packed: NDArray[np.uint8]) -> bool:
        await trio.sleep(1)
        return has_memory and memory.write(slot, packed)

    board, lent, has_memory = WeightBoard(memory.address, write), list[int | None](), False

    async def lend() -> None:
        lent.append(await board.lend(1, weights(1)))

    async with trio.open_nursery() as nursery:
        nursery.start_soon(lend)
        nursery.start_soon(lend)
    assert lent == [None, None] and board._num_readers == [0, 0, 0]
    with trio.move_on_after(0.5):
        await board.lend(1, weights(1))
    has_memory = True
    assert await board.lend(1, weights(1)) == 0
    assert board._num_readers == [1, 0, 0]


async def test_a_board_whose_writer_is_dead_lends_nothing_more(memory: BoardMemory) -> None:
    async def write(slot: int, packed: NDArray[np.uint8]) -> bool:
        raise asyncparl.ActorDied("RolloutActor#1", "it was killed")

    board = WeightBoard(memory.address, write)
    assert await board.lend(1, weights(1)) is None
    assert board.is_lost
    assert await board.lend(2, weights(2)) is None


def test_slots_take_memory_when_they_are_used() -> None:
    memory = BoardMemory(10 << 20, num_slots=100)
    for _ in range(5):
        assert memory.write(3, np.ones(10 << 20, np.uint8))
    assert os.fstat(memory.address.fd).st_blocks * 512 < 11 << 20
    memory.close()
    assert not memory.write(3, np.ones(10 << 20, np.uint8))


def test_actors_cannot_write_to_it(memory: BoardMemory) -> None:
    view = reader_of(memory).weights(0)
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
def test_who_cannot_see_it_finds_none(memory: BoardMemory, change: Callable[[BoardAddress], BoardAddress]) -> None:
    address = change(memory.address)
    assert BoardReader.open(address) is None
    if os.path.exists(f"/proc/self/fd/{address.fd}") and address.fd != memory.address.fd:
        os.close(address.fd)


def test_a_reader_sees_it_to_the_end_of_the_reader(memory: BoardMemory) -> None:
    reader = reader_of(memory)
    memory.write(0, weights(3))
    memory.close()
    assert np.array_equal(reader.weights(0), weights(3))
    assert BoardReader.open(memory.address) is None


def test_another_process_reads_what_this_one_writes(memory: BoardMemory) -> None:
    program = (
        "import sys; from asyncparl.training.weight_board import BoardAddress, BoardReader\n"
        "reader = BoardReader.open(BoardAddress(**eval(sys.argv[1])))\n"
        "for line in sys.stdin: print(int(reader.weights(int(line)).sum()), flush=True)\n"
    )
    command = [sys.executable, "-c", program, repr(memory.address._asdict())]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        for slot, value in ((0, 1), (2, 2), (0, 250)):
            memory.write(slot, weights(value))
            process.stdin.write(f"{slot}\n")
            process.stdin.flush()
            assert int(process.stdout.readline()) == value * NUM_BYTES
        process.stdin.close()
        assert process.wait(LIMIT_S) == 0


# --- actors -------------------------------------------------------------------------------------------------------

CONFIG = TrainingConfig(env=CATCH_ID, envs_per_actor=2, batch_size=2, unroll_length=5, num_actors=2)


def packed_weights(seed: int) -> NDArray[np.uint8]:
    torch.manual_seed(seed)
    model = make_model(find_interface(CONFIG), None)
    return WeightLayout.of(model).pack(model)


class FarActor(RolloutActor.__wrapped__):  # type: ignore[valid-type, misc]
    """As if on a host that its first environment decides."""

    def set_weights(self, version: int, packed: NDArray[np.uint8]) -> str:
        super().set_weights(version, packed)
        return f"host {self._first // 100}"

    def __init__(self, setup: ActorSetup) -> None:
        self._first = setup.first_environment
        super().__init__(setup)


async def deliver(actor: Any, newest: NewestWeights, board: WeightBoard | None) -> str | None:
    delivery = Delivery(actor, newest, board)
    await delivery.start()
    return await delivery.wait()


async def read_in_place(actor: Any) -> int:
    return int((await actor.statistics())["weights_read_in_place"])


def actor_setup(first_environment: int) -> ActorSetup:
    return ActorSetup(CONFIG, None, first_environment)


@pytest.mark.slow
async def test_an_actor_plays_the_same_with_weights_from_the_board() -> None:
    newest = NewestWeights(0, packed_weights(0))
    with trio.fail_after(LIMIT_S), WeightBoards(newest.packed.nbytes, NUM_SLOTS) as boards:
        async with asyncparl.connect():
            actors: list[Any] = [RolloutActor(actor_setup(0)), RolloutActor(actor_setup(0))]
            for actor in actors:
                assert await deliver(actor, newest, None) == this_host()
            board = await Seat(actors[0], this_host(), boards).board()
            assert board is not None
            for version in (1, 2, 3, 4, 5):
                newest.version, newest.packed = version, packed_weights(version)
                await deliver(actors[0], newest, board)
                await deliver(actors[1], newest, None)
                one, other = [(await actor.rollout()) for actor in actors]
                assert one.record.weights_versions == other.record.weights_versions == (version,) * CONFIG.unroll_length
                assert np.array_equal(one.rollout.behaviour_log_probs, other.rollout.behaviour_log_probs)
                assert np.array_equal(one.rollout.actions, other.rollout.actions)
            assert [await read_in_place(actor) for actor in actors] == [5, 0]


@pytest.mark.slow
async def test_weights_go_once_to_another_host_and_its_actors_outlive_the_one_that_got_them() -> None:
    newest, made = NewestWeights(0, packed_weights(0)), asyncparl.remote_class(FarActor)
    with trio.fail_after(LIMIT_S), WeightBoards(newest.packed.nbytes, NUM_SLOTS) as boards:
        async with asyncparl.connect():
            first, second, other = actors = [made(actor_setup(number)) for number in (0, 1, 100)]
            seats = []
            for actor in actors:
                host = await deliver(actor, newest, None)
                seats.append(Seat(actor, host or "", boards))
            lent = [await seat.board() for seat in seats]
            assert lent[0] is lent[1] is not None and lent[2] not in (None, lent[0])
            newest.version, newest.packed = 1, packed_weights(1)
            for actor, board in zip(actors, lent, strict=True):
                await deliver(actor, newest, board)
            assert [await read_in_place(actor) for actor in actors] == [1, 1, 1]
            samples = [await actor.rollout() for actor in (first, second)]
            assert [set(sample.record.weights_versions) for sample in samples] == [{1}, {1}]

            await asyncparl.kill(first)
            newest.version = 2
            await deliver(second, newest, lent[0])  # sent: nobody writes there any more
            assert await read_in_place(second) == 1
            board = await seats[1].board()
            assert board not in (None, lent[0])
            newest.version = 3
            await deliver(second, newest, board)
            assert await read_in_place(second) == 2
            assert (await second.statistics())["weights_version"] == 3
            assert await read_in_place(other) == 1


class DeafActor(FarActor):
    """Writes nothing for the others, if it is the first one of its host."""

    async def write_to_board(self, slot: int, packed: NDArray[np.uint8]) -> bool:
        if self._first % 100 == 0:
            await trio.sleep_forever()
        return bool(await super().write_to_board(slot, packed))


@pytest.mark.slow
async def test_an_actor_that_hangs_does_not_keep_its_neighbours_from_new_weights(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("asyncparl.training.weight_boards.WRITE_LIMIT_S", 0.5)
    newest, made = NewestWeights(0, packed_weights(0)), asyncparl.remote_class(DeafActor)
    with trio.fail_after(LIMIT_S), WeightBoards(newest.packed.nbytes, NUM_SLOTS) as boards:
        async with asyncparl.connect():
            actors = [made(actor_setup(number)) for number in (0, 1)]
            seats = [Seat(actor, await deliver(actor, newest, None) or "", boards) for actor in actors]
            _, board = [await seat.board() for seat in seats]
            assert board is not None
            newest.version = 1
            await deliver(actors[1], newest, board)  # sent, when the other one had its time
            assert await read_in_place(actors[1]) == 0
            board = await seats[1].board()
            newest.version = 2
            await deliver(actors[1], newest, board)
            assert await read_in_place(actors[1]) == 1
            assert (await actors[1].statistics())["weights_version"] == 2


@pytest.mark.slow
async def test_an_actor_that_died_gives_its_slot_back() -> None:
    newest = NewestWeights(1, packed_weights(0))
    with trio.fail_after(LIMIT_S), WeightBoards(newest.packed.nbytes, NUM_SLOTS) as boards:
        async with asyncparl.connect():
            actor: Any = RolloutActor(actor_setup(0))
            await deliver(actor, newest, None)
            board = await Seat(actor, this_host(), boards).board()
            assert board is not None
            await asyncparl.kill(actor)
            for _ in range(2 * NUM_SLOTS):
                newest.version += 1
                delivery = Delivery(actor, newest, board)
                await delivery.start()
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

    async def note_lend(board: WeightBoard, version: int, packed: NDArray[np.uint8]) -> int | None:
        lent.append(await lend(board, version, packed))
        return lent[-1]

    monkeypatch.setattr(WeightBoard, "lend", note_lend)
    config = CONFIG.replace(steps=2000, batch_size=4, **settings)
    with trio.fail_after(LIMIT_S):
        result = await Trainer(config, run_dir=tmp_path / "run").run()
    assert result.agent_steps >= 2000
    assert len(lent) > 10 and None not in lent
