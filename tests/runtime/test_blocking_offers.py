"""What `asyncparl` offers, `asyncparl.blocking` offers too: groups, objects that come by themselves, and every name."""

from __future__ import annotations

import inspect
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

import asyncparl
from asyncparl import blocking
from asyncparl.runtime.pull import Manager
from tests.runtime.actors import Echo

REPOSITORY = Path(__file__).parents[2]
LIMIT_S = 20.0


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCPARL_STATE", str(tmp_path / "state"))


@pytest.fixture
def cluster() -> Iterator[blocking.Cluster]:
    with blocking.connect() as cluster:
        yield cluster


def public(thing: object) -> set[str]:
    return {name for name, value in vars(thing).items() if not name.startswith("_") and not inspect.ismodule(value)}


# --- names ------------------------------------------------------------------------------------------------------


def test_both_modules_have_the_same_public_names() -> None:
    names = public(asyncparl) - {"annotations", "Any", "TYPE_CHECKING"}
    assert set(blocking.__all__) - {"__version__"} == names
    assert blocking._NEED_TORCH == asyncparl._NEED_TORCH
    for name in (*names, *asyncparl._NEED_TORCH):
        assert getattr(blocking, name).__name__ == getattr(asyncparl, name).__name__
    assert blocking.__version__ == asyncparl.__version__


def test_what_waits_has_the_same_arguments_in_both() -> None:
    for name in ("connect", "supervise", "RemoteManager", "as_remote", "close", "kill", "get_actor", "set_attribute"):
        ours, theirs = inspect.signature(getattr(blocking, name)), inspect.signature(getattr(asyncparl, name))
        assert list(ours.parameters.values()) == list(theirs.parameters.values()), name


def test_what_the_blocks_give_has_the_same_members_in_both() -> None:
    assert public(asyncparl.Cluster) <= set(dir(blocking.Cluster)) >= {"monitor_url"}
    assert public(Manager) <= set(dir(blocking.RemoteManager)) >= {"address"}


def test_importing_all_of_it_imports_no_torch() -> None:
    program = "from asyncparl.blocking import *; import sys; print('torch' in sys.modules, connect, supervise)"
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True, cwd=REPOSITORY)
    assert done.stdout.startswith("False <function connect")


# --- groups -----------------------------------------------------------------------------------------------------


def die(actor: Any) -> None:
    with pytest.raises(asyncparl.ActorDied):
        actor.shoot().result(LIMIT_S)


def until(condition: Callable[[], bool]) -> None:
    give_up_at = time.monotonic() + LIMIT_S
    while not condition():
        assert time.monotonic() < give_up_at
        time.sleep(0.01)


@pytest.mark.usefixtures("cluster")
def test_a_group_starts_those_again_that_die() -> None:
    with blocking.supervise("one_for_all") as group:
        actors = [group.add(Echo, number) for number in range(2)]
        before = blocking.gather([actor.pid() for actor in actors])
        die(actors[0])
        after = blocking.gather([actor.pid() for actor in actors], timeout=LIMIT_S)
        assert not set(before) & set(after)
        assert [actor.total.result() for actor in actors] == [0, 1]
        assert group.num_actors == 2
        late = actors[0].add(1)
    assert late.result() == 1  # what was called before the end is answered
    assert not any(psutil.pid_exists(pid) for pid in after)
    with pytest.raises(RuntimeError, match="the block of this group has ended"):
        group.add(Echo)


@pytest.mark.usefixtures("cluster")
def test_a_group_that_fails_leaves_its_block_as_the_death_whatever_the_block_does_meanwhile() -> None:
    with pytest.raises(asyncparl.ActorDied, match="SIGKILL") as caught, blocking.supervise(max_restarts=0) as group:
        victim, other = group.add(Echo), group.add(Echo)
        waiting = other.sleep(600)
        die(victim)
        with pytest.raises(asyncparl.ActorDied):
            waiting.result(LIMIT_S)
        until(lambda: not group.num_actors)
    assert caught.value.actor == "Echo#1" and caught.value.signal == signal.SIGKILL

    with (
        pytest.raises(asyncparl.ActorDied, match="Echo#3 died: killed by SIGKILL"),
        blocking.supervise(max_restarts=0) as group,
    ):
        victim, other = group.add(Echo), group.add(Echo)
        victim.shoot()
        other.sleep(600).result(LIMIT_S)  # whose death is not the one that counts


@pytest.mark.usefixtures("cluster")
def test_what_is_raised_in_the_block_leaves_it_as_it_is_and_kills_the_actors() -> None:
    with pytest.raises(ZeroDivisionError), blocking.supervise() as group:
        echo = group.add(Echo)
        pid = echo.pid().result()
        echo.sleep(600)
        start = time.monotonic()
        raise ZeroDivisionError
    assert time.monotonic() - start < 5
    assert not psutil.pid_exists(pid)


@pytest.mark.usefixtures("cluster")
def test_groups_are_nested_and_a_failure_climbs() -> None:
    with blocking.supervise() as outer:
        outside = outer.add(Echo)
        with pytest.raises(asyncparl.ActorDied), blocking.supervise(max_restarts=0) as inner:
            die(inner.add(Echo))
        assert outside.add(1).result() == 1


def test_a_connection_that_is_closed_in_the_block_ends_its_actors(cluster: blocking.Cluster) -> None:
    with blocking.supervise() as group:
        echo = group.add(Echo)
        pid = echo.pid().result()
        cluster.close()
    assert not psutil.pid_exists(pid)


