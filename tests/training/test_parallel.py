"""A `map` whose calls run at the same time, in threads that end with their block."""

from __future__ import annotations

import threading

import pytest

from asyncparl.training.parallel import ParallelMap

LIMIT_S = 30


def test_results_come_in_order_from_calls_at_the_same_time() -> None:
    together = threading.Barrier(3)
    prepared: list[str] = []

    def meet(number: int) -> tuple[int, str]:
        together.wait(LIMIT_S)
        return number * 2, threading.current_thread().name

    with ParallelMap(3, name="part", prepare=lambda: prepared.append(threading.current_thread().name)) as parallel:
        for _ in range(3):
            results = parallel(meet, [1, 2, 3])
            assert [doubled for doubled, _ in results] == [2, 4, 6]
            assert {name for _, name in results} == {"MainThread", "part-1", "part-2"}
        assert parallel(meet, []) == []
    assert sorted(prepared) == ["part-1", "part-2"]
    assert not [thread for thread in threading.enumerate() if thread.name.startswith("part")]


def test_more_items_than_threads_are_no_more_than_work() -> None:
    with ParallelMap(2, name="part", prepare=lambda: None) as parallel:
        assert parallel(lambda number: number + 1, list(range(10))) == list(range(1, 11))


def test_the_first_error_is_raised_when_all_have_ended() -> None:
    ended: list[int] = []

    def fail(number: int) -> int:
        if number == 0:
            raise KeyError("first")
        ended.append(number)
        raise ValueError("later")

    with ParallelMap(2, name="part", prepare=lambda: None) as parallel:
        with pytest.raises(KeyError, match="first"):
            parallel(fail, [0, 1, 2])
        assert sorted(ended) == [1, 2]
        assert parallel(abs, [-1, -2]) == [1, 2]  # it goes on


def test_one_thread_is_the_callers() -> None:
    with ParallelMap(1, name="part", prepare=lambda: None) as parallel:
        assert parallel(lambda _: threading.current_thread().name, [1]) == ["MainThread"]
