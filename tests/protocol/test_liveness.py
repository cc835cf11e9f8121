"""Silence, by hand: every time and every verdict is written down."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.protocol.liveness import Liveness
from tests.protocol.strategies import many


def judge(script: str) -> list[bool]:
    """Verdicts of a peer first heard at 0: "t" is a tick, "h" that it was heard."""
    liveness = Liveness(interval_s=1.0, limit_s=5.0, now=0.0)
    verdicts = []
    for word in script.split():
        now = float(word[1:])
        if word[0] == "t":
            verdicts.append(liveness.tick(now))
        else:
            liveness.heard(now)
    return verdicts


@pytest.mark.parametrize(
    ("script", "first_lost"),
    [
        ("t1 t2 t3 t4 t5 t6", 4),  # the limit itself is too long
        ("t1 t2 t3 t4 t4.9", None),
        ("t1 h2 t2 t3 t4 t5 t6 t6.9 t7", 7),
        ("t1 t2 t3 t4 h4.99 t5 t6 t7 t8 t9 t9.98", None),
        # Ticks may come more often.
        ("t0.5 t1 t1.5 t2 t2.5 t3 t3.5 t4 t4.5 t5", 9),
        # The judge was held up from 2 to 10, 7 s longer than the interval: 12 s are allowed.
        ("t1 t2 t10 t11 t11.9", None),
        ("t1 t2 t10 t11 t12", 4),
        # And twice, from 2 to 5 and from 5 to 8, 2 s longer each time: 9 s are allowed.
        ("t1 t2 t5 t8 t8.9", None),
        ("t1 t2 t5 t8 t9", 4),
        # Each tick is half a second late: after 7.5 s five seconds were listened to.
        ("t1.5 t3 t4.5 t6", None),
        ("t1.5 t3 t4.5 t6 t7.5", 4),
        # What the judge read when it came back counts: being late before that is no patience after.
        ("t1 t2 h10 t10 t11 t12 t13 t14 t14.9", None),
        ("t1 t2 h10 t10 t11 t12 t13 t14 t15", 7),
        # Heard in the middle of a delay from 2 to 10: late since 6, so 9 s from then.
        ("t1 t2 h6 t10 t11 t12 t13 t14", None),
        ("t1 t2 h6 t10 t11 t12 t13 t14 t15", 7),
        # A message is read late, with an old time: silence is not shorter for it.
        ("t1 t2 h1 t3 t4 t5 t6", 5),
    ],
)
def test_when_a_peer_is_lost(script: str, first_lost: int | None) -> None:
    verdicts = judge(script)
    assert (verdicts.index(True) if True in verdicts else None) == first_lost


def test_once_lost_always_lost() -> None:
    liveness = Liveness(now=0.0)
    for second in range(1, 5):
        assert not liveness.tick(second)
    assert liveness.tick(5.0) and liveness.lost
    liveness.heard(5.5)
    assert liveness.tick(6.0) and liveness.lost
    assert liveness.silence(6.0) == 6.0


def test_silence() -> None:
    liveness = Liveness(now=10.0)
    assert liveness.silence(12.5) == 2.5
    liveness.heard(12.0)
    assert liveness.silence(12.5) == 0.5
    assert liveness.silence(11.0) == 0.0


def test_other_limits() -> None:
    liveness = Liveness(interval_s=0.25, limit_s=1.0, now=0.0)
    assert [liveness.tick(now / 4) for now in range(1, 5)] == [False, False, False, True]


@many
@given(st.lists(st.tuples(st.integers(1, 40), st.booleans()), max_size=30))
def test_a_peer_is_lost_after_five_seconds_of_listening(steps: list[tuple[int, bool]]) -> None:
    """In quarters of a second: of the time up to a tick, only one interval after the last tick was listened to."""
    liveness = Liveness(now=0.0)
    now = last_tick = listened_from = listened = 0
    lost = False
    for quarters, heard in steps:
        now += quarters
        if heard and not lost:
            liveness.heard(now / 4)
            listened, listened_from = 0, now
            continue
        listened += max(0, min(now, last_tick + 4) - max(last_tick, listened_from))
        last_tick = now
        lost = lost or listened >= 20
        assert liveness.tick(now / 4) == lost
