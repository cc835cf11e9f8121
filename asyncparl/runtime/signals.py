"""Which signal asks a process of ours what it does. `dump_signal.py` answers, where there is something to tell."""

from __future__ import annotations

import contextlib
import os
import signal

VARIABLE = "ASYNCPARL_DUMP_SIGNAL"
"""Another signal's name, or "none". In the environment, for it concerns the processes that start others too."""

_DEFAULT = "SIGUSR1"


def chosen_signal() -> signal.Signals | None:
    """The signal that asks; None: there is none.

    Raises:
        ValueError: the variable names something else.
    """
    text = os.environ.get(VARIABLE, _DEFAULT).strip().upper()
    if text in ("NONE", ""):
        return None
    number = signal.Signals.__members__.get(text) or signal.Signals.__members__.get(f"SIG{text}")
    if number is None or number in (signal.SIGKILL, signal.SIGSTOP):
        raise ValueError(f"{VARIABLE} must be the name of a signal, such as SIGUSR2, or 'none', not {text!r}")
    return number


def ignore_dump_signal() -> None:
    """For processes that have nothing to tell: being asked does not end them."""
    with contextlib.suppress(ValueError):
        if (number := chosen_signal()) is not None:
            signal.signal(number, signal.SIG_IGN)
