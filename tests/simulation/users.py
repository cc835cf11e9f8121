"""What users do in a simulation, and what they must hear.

Each call has a number that its method tells the witness. What a call raises must be allowed to it, what it returns must
be right, and what is said of its fate must be true.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import trio

import asyncparl
from asyncparl.errors import (
    ActorDied,
    CallCancelled,
    CallFate,
    CallTimedOut,
    NotConnectedError,
    ResourceError,
    SerializationError,
)
from tests.simulation.contents import content, is_content
from tests.simulation.made import Actor, Made
from tests.simulation.subjects import Helper, Host, Subject
from tests.simulation.world import Driver, World

DEAD = (ActorDied, ResourceError)
"""What any call may raise where things go wrong."""


class Users:
    """All users of a simulation."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.actors: list[Actor] = []
        self.calls: list[Made] = []
        self._last_number = 0

    def of(self, driver: Driver) -> list[Actor]:
        """What a program has proxies of."""
        return [actor for actor in self.actors if actor.driver is driver and not actor.is_dropped]

    # --- making ---------------------------------------------------------------------------------------------

    async def create(self, driver: Driver, a: int, b: int) -> None:
        """An actor, sometimes one that cannot live."""
        cls: Any = (Subject, Subject, Host)[a % 3]
        mood = {7: "raises", 8: "exits"}.get(b % 10, "good")
        is_detached = b % 10 == 6
        options: dict[str, Any] = {"num_cpus": (1, 1, 0.5, 0, 2)[a % 5], "max_concurrency": (1, 4)[b % 2]}
        if b % 3 == 0 and not is_detached:
            options["max_restarts"] = 1 + a % 3
        if b % 10 in (5, 6):
            options |= {"name": f"name{a % 4}", "detached": is_detached}
        proxy = cls.options(**options)(mood)
        actor = Actor(driver, proxy, f"{proxy._handle.name} of {driver.process}", mood=mood, is_detached=is_detached)
        actor.is_doomed = mood != "good"
        actor.max_restarts = options.get("max_restarts", 0)
        self.world.note("create", actor.name, mood, *options.values())
        self.actors.append(actor)

    async def expose(self, driver: Driver, a: int, b: int) -> None:
        """An object of the program."""
        proxy: Any = asyncparl.expose(Helper(), max_concurrency=1 + a % 3)
        actor = Actor(driver, proxy, f"{proxy._handle.name} of {driver.process}", is_exposed=True)
        self.actors.append(actor)

    def make(self, actor: Actor, a: int, b: int) -> Made:
        """A call of some kind."""
        number = self._number()
        value = (number, content(number, a))
        delay = (0.0, 0.001, 0.05, 1.0)[b % 4]
        kinds: list[Callable[[], tuple[str, Any, tuple[type[BaseException], ...]]]] = [
            lambda: ("echo", actor.proxy.echo(number, value), ()),
            lambda: ("later", actor.proxy.later(number, value, delay), ()),
        ]
        if not actor.is_exposed:
            kinds += [
                lambda: ("fail", actor.proxy.fail(number), (LookupError,)),
                lambda: ("fail_later", actor.proxy.fail_later(number, delay), (LookupError,)),
                lambda: ("unsendable", actor.proxy.unsendable(number), (SerializationError,)),
                lambda: ("again", actor.proxy.again(number, value), ()),
            ]
        what, call, errors = kinds[a % 8 % len(kinds)]()
        return self._made(number, what, actor, call, errors)

    def _made(self, number: int, what: str, actor: Actor, call: Any, errors: tuple[type[BaseException], ...]) -> Made:
        if actor.mood == "raises":
            errors = (*errors, ValueError)
        made = Made(number, what, actor, call, self.world.now, (*errors, *DEAD), jumped_s=self.world.jumped_s)
        self.calls.append(made)
        self.world.counts[f"call {what}"] += 1
        return made

    def _number(self) -> int:
        self._last_number += 1
        return self._last_number

    # --- waiting --------------------------------------------------------------------------------------------

    async def settle(self, made: Made) -> Any:
        """Wait for a call, and judge what comes."""
        try:
            value = await made.call
        except Exception as error:
            self.raised(made, error)
            return None
        self.returned(made, value)
        return value

    def raised(self, made: Made, error: Exception) -> None:
        """Judge an error."""
        made.outcome = type(error).__name__
        self.world.note("raised", made.number, made.outcome)
        self.world.counts[f"raised {made.outcome}"] += 1
        if made.actor.driver.process.is_dead:
            return
        allowed = made.may_raise + ((CallCancelled,) if made.is_given_up else ())
        if isinstance(error, NotConnectedError) and made.actor.driver.leaving.is_set():
            return
        if not isinstance(error, allowed):
            self.world.bug(f"{made} raised", error)
        if isinstance(error, ActorDied):
            self._judge_death(made, error)
        if isinstance(error, CallTimedOut):
            self._judge_timeout(made, error)
        runs = self.world.witness.runs.get(made.number)
        if isinstance(error, (LookupError, SerializationError)) and not runs:
            self.world.bug(f"{made} raised what only its method raises, and never ran", error)

    def _judge_timeout(self, made: Made, error: CallTimedOut) -> None:
        runs = self.world.witness.runs.get(made.number)
        made.never_started = error.has_started is False
        if self.world.now < made.at + made.timeout_s - 1e-6:
            self.world.bug(f"{made} had {made.timeout_s} s, and was given up before", error)
        if error.has_started and not runs:
            self.world.bug(f"{made} is said to have started, and never ran", error)
        if made.never_started and runs:
            self.world.bug(f"{made} is said to have never started, but ran in {runs}", error)

    def _judge_death(self, made: Made, error: ActorDied) -> None:
        runs = self.world.witness.runs.get(made.number)
        inner = any(self.world.witness.runs.get(number) for number in made.inner)
        if error.fate is CallFate.NEVER_STARTED and runs and not made.inner:
            self.world.bug(f"{made} is said to have never started, but ran in {runs}", error)
        if error.fate is CallFate.NEVER_STARTED and made.inner and inner:
            self.world.bug(f"{made}: its inner call is said to have never started, but ran", error)
        ids = made.actor.actor_id, self._owner_of(made.actor)  # others may know by now what it ends with
        is_doomed = made.actor.is_doomed or any(other.is_doomed for other in self.actors if other.actor_id in ids)
        is_ended = is_doomed or made.actor.driver.leaving.is_set() or made.inner
        if "exists already" in error.reason:
            is_ended = True  # its maker has given it a name that another one has
        if self.world.last_fault_at < 0 and not is_ended:
            self.world.bug(f"{made} died, although nothing has gone wrong", error)

    def returned(self, made: Made, value: Any) -> None:
        """Judge a result."""
        made.outcome = "returned"
        self.world.note("returned", made.number)
        self.world.counts["returned"] += 1
        if not self.world.witness.runs.get(made.number):
            self.world.bug(f"{made} returned, and never ran")
        if made.what in ("fail", "fail_later", "unsendable") or made.actor.mood != "good":
            self.world.bug(f"{made} returned {value!r}, and should not")
        if made.what in ("echo", "later", "again", "through") and (
            not isinstance(value, tuple) or value[0] != (made.inner[0] if made.inner else made.number)
        ):
            self.world.bug(f"{made} returned {value!r}")
        elif made.what in ("echo", "later", "again") and not is_content(*value):
            self.world.bug(f"{made} returned something else than it was given: {value!r}")

    # --- using ----------------------------------------------------------------------------------------------

    async def call(self, actor: Actor, a: int, b: int) -> None:
        """One call, awaited."""
        await self.settle(self.make(actor, a, b))

    async def timed(self, actor: Actor, a: int, b: int) -> None:
        """One call that may take only so long, awaited; or several of them at once."""
        for index in range(1 + 7 * (b % 2)):
            number = self._number()
            value, timeout_s = (number, "in time"), (0.002, 0.05, 0.5, 3.0, 20.0)[(a + index) % 5]
            delay_s = (0.0, 0.03, 0.4, 5.0)[(a + b + index) % 4]
            options = {"timeout_s": timeout_s}
            if b % 3 == 0:
                what, call = "echo", actor.proxy.echo.options(**options)(number, value)
            elif b % 3 == 1 and not actor.is_exposed:
                what, call = "again", actor.proxy.again.options(**options)(number, value)
            else:
                what, call = "later", actor.proxy.later.options(**options)(number, value, delay_s)
            made = self._made(number, what, actor, call, (CallTimedOut,))
            made.timeout_s = timeout_s
            if b % 2:
                actor.driver.do(self.settle, made)
            else:
                await self.settle(made)

    async def timed_stream(self, actor: Actor, a: int, b: int) -> None:
        """A stream each of whose items may take only so long."""
        if actor.is_exposed:
            return
        number, timeout_s = self._number(), (0.05, 0.5, 3.0)[a % 3]
        call = actor.proxy.items_later.options(timeout_s=timeout_s)(number, 5, (0.0, 0.03, 0.4, 5.0)[b % 4])
        made = self._made(number, "items", actor, call, (CallTimedOut,))
        made.timeout_s = timeout_s
        try:
            async for _ in call:
                self._item_came(made)
                made.timeout_s = float("inf")  # nobody waits
                await trio.sleep((0.0, 1.0)[a % 2])
                made.at, made.jumped_s, made.timeout_s = self.world.now, self.world.jumped_s, timeout_s
            made.outcome = "returned"
        except Exception as error:
            self.raised(made, error)
        finally:  # also if the program leaves: then nobody waits, and the item in hand has no limit
            self._item_came(made)
            made.call, made.timeout_s = None, float("inf")

    def _item_came(self, made: Made) -> None:
        if self.world.now > made.limit_at(self.world.jumped_s):
            self.world.bug(f"{made}: an item, or the end, came after {self.world.now - made.at:.3f} s")

    async def burst(self, actor: Actor, a: int, b: int) -> None:
        """Many calls at once, awaited in some order."""
        num = (3, 20, 20, 1200)[b % 4] if a % 5 == 0 else 6
        calls = [self.make(actor, a + index, b if num < 1000 else 0) for index in range(num)]
        for made in calls if b % 2 else reversed(calls):
            await self.settle(made)

    async def forget(self, actor: Actor, a: int, b: int) -> None:
        """A call that nobody waits for."""
        self.make(actor, a, b)

    async def cancel(self, actor: Actor, a: int, b: int) -> None:
        """A call that is given up, or its waiter is."""
        made = self.make(actor, a, b)
        made.is_given_up = True
        delay = (0, 0.0005, 0.01, 0.2)[b % 4]
        if a % 2:
            with trio.move_on_after(delay):
                await self.settle(made)
        else:
            await trio.sleep(delay)
            made.call.cancel()
        if not made.call.done() and not made.outcome:
            self.world.bug(f"{made} is not settled by giving it up")

    async def gather(self, actor: Actor, a: int, b: int) -> None:
        """Several calls; the first that fails ends all."""
        others = self.of(actor.driver)
        calls = [self.make(others[(a + index) % len(others)], b + index, a) for index in range(2 + a % 4)]
        for made in calls:
            made.is_given_up = True  # by the failure of another one
        try:
            values = await asyncparl.gather([made.call for made in calls])
        except (*DEAD, LookupError, SerializationError, ValueError, CallCancelled):
            pass
        except NotConnectedError:
            pass
        else:
            for made, value in zip(calls, values, strict=True):
                self.returned(made, value)
        if unsettled := [made for made in calls if made.is_unsettled]:
            self.world.bug(f"not settled after gather: {unsettled}")

    async def stream(self, actor: Actor, a: int, b: int) -> None:
        """Take some items, all of them, or stop in the middle."""
        if actor.is_exposed:
            return
        number, num = self._number(), (0, 1, 3, 10, 40)[b % 5]
        pause = (0, 0, 0.01, 0.5)[a % 4]
        if a % 2:
            call = actor.proxy.items(number, num)
        else:
            call = actor.proxy.items_later(number, num, (0, 0.001, 0.05)[b % 3])
        made = self._made(number, "items", actor, call, ())
        most = num if a % 3 else num // 2
        taken = 0
        try:
            if taken < most or most == num:
                async for item in call:
                    if item != (number, taken):
                        self.world.bug(f"{made} gave {item} as item {taken}")
                    taken += 1
                    await trio.sleep(pause)
                    if taken >= most and most < num:
                        break
                else:
                    if taken != num:
                        self.world.bug(f"{made} ended after {taken} items of {num}")
                    made.outcome = "returned"
        except Exception as error:
            self.raised(made, error)
        made.is_given_up = True
        if a % 8 == 0:
            await call.aclose()
        made.call = None  # dropping a stream ends it

    async def attribute(self, actor: Actor, a: int, b: int) -> None:
        """Read, or set."""
        if actor.is_exposed:
            return
        try:
            if a % 2:
                number = await actor.proxy.number
                if not isinstance(number, int):
                    self.world.bug(f"attribute {number!r}")
            else:
                await asyncparl.set_attribute(actor.proxy, "number", b)
        except (*DEAD, NotConnectedError, ValueError) as error:
            if isinstance(error, ValueError) and actor.mood != "raises":
                self.world.bug(f"an attribute of {actor.name}", error)

    async def through(self, actor: Actor, a: int, b: int) -> None:
        """Have an actor call another one, or an object of the program, or itself."""
        if actor.is_exposed:
            return
        others = self.of(actor.driver)
        other = others[a % len(others)]
        number, inner = self._number(), self._number()
        call: Any
        if b % 3 == 0 and not other.is_exposed:
            call = actor.proxy.stream_through(number, other.proxy, inner, b % 7)
            what = "stream_through"
        else:
            call = actor.proxy.through(number, other.proxy, inner, (inner, "through"))
            what = "through"
        errors = (ValueError,) if other.mood == "raises" else ()
        made = self._made(number, what, actor, call, errors)
        made.inner.append(inner)
        if other is actor:
            made.is_given_up = True  # a method without room for a second one waits for ever
            with trio.move_on_after(3):
                await self.settle(made)
            return
        await self.settle(made)

    async def bear(self, actor: Actor, a: int, b: int) -> None:
        """Have an actor make an actor, and call that."""
        if actor.is_exposed:
            return
        number = self._number()
        is_detached = b % 5 == 4
        name = f"child{a % 4}" if is_detached or b % 5 == 3 else ""
        made = self._made(number, "bear", actor, actor.proxy.bear(number, name, detached=is_detached), ())
        child = await self.settle(made)
        if child is not None:
            self._borrow(actor, child, f"child of {actor.name}", is_detached=is_detached)

    async def offer(self, actor: Actor, a: int, b: int) -> None:
        """Have an actor expose an object, and call that."""
        if actor.is_exposed:
            return
        number = self._number()
        made = self._made(number, "offer", actor, actor.proxy.offer(number), ())
        thing = await self.settle(made)
        if thing is not None:
            self._borrow(actor, thing, f"object of {actor.name}").is_exposed = True

    async def me(self, actor: Actor, a: int, b: int) -> None:
        """Have an actor give its own proxy."""
        if actor.is_exposed:
            return
        number, proxy = self._number(), actor.proxy  # which may be dropped meanwhile
        itself = await self.settle(self._made(number, "me", actor, proxy.me(number), ()))
        if itself is not None and itself != proxy:
            self.world.bug(f"{actor.name} says that it is {itself!r}")

    async def find(self, driver: Driver, a: int, b: int) -> None:
        """An actor by its name."""
        name = f"{('name', 'child')[b % 2]}{a % 4}"
        try:
            proxy = await asyncparl.get_actor(name)
        except (LookupError, ResourceError):
            return
        actor = Actor(driver, proxy, f"{name} as {driver.process} found it", is_borrowed=True)
        known = [other for other in self.actors if not other.is_exposed and other.actor_id == actor.actor_id]
        actor.mood = known[0].mood if known else "good"
        owner = self._owner_of(actor)
        actor.is_doomed = any(other.is_doomed for other in self.actors if other in known or other.actor_id == owner)
        self.actors.append(actor)

    async def close(self, actor: Actor, a: int, b: int) -> None:
        """End it, politely or not."""
        if (proxy := actor.proxy) is None:
            return  # somebody has dropped it in this very moment
        self._doom(actor)
        self.world.note("kill" if a % 2 else "close", actor.name)
        try:
            await (asyncparl.kill(proxy) if a % 2 else asyncparl.close(proxy))
        except RuntimeError:
            if not (actor.is_exposed and actor.is_borrowed):
                raise
        except ResourceError:
            pass  # no master
        else:
            if actor.is_exposed or actor.is_borrowed:
                return
            self.world.note("closed", actor.name)
            if actor.is_detached:
                await trio.sleep(2)  # where its owner has lost sight of it, the master has it ended
            alive = [each for each in self.world.living_workers() if each.spec.actor_id == actor.actor_id]
            if alive and self.world.last_fault_at < self.world.now - 60:
                self.world.bug(f"{actor.name} was closed, and lives in {alive[0].process}")

    async def leave_by_itself(self, actor: Actor, a: int, b: int) -> None:
        """Have an actor call `sys.exit`."""
        if actor.is_exposed:
            return
        self._doom(actor)
        number = self._number()
        await self.settle(self._made(number, "leave", actor, actor.proxy.leave(number, b % 3), ()))

    async def drop(self, actor: Actor, a: int, b: int) -> None:
        """Let go of a proxy, and of all that is known of its calls."""
        if actor.is_borrowed:
            actor.is_dropped, actor.proxy = True, None

    def _doom(self, actor: Actor) -> None:
        """Everybody's proxy of it is of one that ends."""
        for other in self.actors:
            if other is actor or (not actor.is_exposed and not other.is_exposed and other.actor_id == actor.actor_id):
                other.is_doomed = True
            # What it made and exposed ends with it; also what was found by its name before that was known.
            if f"of {actor.name}" in other.name or self._owner_of(other) == actor.actor_id:
                other.is_doomed = True

    def _owner_of(self, actor: Actor) -> str:
        """Of one that ends with its owner."""
        lease = self.world.leases.get(actor.actor_id)
        return "" if lease is None or lease.title.is_detached else lease.driver_id

    def _borrow(self, maker: Actor, proxy: Any, name: str, *, is_detached: bool = False) -> Actor:
        actor = Actor(maker.driver, proxy, name, is_borrowed=True, is_detached=is_detached)
        # Its maker may have ended meanwhile.
        actor.is_doomed = maker.is_doomed
        self.actors.append(actor)
        return actor
