"""Which parts of an arena are in use: no byte twice, none lost, and the same ones again and again."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from asyncparl.transport.blocks import BLOCK_ALIGNMENT, Blocks

PAGE = BLOCK_ALIGNMENT
sizes = st.integers(1, 5 * PAGE)


@settings(max_examples=300)
@given(st.integers(1, 20), st.lists(st.tuples(st.booleans(), sizes, st.integers(0, 100))))
def test_blocks_never_overlap_and_none_is_lost(num_pages: int, steps: list[tuple[bool, int, int]]) -> None:
    blocks = Blocks(num_pages * PAGE + 5)
    used: dict[int, int] = {}
    for takes, size, which in steps:
        if takes:
            pages = -(-size // PAGE)
            free = [page for page in range(num_pages) if not any(start <= page < end for start, end in used.items())]
            fitting = [page for page in free if all(page + i in free for i in range(pages))]
            start = blocks.take(size)
            assert start == (min(fitting) * PAGE if fitting else None)
            if start is not None:
                used[start // PAGE] = start // PAGE + pages
                assert blocks.touched_end >= start + size
        elif used:
            first = sorted(used)[which % len(used)]
            del used[first]
            blocks.give_back(first * PAGE)
        assert blocks.num_in_use == len(used)
    for first in used:
        blocks.give_back(first * PAGE)
    assert blocks.take(num_pages * PAGE) == 0
    assert blocks.take(1) is None


def test_what_is_used_one_after_the_other_is_the_same_memory() -> None:
    blocks = Blocks(100 * PAGE)
    for _ in range(10):
        start = blocks.take(3 * PAGE)
        assert start == 0
        blocks.give_back(start)
    assert blocks.touched_end == 3 * PAGE


@given(st.lists(st.tuples(st.booleans(), sizes), min_size=200, max_size=400))
def test_what_is_given_up_is_in_no_block(steps: list[tuple[bool, int]]) -> None:
    blocks = Blocks(30 * PAGE)
    used: dict[int, int] = {}
    for takes, size in steps:
        if takes and (start := blocks.take(size)) is not None:
            used[start] = start + size
        elif used:
            start = next(iter(used))
            del used[start]
            blocks.give_back(start)
        unused = blocks.trim()
        if unused is not None:
            assert unused[0] < unused[1]
            assert blocks.touched_end == unused[0] >= max(used.values(), default=0)


def test_memory_that_was_needed_once_is_given_up_after_a_while() -> None:
    blocks = Blocks(100 * PAGE)
    held, large = blocks.take(PAGE), blocks.take(90 * PAGE)
    assert held == 0
    assert large == PAGE
    blocks.give_back(large)
    given_up = []
    for _ in range(200):
        start = blocks.take(2 * PAGE)
        assert start is not None
        blocks.give_back(start)
        given_up.append(blocks.trim())
    assert [unused for unused in given_up if unused is not None] == [(3 * PAGE, 91 * PAGE)]
    assert blocks.touched_end == 3 * PAGE
