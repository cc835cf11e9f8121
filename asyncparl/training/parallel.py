"""`map` whose calls run at the same time, in threads of its own."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import Any, Self, TypeVar

T = TypeVar("T")
R = TypeVar("R")


class ParallelMap:
    """`with ParallelMap(4, ...) as parallel: parallel(function, items)`; the threads end with the block.

    Not `ThreadPoolExecutor`, whose threads keep the process from ending when a call never returns: these are daemons.

    Args:
        num_threads: how many calls run at a time. One of them in the caller's thread.
        name: of the others. prepare: run in each of the others first.
    """

    def __init__(self, num_threads: int, *, name: str, prepare: Callable[[], object]) -> None:
        self._prepare = prepare
        self._jobs: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._threads = [
            threading.Thread(target=self._work, name=f"{name}-{number}", daemon=True)
            for number in range(1, num_threads)
        ]

    def __enter__(self) -> Self:
        for thread in self._threads:
            thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        for _ in self._threads:
            self._jobs.put(None)
        for thread in self._threads:
            thread.join()

    def __call__(self, function: Callable[[T], R], items: Sequence[T]) -> list[R]:
        """The results, in order; returns when all calls have ended.

        Raises:
            Exception: what the first of the calls that failed has raised.
        """
        futures: list[Future[R]] = [Future() for _ in items]
        jobs = [_job(future, function, item) for future, item in zip(futures, items, strict=True)]
        for job in jobs[1:]:
            self._jobs.put(job)
        for job in jobs[:1]:
            job()
        errors = [future.exception() for future in futures]  # waits
        for error in errors:
            if error is not None:
                raise error
        return [future.result() for future in futures]

    def _work(self) -> None:
        self._prepare()
        while (job := self._jobs.get()) is not None:
            job()


def _job(future: Future[Any], function: Callable[[Any], Any], item: Any) -> Callable[[], None]:
    def job() -> None:
        try:
            future.set_result(function(item))
        except BaseException as error:
            future.set_exception(error)

    return job
