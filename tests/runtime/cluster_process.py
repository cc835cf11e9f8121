"""The process of a private cluster, as a test finds it."""

from __future__ import annotations

import psutil
import pytest
import trio

import asyncparl
from tests.runtime.actors import Echo


def node_process() -> psutil.Process:
    """Of the private cluster that this process has. It may have other children, of earlier tests' libraries."""
    children = psutil.Process().children()
    (node,) = [child for child in children if any("zygote_start.py" in word for word in child.cmdline())]
    return node


async def new_actors_are_refused(why: str) -> None:
    """Once this process has heard why. Those made before are told when they are called."""
    with trio.fail_after(5), pytest.raises(asyncparl.NotConnectedError, match=why):
        while True:
            echo = Echo()
            with pytest.raises((asyncparl.ActorDied, asyncparl.ResourceError)):
                await echo.pid()
