"""What can go wrong in a training run, besides what the runtime raises. Each text can be shown to users as it is."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from asyncparl.errors import AsyncparlError


class ConfigError(AsyncparlError, ValueError):
    """A setting of the run is wrong: yours. One line for each wrong value."""


class WrongEnvironmentError(AsyncparlError, ValueError):
    """An environment does something else than it declares, or than gymnasium's interface says: its author's fault."""


class RunFolderError(AsyncparlError):
    """The run folder cannot be written, holds another run, or what it holds cannot be read."""


class TrainingError(AsyncparlError):
    """Training cannot go on: the learner diverged or is stuck, or no actor is left."""


class LearnersParted(TrainingError):
    """One of several learners has lost the others. Why, the report of a death says, if there is one."""


@contextmanager
def unwrapped_errors() -> Iterator[None]:
    """Nurseries wrap what is raised in groups. Where there is only one error, that one is raised."""
    try:
        yield
    except BaseExceptionGroup as group:
        leaves = list(_leaves(group))
        if len(leaves) > 1:
            raise
        raise leaves[0] from leaves[0].__cause__


def _leaves(error: BaseException) -> Iterator[BaseException]:
    if isinstance(error, BaseExceptionGroup):
        for part in error.exceptions:
            yield from _leaves(part)
    else:
        yield error
