"""What stands behind a proxy: something that makes calls to one object, and knows how it is doing.

Handle          what proxies need
LinkedHandle    an object with a link of its own: what owned, borrowed, offered and local ones have in common
ObjectHandle    an object that was exposed by a process to which another handle has the link
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from asyncparl.errors import CallFate, NotConnectedError, SerializationError
from asyncparl.protocol.link import LinkCore
from asyncparl.protocol.values import NOTHING, Encoded, encode_value
from asyncparl.runtime.call import Call, failed_call, make_call
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.interrupts import Uninterrupted
from asyncparl.runtime.link import Callee, Link, LinkLost
from asyncparl.runtime.references import Reference, public_names


class Handle(Protocol):
    """What proxies need of the object that they stand for. What is not `async` may be used in any thread."""

    name: str

    @property
    def loop(self) -> EventLoop: ...
    @property
    def state(self) -> str: ...
    def reference(self) -> Reference: ...
    def identity(self) -> tuple[str, int]: ...
    def call(
        self, kind: int, target: str, argument: object = None, *, credit: int = 0, object_id: int = 0
    ) -> Call[Any]: ...
    def public_names(self) -> list[str]: ...
    async def wait_created(self) -> None: ...
    async def close(self) -> None: ...
    async def kill(self) -> None: ...


class CallMaker(Protocol):
    """A process to which calls can be made, for any of its objects."""

    name: str

    @property
    def loop(self) -> EventLoop: ...
    def call(
        self, kind: int, target: str, argument: object = None, *, credit: int = 0, object_id: int = 0
    ) -> Call[Any]: ...


class LinkedHandle:
    """An object behind a link of its own. Calls may be made before the link is connected: they wait in it."""

    def __init__(self, name: str, *, callee: Callee | None, process_id: str, by_value: bool = False) -> None:
        self.name = name
        self._callee = callee
        self._process_id = process_id
        self._by_value = by_value
        self._link = self._new_link()
        self.loop = self._link.loop

    def reference(self) -> Reference:
        """What travels when a proxy is sent. Raises TypeError if it must not."""
        raise NotImplementedError

    def identity(self) -> tuple[str, int]:
        """Equal for handles of the same object."""
        return self.reference()[:2]

    def call(
        self, kind: int, target: str, argument: object = None, *, credit: int = 0, object_id: int = 0
    ) -> Call[Any]:
        """Make a call. Whatever goes wrong is raised where it is awaited."""
        name = f"{self.name}.{target}"
        try:
            if self._link.is_lost:
                raise LinkLost
            value = encode_argument(name, argument, by_value=self._by_value)
            with Uninterrupted():
                return self._make_call(name, kind, target, value, credit=credit, object_id=object_id)
        except LinkLost:
            return failed_call(name, self._why_dead(CallFate.NEVER_STARTED))
        except SerializationError as error:
            return failed_call(name, error)

    def _make_call(
        self, name: str, kind: int, target: str, value: Encoded, *, credit: int, object_id: int
    ) -> Call[Any]:
        """Raises LinkLost."""
        return make_call(self._link, name, kind, target, value, credit=credit, object_id=object_id)

    def _new_link(self) -> Link:
        core = LinkCore(name=self.name, pid=os.getpid(), process_id=self._process_id)
        return Link(core, self._callee)

    def _why_dead(self, fate: CallFate) -> BaseException:
        """What a call raises that the object will never answer."""
        raise NotImplementedError


class UnreachableHandle:
    """An object whose reference was read outside of any `connect()` block."""

    def __init__(self, reference: Reference) -> None:
        self.name = reference.name
        self._reference = reference

    @property
    def loop(self) -> EventLoop:
        """Say what is missing."""
        raise self._why()

    @property
    def state(self) -> str:
        """For people."""
        return "out of reach"

    def reference(self) -> Reference:
        """What travels."""
        return self._reference

    def identity(self) -> tuple[str, int]:
        """Equal for handles of the same object."""
        return self._reference[:2]

    def call(
        self, kind: int, target: str, argument: object = None, *, credit: int = 0, object_id: int = 0
    ) -> Call[Any]:
        """Say what is missing."""
        return failed_call(f"{self.name}.{target}", self._why())

    def public_names(self) -> list[str]:
        """What could be called or read."""
        return public_names(self._reference.class_path)

    async def wait_created(self) -> None:
        """Say what is missing."""
        raise self._why()

    close = kill = wait_created

    def _why(self) -> NotConnectedError:
        return NotConnectedError(f"{self.name} came here outside of `async with asyncparl.connect():`")


class ObjectHandle:
    """An exposed object, reached over the link of its process."""

    def __init__(self, process: CallMaker, reference: Reference) -> None:
        self.name = reference.name
        self.loop = process.loop
        self._process = process
        self._reference = reference

    @property
    def state(self) -> str:
        """For people."""
        return f"exposed by {self._process.name}"

    def reference(self) -> Reference:
        """What travels."""
        return self._reference

    def identity(self) -> tuple[str, int]:
        """Equal for handles of the same object."""
        return self._reference[:2]

    def call(
        self, kind: int, target: str, argument: object = None, *, credit: int = 0, object_id: int = 0
    ) -> Call[Any]:
        """Make a call. Whatever goes wrong is raised where it is awaited."""
        return self._process.call(kind, target, argument, credit=credit, object_id=self._reference.object_id)

    def public_names(self) -> list[str]:
        """What can be called or read."""
        return public_names(self._reference.class_path)

    async def wait_created(self) -> None:
        """It exists."""

    async def close(self) -> None:
        """Only its own process lets it go."""
        raise RuntimeError(f"{self.name} belongs to {self._process.name}: only that process can close it")

    kill = close


def encode_argument(call_name: str, argument: object, *, by_value: bool) -> Encoded:
    """The arguments of a call.

    Raises:
        SerializationError: they cannot travel; it names the call.
    """
    if argument is None:
        return NOTHING
    try:
        return encode_value(argument, by_value=by_value)
    except SerializationError as error:
        named = SerializationError(f"the arguments of {call_name}: {error}")
        raise named from error.__cause__
