"""A whole cluster and its users, from a seed: see `scenario.py`. For more: `python -m tests.simulation --help`."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import trio
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.simulation.network import LATENCIES
from tests.simulation.scenario import (
    ACTOR_ACTIONS,
    DRIVER_ACTIONS,
    FAULT_WEIGHTS,
    PAUSES_S,
    WORLD_ACTIONS,
    Scenario,
    Settings,
    Step,
    run,
    scenario_of,
)
from tests.simulation.subjects import Subject

NUM_SEEDS = 240
CHUNK = 20


def _check(scenario: Scenario) -> None:
    bugs = run(scenario).bugs
    if bugs:
        pytest.fail(f"{bugs[0]}\nagain with: python -m tests.simulation --start {scenario.seed}", pytrace=False)


@pytest.mark.slow
@pytest.mark.parametrize("first", range(0, NUM_SEEDS, CHUNK))
def test_whatever_goes_wrong_every_call_is_settled_and_nothing_is_left(first: int) -> None:
    for seed in range(first, first + CHUNK):
        _check(scenario_of(seed))


def test_a_seed_gives_the_same_run_again() -> None:
    scenario = scenario_of(14)
    first, again = run(scenario), run(scenario)
    assert len(first.log) > 100
    assert first.log == again.log


@pytest.mark.slow
def test_a_seed_gives_the_same_run_in_another_process() -> None:
    digests = [_digests(hash_seed) for hash_seed in ("1", "2")]
    assert digests[0]
    assert digests[0] == digests[1]


def _digests(hash_seed: str) -> list[str]:
    command = [sys.executable, "-m", "tests.simulation", "--seeds", "4", "--log"]
    environ = os.environ | {"PYTHONHASHSEED": hash_seed}
    output = subprocess.run(command, env=environ, capture_output=True, text=True, check=True).stdout
    return [line for line in output.splitlines() if line.startswith("digest ")]


# --- what hangs, and what is slow ---------------------------------------------------------------------------


def test_calls_that_take_long_on_a_slow_network_do_not_hang() -> None:
    _check(scenario_of(1617))  # a burst, settled by and by, until 86 seconds after the last fault


def test_calls_that_are_never_answered_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(self: object, call_id: int, value: object, delay_s: float) -> None:
        await trio.sleep_forever()

    monkeypatch.setattr(Subject.__wrapped__, "later", never)
    few_calls = Step("burst", 86, 167, 2)
    outcome = run(Scenario(seed=1, settings=Settings(latency="lan"), steps=(Step("create", 339, 0, 7), few_calls)))
    assert outcome.bugs
    assert all("not settled: call " in bug for bug in outcome.bugs)  # those behind it hang with it
    assert outcome.seconds < 200


# --- shrinking ----------------------------------------------------------------------------------------------

_numbers = st.integers(0, 999)
_steps = st.builds(
    Step,
    st.sampled_from(sorted(DRIVER_ACTIONS | ACTOR_ACTIONS | WORLD_ACTIONS | FAULT_WEIGHTS)),
    _numbers,
    _numbers,
    st.integers(0, len(PAUSES_S) - 1),
)
_settings = st.builds(
    Settings,
    num_nodes=st.integers(1, 2),
    num_drivers=st.integers(1, 2),
    cpus=st.sampled_from([2, 4]),
    latency=st.sampled_from(sorted(LATENCIES)),
    queued_messages=st.sampled_from([128, 3, 1]),
    lossy_close=st.sampled_from([0.0, 0.3]),
    slow_jobs=st.sampled_from([0.0, 0.3]),
    is_shared=st.booleans(),
)


@pytest.mark.slow
@settings(max_examples=60)
@given(cluster=_settings, steps=st.lists(_steps, max_size=25), seed=st.integers(0, 9))
def test_any_steps_in_any_order_leave_everything_in_order(cluster: Settings, steps: list[Step], seed: int) -> None:
    create = Step("create")
    _check(Scenario(seed=seed, settings=cluster, steps=(create, *steps)))


# --- what was found -----------------------------------------------------------------------------------------

ONE = Settings(num_nodes=1, num_drivers=1, latency="wan", queued_messages=3)

FOUND = {
    "an actor that its dead owner would start again is known for ever to a master that is new": Scenario(
        seed=19,
        settings=ONE,
        steps=(
            Step("create", 66, 225, 7),
            Step("stall path", 967, 943, 1),
            Step("kill driver", 323, 200, 5),
            Step("kill master", 774, 537, 3),
        ),
    ),
    "the end of an earlier process frees the place of the next one on the same node": Scenario(
        seed=957,
        settings=Settings(num_nodes=2, num_drivers=1, cpus=2, latency="wan", queued_messages=16),
        steps=(
            Step("create", 967, 752, 7),
            Step("create", 249, 741, 7),
            Step("join", 90, 799, 0),
            Step("stall path", 831, 23, 0),
            Step("offer", 839, 943, 7),
            Step("call", 103, 592, 6),
            Step("forget", 9, 818, 6),
            Step("gather", 163, 832, 6),
            Step("create", 945, 185, 5),
            Step("create", 996, 220, 0),
        ),
    ),
    "an idempotent call that has run is said to have never started, if its actor dies for good after that": Scenario(
        seed=230,
        settings=Settings(
            num_nodes=1,
            num_drivers=1,
            cpus=2,
            latency="awful",
            queued_messages=3,
            lossy_close=0.3,
            slow_jobs=0.1,
            is_shared=False,
        ),
        steps=(
            Step("create", 907, 0, 2),
            Step("call", 552, 153, 7),
            Step("call", 898, 423, 1),
            Step("kill master", 36, 251, 3),
            Step("kill node", 385, 177, 5),
            Step("attribute", 398, 675, 7),
            Step("stream", 621, 704, 6),
            Step("cut", 393, 664, 4),
            Step("through", 700, 905, 6),
            Step("cancel", 446, 280, 6),
            Step("cut", 175, 758, 7),
            Step("leave_by_itself", 543, 556, 3),
            Step("call", 397, 515, 7),
            Step("create", 972, 346, 0),
            Step("drop", 776, 472, 5),
            Step("forget", 813, 947, 0),
            Step("burst", 650, 283, 5),
            Step("burst", 996, 898, 7),
            Step("kill worker", 451, 334, 3),
        ),
    ),
    "a detached actor whose owner hangs before it has said what object to make waits for that for ever": Scenario(
        seed=1001901,
        settings=Settings(num_nodes=1, num_drivers=1, cpus=4, latency="lan", slow_jobs=0.1),
        steps=(
            Step("create", 75, 0, 1),
            Step("cut", 678, 495, 3),
            Step("close", 551, 695, 1),
            Step("create", 661, 663, 2),
            Step("create", 998, 71, 7),
            Step("bear", 660, 649, 1),
            Step("stall path", 534, 866, 5),
            Step("create", 165, 36, 7),
            Step("through", 771, 311, 1),
            Step("timed", 441, 835, 7),
            Step("hold", 476, 693, 3),
        ),
    ),
    "whoever is given an actor that was refused for its name is told after seconds, and not why": Scenario(
        seed=1002073,
        settings=Settings(num_nodes=1, num_drivers=1, cpus=2, latency="wan", queued_messages=3, lossy_close=0.3),
        steps=(
            Step("create", 988, 0, 4),
            Step("cancel", 861, 915, 0),
            Step("call", 447, 944, 7),
            Step("offer", 163, 659, 4),
            Step("bear", 720, 424, 1),
            Step("bear", 452, 979, 6),
            Step("stream", 551, 300, 7),
        ),
    ),
    "a place on a node that was lost meanwhile is used when it is back, and somebody else has it by then": Scenario(
        seed=1001925,
        settings=Settings(num_nodes=1, num_drivers=2, cpus=2, latency="awful", is_shared=True),
        steps=(
            Step("cut", 358, 406, 6),
            Step("burst", 194, 351, 7),
            Step("create", 26, 949, 3),
            Step("cut", 175, 907, 2),
            Step("create", 350, 503, 4),
            Step("through", 5, 569, 6),
            Step("create", 886, 820, 0),
            Step("stall path", 964, 43, 6),
        ),
    ),
    "a detached actor lives on that its owner has ended after losing sight of it": Scenario(
        seed=1000073,
        settings=Settings(num_nodes=1, num_drivers=2, cpus=4, latency="none", slow_jobs=0.5, is_shared=True),
        steps=(
            Step("create", 389, 686, 1),
            Step("bear", 252, 173, 3),
            Step("through", 836, 764, 6),
            Step("lose", 351, 779, 1),
            Step("leave", 537, 899, 5),
            Step("jump", 107, 754, 7),
            Step("close", 899, 13, 1),
        ),
    ),
    "two detached actors of one name, if a new master is asked for the second before it knows the first": Scenario(
        seed=253,
        settings=Settings(
            num_nodes=2,
            num_drivers=1,
            cpus=4,
            latency="lan",
            queued_messages=1,
            lossy_close=0.3,
            slow_jobs=0.5,
            is_shared=False,
        ),
        steps=(
            Step("create", 146, 0, 5),
            Step("call", 230, 481, 5),
            Step("close", 72, 140, 3),
            Step("burst", 471, 326, 6),
            Step("join", 101, 166, 2),
            Step("stream", 545, 692, 6),
            Step("leave", 571, 456, 6),
            Step("create", 76, 646, 5),
            Step("create", 154, 751, 5),
            Step("through", 965, 832, 1),
            Step("offer", 854, 644, 1),
            Step("expose", 856, 913, 1),
            Step("stream", 436, 870, 6),
            Step("burst", 941, 2, 6),
            Step("expose", 403, 628, 5),
            Step("through", 25, 14, 6),
            Step("bear", 936, 919, 5),
            Step("kill master", 655, 592, 1),
            Step("create", 932, 460, 3),
            Step("bear", 180, 549, 4),
        ),
    ),
    "a process that starts late takes the place of the next one, and keeps it for ever": Scenario(
        seed=18164,
        settings=Settings(
            num_nodes=1, num_drivers=2, cpus=4, latency="none", queued_messages=16, slow_jobs=0.5, is_shared=False
        ),
        steps=(
            Step("create", 748, 0, 2),
            Step("kill driver", 87, 947, 6),
            Step("kill node", 926, 297, 3),
            Step("call", 419, 948, 7),
            Step("create", 879, 602, 1),
            Step("kill node", 126, 937, 7),
            Step("stall path", 862, 899, 3),
            Step("expose", 929, 720, 7),
            Step("burst", 811, 731, 7),
        ),
    ),
    "a detached actor loses its name when its owner loses sight of it, and can never be found again": Scenario(
        seed=206,
        settings=Settings(num_nodes=1, num_drivers=1, latency="none", queued_messages=1, lossy_close=0.3),
        steps=(Step("create", 648, 286, 7), Step("hold", 883, 913, 3)),
    ),
    "a place on a lost node waits for an owner who was refused another one": Scenario(
        seed=3004343,
        settings=Settings(num_nodes=1, num_drivers=2, cpus=4, latency="awful", queued_messages=3, lossy_close=0.3),
        steps=(
            Step("lose", 944, 12, 6),
            Step("jump", 446, 530, 2),
            Step("create", 227, 17, 0),
            Step("stall path", 425, 994, 6),
            Step("hold", 862, 429, 4),
        ),
    ),
    "a new master gives away once more what the old one had given, and a node uses it twice": Scenario(
        seed=4102278,
        settings=Settings(
            num_nodes=1,
            num_drivers=2,
            cpus=2,
            latency="awful",
            queued_messages=16,
            lossy_close=0.3,
            slow_jobs=0.1,
            is_shared=False,
            is_in_a_hurry=True,
        ),
        steps=(
            Step("create", 177, 0, 5),
            Step("cut", 793, 427, 2),
            Step("stall path", 920, 599, 6),
            Step("cut path", 726, 559, 3),
            Step("join", 943, 447, 5),
            Step("cancel", 681, 276, 5),
            Step("cut", 820, 875, 7),
            Step("cut path", 523, 809, 6),
            Step("burst", 676, 49, 4),
            Step("create", 241, 902, 5),
            Step("jump", 376, 244, 7),
            Step("kill master", 841, 827, 5),
            Step("create", 5, 665, 6),
        ),
    ),
    "the place of an actor that came and went while the master was away is kept for a minute more": Scenario(
        seed=6000452,
        settings=Settings(
            num_nodes=3, num_drivers=2, cpus=2, latency="awful", queued_messages=3, slow_jobs=0.5, is_in_a_hurry=True
        ),
        steps=(
            Step("create", 475, 197, 2),
            Step("cut path", 174, 33, 5),
            Step("close", 10, 74, 7),
            Step("wait", 119, 882, 7),
            Step("hold", 854, 99, 3),
        ),
    ),
    "an actor is taken for closed while the process is still started that was to follow its last one": Scenario(
        seed=6004947,
        settings=Settings(
            num_nodes=1,
            num_drivers=1,
            cpus=2,
            latency="awful",
            queued_messages=1,
            lossy_close=0.3,
            slow_jobs=0.1,
            is_shared=True,
            is_in_a_hurry=True,
        ),
        steps=(
            Step("create", 253, 0, 7),
            Step("create", 677, 328, 2),
            Step("call", 862, 229, 7),
            Step("leave_by_itself", 330, 862, 7),
            Step("stream", 586, 268, 7),
            Step("close", 631, 376, 3),
            Step("call", 779, 246, 1),
            Step("call", 743, 77, 1),
        ),
    ),
    "a detached actor lives on that nobody can find, for another one was given its name": Scenario(
        seed=6007603,
        settings=Settings(
            num_nodes=3,
            num_drivers=2,
            cpus=4,
            latency="none",
            queued_messages=128,
            lossy_close=0.3,
            slow_jobs=0.5,
            is_shared=True,
            is_in_a_hurry=True,
        ),
        steps=(
            Step("create", 515, 0, 7),
            Step("close", 975, 571, 3),
            Step("create", 236, 336, 4),
            Step("call", 360, 866, 7),
            Step("hold", 577, 844, 0),
            Step("kill master", 59, 123, 5),
            Step("create", 812, 286, 3),
        ),
    ),
    "what was timed in a loop that has ended is kept until its thread runs another loop": Scenario(
        seed=6002959,
        settings=Settings(
            num_nodes=2,
            num_drivers=2,
            cpus=4,
            latency="awful",
            queued_messages=1,
            slow_jobs=0.5,
            is_shared=False,
            is_in_a_hurry=True,
        ),
        steps=(
            Step("join", 788, 140, 1),
            Step("create", 543, 935, 2),
            Step("kill node", 455, 227, 7),
            Step("call", 314, 883, 7),
            Step("burst", 134, 936, 6),
            Step("hold", 991, 799, 4),
            Step("timed", 224, 490, 4),
        ),
    ),
}


FOUND_WHOLE = {
    "callers of an actor whose node died as it was to start wait for a master that is silent too": 6028928,
    "a dial that is cancelled in the moment of its answer leaves a connection to nobody": 6023475,
    "a call to an actor that its owner had given up, and a lost node came back with, is never settled": 6006703,
    "a detached actor dies after a minute because its program left before it was made": 6002929,
    "a program that is cancelled when it begins to connect hangs": 5003344,
}


@pytest.mark.parametrize("what", FOUND_WHOLE)
def test_nor_does_what_takes_the_whole_scenario(what: str) -> None:
    _check(scenario_of(FOUND_WHOLE[what]))


@pytest.mark.parametrize("what", FOUND)
def test_what_was_found_once_does_not_come_back(what: str) -> None:
    _check(FOUND[what])
