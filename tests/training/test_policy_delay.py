"""How long new weights take to be played with."""

from __future__ import annotations

from asyncparl.training.policy_delay import PolicyDelays


def test_a_delay_is_the_sum_of_its_parts_whichever_is_told_first() -> None:
    noted: list[float] = []
    delays = PolicyDelays(noted.append)
    delays.arrived(1, 0.5)
    assert noted == []
    delays.played(1, 0.25)
    delays.played(2, 1.0)
    delays.arrived(2, 2.0)
    assert noted == [0.75, 3.0]


def test_weights_that_were_never_played_with_have_no_delay() -> None:
    noted: list[float] = []
    delays = PolicyDelays(noted.append)
    delays.arrived(1, 0.5)
    delays.arrived(2, 4.0)
    delays.played(2, 1.0)
    delays.played(1, 1.0)  # cannot be: it is not remembered that they came
    assert noted == [5.0]


def test_weights_whose_arrival_nobody_noted_have_no_delay() -> None:
    noted: list[float] = []
    delays = PolicyDelays(noted.append)
    delays.played(0, 9.0)  # of the first ones
    delays.arrived(3, 1.0)
    delays.played(3, 0.0)
    assert noted == [1.0]
