"""The programs of a cluster, and who may not come back.

    JOINED --its connection breaks--> ABSENT --5 s--> forgotten
       ^                                |
       +------------ joins -------------+

A master that restarted knows none of them. Whoever lives joins again; who is expected because of what a node has told,
and does not join, is given up after 5 s too.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from asyncparl.protocol.liveness import Liveness
from asyncparl.protocol.nodes import RETURN_LIMIT_S
from asyncparl.protocol.parties import unique_name


@dataclass(slots=True)
class Driver:
    """A program, or an actor that uses others."""

    driver_id: str
    name: str
    program_id: str
    """The driver at the root of its owners: itself, if it is a program."""
    absence: Liveness | None = None
    """While its connection is broken."""


class Drivers:
    """See the head of this file."""

    def __init__(self) -> None:
        self._drivers: dict[str, Driver] = {}
        self._expected: dict[str, Liveness | None] = {}
        """Those who have not joined; None: until the next tick."""

    def __iter__(self) -> Iterator[Driver]:
        return iter(self._drivers.values())

    def __contains__(self, driver_id: str) -> bool:
        return driver_id in self._drivers

    def join(self, driver_id: str, name: str, program_id: str) -> Driver:
        """One that comes, or comes back: then it keeps its name."""
        driver = self._drivers.get(driver_id)
        if driver is None:
            unique = unique_name(name or "driver", {other.name for other in self})
            driver = self._drivers[driver_id] = Driver(driver_id, unique, program_id or driver_id)
        driver.absence = None
        self._expected.pop(driver_id, None)
        return driver

    def disconnected(self, driver_id: str, now: float) -> None:
        """Its present connection broke."""
        driver = self._drivers.get(driver_id)
        if driver is not None and driver.absence is None:
            driver.absence = Liveness(limit_s=RETURN_LIMIT_S, now=now)

    def leave(self, driver_id: str) -> Driver | None:
        """It goes; None if it was gone."""
        return self._drivers.pop(driver_id, None)

    def expect(self, driver_id: str) -> None:
        """An actor of this driver runs, which only the driver would start again."""
        if driver_id not in self._drivers:
            self._expected.setdefault(driver_id, None)

    def program_of(self, driver_id: str) -> str:
        """The program that a driver belongs to."""
        driver = self._drivers.get(driver_id)
        return driver_id if driver is None else driver.program_id

    def overdue(self, now: float) -> list[str]:
        """Those whose absence is over. They are here until they `leave`."""
        return [driver.driver_id for driver in self if driver.absence is not None and driver.absence.tick(now)]

    def take_missed(self, now: float) -> list[str]:
        """Those who were expected and have not come: each is told once."""
        missed = []
        for driver_id, absence in list(self._expected.items()):
            if absence is None:
                self._expected[driver_id] = Liveness(limit_s=RETURN_LIMIT_S, now=now)
            elif absence.tick(now):
                del self._expected[driver_id]
                missed.append(driver_id)
        return missed
