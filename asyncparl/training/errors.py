"""What can go wrong in a training run, besides what the runtime raises. Each text can be shown to users as it is."""

from __future__ import annotations

import sysconfig
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from asyncparl.errors import AsyncparlError

_NOT_THE_USERS = (str(Path(__file__).parents[1]), sysconfig.get_path("stdlib"), "<")


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


def first_line(error: Exception) -> str:
    """What it says, or what it is if it says nothing."""
    return next(iter(str(error).splitlines()), type(error).__name__)


def told(error: Exception) -> str:
    """An exception of a user's code in one line, with the place in that code: not in ours, nor in a library's."""
    own = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if not frame.filename.startswith(_NOT_THE_USERS) and "site-packages" not in frame.filename
    ]
    place = f" ({Path(own[-1].filename).name}:{own[-1].lineno})" if own else ""
    first_line = next(iter(str(error).splitlines()), "")
    return f"{type(error).__name__}: {first_line}{place}"


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
