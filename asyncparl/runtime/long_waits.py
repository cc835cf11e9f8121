"""Warnings of calls that somebody has waited for for long, where a program wants them: `connect(warn_after_s=60)`."""

from __future__ import annotations

import logging

import trio

from asyncparl.runtime.activity import WaitingCall, awaited_calls

_MAX_PAUSE_S = 5.0
_SHORT_S = 10.0
"""Below that, tenths of a second say something."""

_log = logging.getLogger("asyncparl")


async def warn_of_long_waits(after_s: float) -> None:
    """One warning for each call that is waited for for longer than this. For ever."""
    told: set[WaitingCall] = set()
    while True:
        await trio.sleep(min(after_s / 4, _MAX_PAUSE_S))
        long = {call for call in awaited_calls() if call.age_s > after_s}
        for call in sorted(long - told, key=lambda call: call.since):
            actor, _, method = call.name.rpartition(".")
            _log.warning(
                "asyncparl: %s has been waited for for %s s",
                call.name,
                f"{call.age_s:.1f}" if after_s < _SHORT_S else f"{call.age_s:.0f}",
                extra={"actor": actor, "method": method, "waited_s": call.age_s},
            )
        told = long
