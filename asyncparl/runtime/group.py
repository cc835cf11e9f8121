"""Groups: actors that are supervised together. `async with asyncparl.supervise() as group: sim = group.add(Simulator)`.

A failure climbs: an actor that dies is started again by its group; a group that has no restart left fails its block,
with the last death; what fails there is the business of the code around it, which may be the block of another group.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable
from typing import ParamSpec

import trio

from asyncparl.errors import ActorDied
from asyncparl.protocol.node_messages import ActorExited
from asyncparl.protocol.restarts import STRATEGIES, RestartBudget, Strategy, check_restarts, restarted_with
from asyncparl.runtime.actor import ActorHandle
from asyncparl.runtime.current import current_session
from asyncparl.runtime.event_loop import EventLoop
from asyncparl.runtime.remote import Proxy
from asyncparl.runtime.remote_class import RemoteClass
from asyncparl.runtime.stopping import ASK_LIMIT_S, CLOSE_GRACE_S, KILL_LIMIT_S
from asyncparl.runtime.supervisor import Restart, Supervised, restart_after

P = ParamSpec("P")


class Group:
    """The actors of one `supervise` block. `add` them; all that they are told to do they are told directly."""

    def __init__(self, strategy: Strategy, max_restarts: int, window_s: float | None, scope: trio.CancelScope) -> None:
        self._strategy = strategy
        self._budget = RestartBudget(max_restarts, window_s)
        self._scope = scope
        self._loop = EventLoop()
        self._members: list[ActorHandle] = []
        """Those that have not ended, in the order of joining."""
        self._is_over = False
        self.failure: BaseException | None = None
        """The death that was one too many, or why an actor could not be started at all."""

    def add(self, cls: Callable[P, object], /, *args: P.args, **kwargs: P.kwargs) -> Proxy:
        """Start an actor that belongs to the group: `group.add(Simulator, "pong")` instead of `Simulator("pong")`.

        Its own `max_restarts` does not count.

        Raises:
            TypeError: not a remote class.
            ValueError: a detached actor, which ends with nobody.
            RuntimeError: the block has ended, or the last `connect()` is not that of the group.
            NotConnectedError: no `asyncparl.connect()` block is open.
        """
        if not isinstance(cls, RemoteClass):
            raise TypeError(f"a group has actors of remote classes, not {cls!r}")
        if self._is_over:
            raise RuntimeError(f"{cls.__name__} cannot be added: the block of this group has ended")
        if not self._loop.is_that_of(current_session(f"{cls.__name__}(...)").loop):
            raise RuntimeError(f"{cls.__name__} cannot be added: this group is of another `connect()`")
        return cls.start_supervised(self, args, kwargs)

    @property
    def num_actors(self) -> int:
        """Actors that have not ended."""
        return len(self._members)

    # --- for its actors -------------------------------------------------------------------------------------

    def joined(self, actor: Supervised) -> None:
        """One more."""
        assert isinstance(actor, ActorHandle)
        self._members.append(actor)

    def died(self, actor: Supervised, death: ActorExited) -> Restart | None:
        """Start it again, with those who start again with it; or fail."""
        assert isinstance(actor, ActorHandle)
        if self._is_over:
            return None
        together = restarted_with(self._strategy, self._members, actor)
        restart = restart_after(self._budget.died(trio.current_time()), together)
        if restart is None:
            self._fail(actor, death)
            return None
        for other in together:
            if other is not actor:
                other.start_again(restart, f"it is started again, because {actor.name} has died")
        return restart

    def never_started(self, actor: Supervised, error: BaseException) -> None:
        """Starting it again would not help: fail, unless something else was first."""
        if self.failure is None:
            self._fail_with(error)

    def why_spent(self) -> str:
        """For people."""
        why = self._budget.why_spent()
        return f"its group {why}" if why and self.failure is not None else ""

    def gone(self, actor: Supervised) -> None:
        """One less."""
        assert isinstance(actor, ActorHandle)
        self._members.remove(actor)

    # --- for the block --------------------------------------------------------------------------------------

    async def end(self, *, by_force: bool) -> None:
        """End all that are left. Bounded."""
        self._is_over = True
        with trio.CancelScope(shield=True, deadline=trio.current_time() + self._limit_s):
            if self._strategy == "rest_for_one":
                for member in reversed(self._members.copy()):
                    await self._end_one(member, by_force)
            else:
                async with trio.open_nursery() as nursery:
                    for member in self._members.copy():
                        nursery.start_soon(self._end_one, member, by_force)

    @property
    def _limit_s(self) -> float:
        one_by_one = len(self._members) if self._strategy == "rest_for_one" else 1
        return one_by_one * (ASK_LIMIT_S + CLOSE_GRACE_S + KILL_LIMIT_S)

    @staticmethod
    async def _end_one(member: ActorHandle, by_force: bool) -> None:
        if by_force:
            await member.kill()
            return
        with trio.move_on_after(ASK_LIMIT_S):
            await member.close()
        await member.wait_gone()

    def _fail(self, actor: ActorHandle, death: ActorExited) -> None:
        reason = f"its group {self._budget.why_spent()}: {death.reason}" if self._budget.why_spent() else death.reason
        self._fail_with(ActorDied(actor.name, reason, death.exit_code, death.signal, death.log_tail))

    def _fail_with(self, error: BaseException) -> None:
        self._is_over = True
        self.failure = error
        self._scope.cancel()


@contextlib.asynccontextmanager
async def supervise(
    strategy: Strategy = "one_for_one", *, max_restarts: int = 3, restart_window_s: float | None = 60.0
) -> AsyncIterator[Group]:
    """Supervise the actors that are added to the group: start those again that die, and fail where it does not help.

    Args:
        strategy: who is started again when one has died: "one_for_one", only that one; "one_for_all", all of the group;
            "rest_for_one", it and those that were added after it. All of them have ended before the first one starts.
        max_restarts: how often within `restart_window_s`, for the group as a whole. One more death, and the block is
            cancelled; what leaves it then is that death, as `ActorDied`.
        restart_window_s: in seconds; None: ever.

    The end of the block ends its actors: they are closed, with 5 s for what was called before, or killed if an
    exception ends it; those of "rest_for_one" one after another, the last one first.

    An actor that cannot be started at all, because its first constructor raises or because no machine could take it,
    cancels the block too; that exception leaves it.

    Raises:
        TypeError, ValueError: an argument that makes no sense.
        ActorDied: see `max_restarts`. Not in an exception group.
    """
    if strategy not in STRATEGIES:
        raise ValueError(f"strategy must be one of {', '.join(STRATEGIES)}, not {strategy!r}")
    check_restarts(max_restarts, restart_window_s)
    is_clean = False
    with trio.CancelScope() as scope:
        group = Group(strategy, max_restarts, restart_window_s, scope)
        try:
            yield group
            is_clean = True
        except BaseException as error:
            if group.failure is not None and error is not group.failure and _is_a_death(error):
                raise group.failure from error
            raise
        finally:
            await group.end(by_force=not is_clean or group.failure is not None)
    if group.failure is not None:
        raise group.failure


def _is_a_death(error: BaseException) -> bool:
    """Whether it is what a death makes of the code of a block: its calls fail, and its other tasks are cancelled."""
    if not isinstance(error, BaseExceptionGroup):
        return isinstance(error, ActorDied)
    return error.split((ActorDied, trio.Cancelled))[1] is None and error.subgroup(ActorDied) is not None
