"""How much may be on its way: it follows what the line bears, and never comes to a stop."""

from __future__ import annotations

from collections import deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.protocol.pace import BURST_S, MAX_BURST_BYTES, MAX_WINDOW_BYTES, QUEUE_S, WINDOW_BYTES, Pace
from tests.protocol.strategies import many

FRAGMENT = WINDOW_BYTES // 4


def play(pace: Pace, line_s: float, bytes_per_s: float, duration_s: float) -> float:
    """Send all that is allowed over a line, whose words take `line_s` to come back; bytes/s that arrive."""
    now, line_is_free_at, num_taken, untold = 0.0, 0.0, 0, 0
    under_way = deque[tuple[float, bool]]()
    while now < duration_s:
        while pace.has_room:
            asks = pace.sent(FRAGMENT, now, is_last=False)
            line_is_free_at = max(now, line_is_free_at) + FRAGMENT / bytes_per_s
            under_way.append((line_is_free_at + line_s, asks))
        now, asks = under_way.popleft()
        num_taken += FRAGMENT
        untold += FRAGMENT
        if asks:
            pace.taken(untold, now)
            untold = 0
    return num_taken / now


def test_a_long_line_is_kept_busy() -> None:
    pace = Pace()
    assert WINDOW_BYTES / 0.02 < 0.2e9
    assert play(pace, line_s=0.02, bytes_per_s=1e9, duration_s=2.0) > 0.7e9


def test_little_waits_in_queues_where_the_line_is_slow() -> None:
    pace, bytes_per_s = Pace(), 200e6
    assert play(pace, line_s=0.0001, bytes_per_s=bytes_per_s, duration_s=2.0) > 0.95 * bytes_per_s
    assert pace.num_under_way / bytes_per_s < max(4 * QUEUE_S, 1.5 * WINDOW_BYTES / bytes_per_s)


def test_the_window_shrinks_when_words_come_late() -> None:
    pace = Pace()
    play(pace, line_s=0.01, bytes_per_s=5e9, duration_s=0.5)
    pace.taken(pace.num_under_way, 0.6)
    before = pace.window
    assert before > 2 * WINDOW_BYTES
    for _ in range(2):
        assert pace.sent(before // 4, 1.0, is_last=False)
    pace.taken(before // 4, 1.02)
    grown = pace.window
    assert grown > before
    pace.taken(before // 4, 2.0)
    assert WINDOW_BYTES <= pace.window < grown


@pytest.mark.parametrize(("took_s", "most"), [(0.0, WINDOW_BYTES), (QUEUE_S, WINDOW_BYTES), (10.0, MAX_WINDOW_BYTES)])
def test_the_window_is_no_larger_than_the_line_is_worth(took_s: float, most: int) -> None:
    pace = Pace()
    for step in range(100):
        while pace.has_room:
            pace.sent(FRAGMENT, 100.0 * step, is_last=False)
        pace.taken(pace.num_under_way, 100.0 * step + took_s)
    assert pace.window == most


def sent_at_once(pace: Pace, now: float) -> int:
    while pace.has_room:
        pace.sent(FRAGMENT, now, is_last=False)
    return pace.num_under_way


def test_after_a_rest_a_line_that_was_fast_gets_more_at_once() -> None:
    for took_s, most in ((BURST_S / 8, MAX_BURST_BYTES), (BURST_S / 2, 2 * WINDOW_BYTES), (0.1, WINDOW_BYTES)):
        pace = Pace()
        assert sent_at_once(pace, 1.0) == WINDOW_BYTES
        pace.taken(WINDOW_BYTES, 1.0 + took_s)
        assert sent_at_once(pace, 5.0) == pytest.approx(most, abs=FRAGMENT)
        num_bytes = pace.num_under_way // 2
        pace.taken(num_bytes, 5.001)
        assert pace.has_room == (pace.num_under_way < pace.window), "only once"


@many
@given(st.lists(st.tuples(st.booleans(), st.integers(1, 2 * WINDOW_BYTES), st.floats(0, 1)), max_size=200))
def test_whatever_takes_how_long_either_more_may_be_sent_or_a_word_is_to_come(
    steps: list[tuple[bool, int, float]],
) -> None:
    pace, now = Pace(), 0.0
    asked = deque[int]()
    untold = 0
    for sends, size, pause_s in steps:
        now += pause_s
        if sends and pace.has_room:
            untold += size
            if pace.sent(size, now, is_last=False):
                asked.append(untold)
                untold = 0
        elif asked:
            pace.taken(asked.popleft(), now)
        assert pace.has_room or asked
        assert pace.num_under_way == untold + sum(asked)
        assert pace.window >= WINDOW_BYTES
