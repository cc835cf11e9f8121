"""A training run on a cluster: here master and nodes are tasks of the test, their workers are processes."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import trio

from asyncparl.runtime.service import NodeOptions, serve_master, serve_node
from asyncparl.training import Trainer, TrainingConfig
from asyncparl.training.environments import CATCH_ID
from asyncparl.training.presets import ALGORITHM_NAMES
from asyncparl.transport.addresses import TcpAddress
from tests.training.test_trainer import LIMIT_S, Watcher

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def own_state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ASYNCPARL_STATE", str(tmp_path / "state"))


@asynccontextmanager
async def a_master() -> AsyncIterator[tuple[TcpAddress, trio.Nursery]]:
    """A master, and a nursery for nodes; both end with the block."""
    port: list[int] = []
    ready = trio.Event()

    def is_ready(_address: str, chosen: int) -> None:
        port.append(chosen)
        ready.set()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(partial(serve_master, TcpAddress("127.0.0.1", 0), stop=trio.Event(), on_ready=is_ready))
        await ready.wait()
        async with trio.open_nursery() as nodes:
            yield TcpAddress("127.0.0.1", port[0]), nodes
            nodes.cancel_scope.cancel()
        nursery.cancel_scope.cancel()


async def start_node(master: TcpAddress, nodes: trio.Nursery, name: str, cpus: int = 1) -> trio.CancelScope:
    """A node that has joined; cancelling the scope ends it at once."""
    joined, scope = trio.Event(), trio.CancelScope()

    async def serve() -> None:
        with scope:
            await serve_node(
                master,
                NodeOptions(cpus=cpus, name=name, preload=("torch", "numpy", "gymnasium", "asyncparl.training.actor")),
                stop=trio.Event(),
                on_ready=lambda _name: joined.set(),
            )

    nodes.start_soon(serve)
    await joined.wait()
    return scope


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
async def test_a_run_goes_on_when_a_node_goes_and_another_comes(algorithm: Any, tmp_path: Path) -> None:
    async with a_master() as (master, nodes):
        doomed = await start_node(master, nodes, "doomed")
        await start_node(master, nodes, "steady")
        config = TrainingConfig(
            env=CATCH_ID,
            algorithm=algorithm,
            cluster=str(master),
            steps=60_000,
            num_actors=2,
            envs_per_actor=8,
            batch_size=16,
            learning_rate=5e-3,
            max_actor_restarts=0,  # a machine that goes is no death
        )
        trainer = Trainer(config, run_dir=tmp_path / "run")

        def replace_node() -> None:
            doomed.cancel()
            nodes.start_soon(start_node, master, nodes, "late")

        watcher = Watcher(lambda report: report.agent_steps >= 1_000, replace_node)
        with trio.fail_after(LIMIT_S):
            result = await trainer.run(watcher)
        assert result.agent_steps >= 60_000
        assert result.report.actors >= 1
        assert [line for line in watcher.lines if "is lost: its node is gone" in line]
        assert not [line for line in watcher.lines if "died" in line]


async def test_a_cluster_without_nodes_is_waited_for(tmp_path: Path) -> None:
    async with a_master() as (master, nodes):
        config = TrainingConfig(
            env=CATCH_ID, cluster=str(master), steps=500, num_actors=1, envs_per_actor=8, batch_size=16
        )
        trainer = Trainer(config, run_dir=tmp_path / "run")
        async with trio.open_nursery() as nursery:
            nursery.start_soon(trainer.run)
            await trio.sleep(0.5)
            with trio.fail_after(LIMIT_S):
                await start_node(master, nodes, "first")
