"""Two correct cores, and everything that may happen between them in any order: see `world.py` for what must hold."""

from __future__ import annotations

import random
from collections.abc import Iterator

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from asyncparl.protocol import fragments, pace
from tests.protocol.world import FRAGMENT_BYTES, WINDOW_BYTES, World

STEPS = list(World((1, 1)).steps)
PEACEFUL = [step for step in STEPS if step not in ("goodbye", "lose")]

windows = st.tuples(st.integers(0, 3), st.integers(1, 3))


def script_of(steps: list[str]) -> st.SearchStrategy[list[tuple[str, int, int]]]:
    return st.lists(st.tuples(st.sampled_from(steps), st.integers(0, 1), st.integers(0, 11)), min_size=5, max_size=80)


@pytest.fixture(autouse=True, scope="module")
def small_fragments() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fragments, "FRAGMENT_BYTES", FRAGMENT_BYTES)
        patch.setattr(pace, "WINDOW_BYTES", WINDOW_BYTES)
        patch.setattr(pace, "MAX_WINDOW_BYTES", 2 * WINDOW_BYTES)
        patch.setattr(pace, "MAX_BURST_BYTES", 4 * WINDOW_BYTES)
        yield


def play(world: World, script: list[tuple[str, int, int]]) -> None:
    for step, who, pick in script:
        world.steps[step](who, pick)
    world.settle()


@settings(max_examples=200)
@given(st.tuples(st.integers(1, 3), st.integers(1, 3)), script_of(PEACEFUL))
def test_any_interleaving_settles_every_call_exactly_once(
    windows: tuple[int, int], script: list[tuple[str, int, int]]
) -> None:
    play(World(windows), script)


@settings(max_examples=200)
@given(windows, script_of(STEPS))
@example((1, 1), [("goodbye", 0, 0), ("leave", 1, 0), ("leave", 1, 0), ("deliver", 0, 0)])
def test_so_does_any_interleaving_with_goodbyes_and_a_loss_at_any_point(
    windows: tuple[int, int], script: list[tuple[str, int, int]]
) -> None:
    play(World(windows), script)


@pytest.mark.parametrize("ends_by", ["answers", "goodbye", "lose"])
@pytest.mark.parametrize("seed", range(15))
def test_so_do_long_random_walks(seed: int, ends_by: str) -> None:
    # Hypothesis prefers short scripts; the windows fill and the streams get long only here.
    rng = random.Random(seed)
    world = World((rng.randint(1, 4), rng.randint(1, 4)))
    busy = [*PEACEFUL, "deliver", "deliver", "leave", "leave", "item"]
    for _ in range(rng.randint(200, 600)):
        world.steps[rng.choice(busy)](rng.randint(0, 1), rng.randint(0, 1 << 20))
    if ends_by != "answers":
        world.steps[ends_by](rng.randint(0, 1), 0)
        for _ in range(rng.randint(0, 60)):
            world.steps[rng.choice(busy)](rng.randint(0, 1), rng.randint(0, 1 << 20))
    assert sum(len(end.calls) for end in world.ends) > 10
    world.settle()
