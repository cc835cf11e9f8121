"""Ray's actors."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Self

import ray

from .workloads import CREATED, WEIGHTS, Subject, System, main


class Ray(System):
    """A cluster of this machine. Actors need no CPU of its books, so that a hundred of them fit anywhere."""

    def __enter__(self) -> Self:
        ray.init(include_dashboard=False, log_to_driver=False, logging_level=logging.ERROR)
        return self

    def __exit__(self, *_: object) -> None:
        ray.shutdown()

    def create(self, num: int, *, num_threads: int = 1) -> list[Any]:
        kind = ray.remote(Subject).options(num_cpus=0, max_concurrency=num_threads)
        actors = [kind.remote() for _ in range(num)]
        self.wait([self.start(actor, "nothing") for actor in actors])
        return actors

    def end(self, actors: Sequence[Any]) -> None:
        for actor in actors:
            ray.kill(actor)

    def call(self, actor: Any, method: str, *arguments: Any) -> Any:
        return ray.get(getattr(actor, method).remote(*arguments))

    def start(self, actor: Any, method: str, *arguments: Any) -> Any:
        return getattr(actor, method).remote(*arguments)

    def is_done(self, call: Any) -> bool:
        return bool(ray.wait([call], timeout=0)[0])

    def wait(self, calls: Sequence[Any]) -> list[Any]:
        return list(ray.get(list(calls)))

    def share(self, value: Any) -> Any:
        return ray.put(value)

    def note(self, row: str) -> str:
        return {CREATED: "without torch", WEIGHTS: "one put, 16 gets"}.get(row, "")


if __name__ == "__main__":
    main(Ray, __doc__)
