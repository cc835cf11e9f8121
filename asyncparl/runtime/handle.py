"""What stands behind a proxy: something that makes calls to one object, and knows how it is doing.

Handle          what proxies need
LinkedHandle    an object with a link of its own: what owned, borrowed, offered and local ones have in common
ObjectHandle    an object that was exposed by a process to which another handle has the link
"""

from __future__ import annotations

import os
from typing import Any, Protocol

from asyncparl.errors import CallFate, NotConnectedError, SerializationError
from asyncparl.protocol.link import DEFAULT_MAX_VALUE_BYTES, LinkCore
from asyncparl.protocol.values import Encoded
from asyncparl.runtime.call import Call, failed_call, make_call
from asyncparl.runtime.call_values import encode_argument
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.interrupts import Uninterrupted
from asyncparl.runtime.link import Link, LinkLost
from asyncparl.runtime.references import Reference, public_names
from asyncparl.runtime.roles import Callee


class Handle(Protocol):
    """What proxies need of the object that they stand for. What is not `async` may be used in any thread."""

    name: str
    call_timeout_s: float | None
    """How long a call may take that does not say so itself."""

    @property
    def loop(self) -> EventLoop: ...
    @property
    def state(self) -> str: ...
    def reference(self) -> Reference: ...
    def identity(self) -> tuple[str, int]: ...
    def call(
        self,
        kind: int,
        target: str,
        argument: object = None,
        *,
        credit: int = 0,
        object_id: int = 0,
        timeout_s: float | None = None,
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
        self,
        kind: int,
        target: str,
        argument: object = None,
        *,
        credit: int = 0,
        object_id: int = 0,
        timeout_s: float | None = None,
    ) -> Call[Any]: ...


class LinkedHandle:
    """An object behind a link of its own. Calls may be made before the link is connected: they wait in it."""

    def __init__(
        self,
        name: str,
        *,
        callee: Callee | None,
        process_id: str,
        main_names: frozenset[str] | None = None,
        max_value_bytes: int | None = DEFAULT_MAX_VALUE_BYTES,
    ) -> None:
        """`main_names`: what the object's process finds in its `__main__`; None: all of ours."""
        self.name = name
        self._callee = callee
        self._process_id = process_id
        self._main_names = main_names
        self._max_value_bytes = max_value_bytes
        self._link = self._new_link()
        self.loop = self._link.loop
        self.call_timeout_s: float | None = None

    def reference(self) -> Reference:
        """What travels when a proxy is sent. Raises TypeError if it must not."""
        raise NotImplementedError

    def identity(self) -> tuple[str, int]:
        """Equal for handles of the same object."""
        return self.reference()[:2]

    def call(
        self,
        kind: int,
        target: str,
        argument: object = None,
        *,
        credit: int = 0,
        object_id: int = 0,
        timeout_s: float | None = None,
    ) -> Call[Any]:
        """Make a call. Whatever goes wrong is raised where it is awaited."""
        name = f"{self.name}.{target}"
        if self.loop.is_elsewhere:
            return failed_call(name, self.loop.why_over(name))
        try:
            if self._link.is_lost:
                raise LinkLost
            value = encode_argument(name, kind, argument, main_names=self._main_names)
            with Uninterrupted():
                return self._make_call(
                    name, kind, target, value, credit=credit, object_id=object_id, timeout_s=timeout_s
                )
        except LinkLost:
            return failed_call(name, self._why_dead(CallFate.NEVER_STARTED))
        except SerializationError as error:
            return failed_call(name, error)

    def _make_call(
        self,
        name: str,
        kind: int,
        target: str,
        value: Encoded,
        *,
        credit: int,
        object_id: int,
        timeout_s: float | None,
    ) -> Call[Any]:
        """Raises LinkLost."""
        return make_call(self._link, name, kind, target, value, credit=credit, object_id=object_id, timeout_s=timeout_s)

    def _new_link(self) -> Link:
        core = LinkCore(
            name=self.name,
            pid=os.getpid(),
            process_id=self._process_id,
            max_value_bytes=self._max_value_bytes,
        )
        return Link(core, self._callee)

    def _why_dead(self, fate: CallFate) -> BaseException:
        """What a call raises that the object will never answer."""
        raise NotImplementedError


class UnreachableHandle:
    """An object whose reference was read outside of any `connect()` block."""

    def __init__(self, reference: Reference) -> None:
        self.name = reference.name
        self.call_timeout_s = reference.call_timeout_s
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
        self,
        kind: int,
        target: str,
        argument: object = None,
        *,
        credit: int = 0,
        object_id: int = 0,
        timeout_s: float | None = None,
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
        self.call_timeout_s: float | None = None
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
        self,
        kind: int,
        target: str,
        argument: object = None,
        *,
        credit: int = 0,
        object_id: int = 0,
        timeout_s: float | None = None,
    ) -> Call[Any]:
        """Make a call. Whatever goes wrong is raised where it is awaited."""
        object_id = self._reference.object_id
        return self._process.call(kind, target, argument, credit=credit, object_id=object_id, timeout_s=timeout_s)

    def public_names(self) -> list[str]:
        """What can be called or read."""
        return public_names(self._reference.class_path)

    async def wait_created(self) -> None:
        """It exists."""

    async def close(self) -> None:
        """Only its own process lets it go."""
        raise RuntimeError(f"{self.name} belongs to {self._process.name}: only that process can close it")

    kill = close