def test_an_actor_of_another_connection_cannot_be_added(cluster: blocking.Cluster) -> None:
    another = pytest.raises(RuntimeError, match="this group is of another")
    with blocking.supervise() as group, blocking.connect(), another:
        group.add(Echo)
    assert cluster.num_actors == 0


async def test_a_group_is_not_opened_where_that_would_stop_an_event_loop_nor_without_a_connection() -> None:
    with pytest.raises(RuntimeError, match="async with"), blocking.supervise():
        pass


def test_mistakes_are_told_at_once() -> None:
    with pytest.raises(asyncparl.NotConnectedError), blocking.supervise():
        pass
    with blocking.connect():
        with pytest.raises(ValueError, match="strategy must be one of"), blocking.supervise("x"):  # type: ignore[arg-type]
            pass
        with pytest.raises(ValueError, match="max_restarts must be"), blocking.supervise(max_restarts=-1):
            pass
        assert Echo().add(1).result() == 1


# --- objects that come by themselves ----------------------------------------------------------------------------


class Agent:
    def __init__(self, name: str = "agent") -> None:
        self.name = name

    def add(self, n: int) -> int:
        return n + 1

    def count(self, n: int) -> Iterator[int]:
        yield from range(n)

    def fail(self) -> None:
        raise LookupError("nothing here")


def offer(manager: blocking.RemoteManager, name: str) -> threading.Thread:
    thread = threading.Thread(target=blocking.as_remote, args=(Agent(name), manager.address))
    thread.start()
    return thread


def test_offered_objects_are_taken_and_used() -> None:
    with blocking.RemoteManager("127.0.0.1:0") as manager:
        thread = offer(manager, "first")
        agent: Any = manager.get_remote(timeout=LIMIT_S)
        assert agent.add(1).result() == 2
        assert agent.name.result() == "first"
        assert list(agent.count(3)) == [0, 1, 2]
        with pytest.raises(LookupError, match="nothing here"):
            agent.fail().result()
        blocking.close(agent)
        thread.join(LIMIT_S)
        assert not thread.is_alive()
        with pytest.raises(asyncparl.ActorDied):
            agent.add(1).result()
        assert "127.0.0.1" in repr(manager)
    assert "closed" in repr(manager)


def test_a_manager_is_iterated_over_and_its_end_lets_all_go() -> None:
    threads: list[threading.Thread] = []
    with blocking.RemoteManager("127.0.0.1:0") as manager:
        threads += [offer(manager, name) for name in ("a", "b")]
        names = []
        for agent in manager:
            names.append(agent.name.result())
            if len(names) == 2:
                break
        assert sorted(names) == ["a", "b"]
    for thread in threads:
        thread.join(LIMIT_S)
        assert not thread.is_alive()


def test_waiting_for_an_object_ends_in_time_and_takes_none_that_comes_later() -> None:
    with blocking.RemoteManager("127.0.0.1:0") as manager:
        with pytest.raises(TimeoutError, match="nothing was offered"):
            manager.get_remote(timeout=0.1)
        thread = offer(manager, "late")
        late: Any = manager.get_remote(LIMIT_S)
        assert late.name.result() == "late"
        blocking.kill(late)
        thread.join(LIMIT_S)


def test_one_that_waits_for_an_object_hears_that_the_manager_was_closed() -> None:
    manager = blocking.RemoteManager("127.0.0.1:0")
    errors: list[BaseException] = []

    def take() -> None:
        try:
            manager.get_remote()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=take)
    thread.start()
    time.sleep(0.2)
    manager.close()
    thread.join(LIMIT_S)
    assert [type(error) for error in errors] == [asyncparl.NotConnectedError]


def test_a_connected_program_uses_offered_objects_beside_its_own(cluster: blocking.Cluster) -> None:
    with blocking.RemoteManager("127.0.0.1:0") as manager:
        thread = offer(manager, "x")
        agent: Any = manager.get_remote(LIMIT_S)
        assert Echo().add(agent.add(1).result()).result() == 2
        assert cluster.num_actors
    thread.join(LIMIT_S)


async def test_neither_side_is_opened_where_that_would_stop_an_event_loop() -> None:
    with pytest.raises(RuntimeError, match="async with"):
        blocking.RemoteManager("127.0.0.1:0")
    with pytest.raises(RuntimeError, match="write `await"):
        blocking.as_remote(Agent(), "127.0.0.1:1")


def test_what_is_wrong_with_an_address_is_told() -> None:
    with pytest.raises(ValueError, match="is no address"):
        blocking.RemoteManager("nowhere")
    with pytest.raises(ValueError, match="is no address"):
        blocking.as_remote(Agent(), "nowhere")


OFFERING = """
    import sys
    import asyncparl.blocking as asyncparl

    class Agent:
        def add(self, n):
            return n + 1

    asyncparl.as_remote(Agent(), sys.argv[1])
"""


def test_ctrl_c_withdraws_an_object(tmp_path: Path) -> None:
    script = tmp_path / "offering.py"
    script.write_text(textwrap.dedent(OFFERING))
    with blocking.RemoteManager("127.0.0.1:0") as manager:
        process = subprocess.Popen(
            [sys.executable, str(script), manager.address],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY)},
        )
        agent: Any = manager.get_remote(LIMIT_S)
        assert agent.add(1).result(LIMIT_S) == 2
        process.send_signal(signal.SIGINT)
        _, err = process.communicate(timeout=LIMIT_S)
        assert err.strip().endswith("KeyboardInterrupt")
        with pytest.raises(asyncparl.ActorDied):
            agent.add(1).result(LIMIT_S)
