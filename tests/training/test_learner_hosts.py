"""Learners on several machines: they find each other by their addresses, and none is waited for that is cut off."""

from __future__ import annotations

import csv
import time
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

from asyncparl.training.checkpoint import list_checkpoints, load_checkpoint
from tests.cluster.clusters import COMMAND, Cluster, skip_without_hosts
from tests.cluster.processes import Program, until
from tests.hosts import Host, Network

LIMIT_S = 60.0
TRAIN = (
    "train", "impala", "--env", "asyncparl/Catch-v0", "--learners", "2", "--envs-per-actor", "8", "--batch-size", "16",
    "--learner-threads", "1", "--steps", "1000000000", "--report-interval", "0.2",
)  # fmt: skip

pytestmark = pytest.mark.slow


class Site(NamedTuple):
    cluster: Cluster
    first: Host
    """Where the master is, and the program with the first learner."""
    far: Host
    """Where the other one has to be."""


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    skip_without_hosts()
    with Network() as network, Cluster(tmp_path) as cluster:
        first, far = network.host("first"), network.host("far")
        cluster.start_master(first)
        cluster.start_node("far", "--cpus", "3", host=far)
        yield Site(cluster, first, far)


def start_run(site: Site, folder: Path) -> Program:
    command = [*COMMAND, *TRAIN, "--cluster", site.cluster.address, "--run-dir", str(folder)]
    return site.cluster.start(command, site.first)


def num_updates(folder: Path) -> int:
    path = folder / "progress.csv"
    if not path.exists():
        return 0
    with path.open(newline="") as file:
        return max((int(row["updates"]) for row in csv.DictReader(file)), default=0)


def test_learners_on_two_machines_learn_until_one_is_cut_off(site: Site, tmp_path: Path) -> None:
    site.first.firewall(inbound=False)
    refused = start_run(site, tmp_path / "refused")
    assert refused.wait(LIMIT_S) == 1
    assert "error: learner 2 of 2 on " in refused.errors()
    assert f"cannot reach the first one at {site.first.ipv4}" in refused.errors()

    site.first.firewall(inbound=True)
    folder = tmp_path / "run"
    run = start_run(site, folder)
    until(lambda: num_updates(folder) > 20 or run.process.poll() is not None, LIMIT_S)
    assert num_updates(folder) > 20, run.errors()
    site.far.cut()
    cut_at = time.monotonic()
    assert run.wait(LIMIT_S) == 1
    print(f"ended {time.monotonic() - cut_at:.1f} s after the cut")
    assert "error: learner 2 of 2 died: " in run.errors()
    (path,) = list_checkpoints(folder / "checkpoints")
    assert load_checkpoint(path).counters.updates > 20
