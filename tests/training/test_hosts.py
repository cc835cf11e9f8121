"""A training run on several machines, of which one goes and comes back: nothing waits for it, and nothing is lost."""

from __future__ import annotations

import csv
import json
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from numpy.typing import NDArray

from tests.cluster.clusters import Cluster, skip_without_hosts
from tests.cluster.processes import Program
from tests.hosts import Host, Network

PROGRAM = Path(__file__).parent / "programs" / "train.py"
UNROLL, COLUMNS, ENVS, ACTORS = 20, 12, 8, 3  # as there
LIMIT_S = 60.0
LONGEST_PAUSE_S = 10.0
"""Between two updates. The target is 2, on a machine that does nothing else."""

pytestmark = pytest.mark.slow


class Site(NamedTuple):
    cluster: Cluster
    learner: Host
    """Where the master is, and the program."""
    far: Host
    """Where the node is that goes."""
    doomed: Program


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    skip_without_hosts()
    with Network() as network, Cluster(tmp_path) as cluster:
        learner, near, far = network.host("learner"), network.host("near"), network.host("far")
        cluster.start_master(learner)
        steady = [cluster.start_node(f"steady-{i}", "--cpus", "1", host=near, waits=False) for i in range(2)]
        doomed = cluster.start_node("doomed", "--cpus", "1", host=far, waits=False)
        cluster.wait_joined(*steady, doomed)
        yield Site(cluster, learner, far, doomed)


class Run:
    """A program that trains."""

    def __init__(self, site: Site, folder: Path) -> None:
        self.folder = folder
        command = [sys.executable, str(PROGRAM), site.cluster.address, str(folder)]
        self.program = site.cluster.start(command, site.learner)

    def wait_report(self, fits: Callable[[dict[str, Any]], bool]) -> Any:
        """The next report that fits."""
        deadline = time.monotonic() + LIMIT_S
        while not fits(report := json.loads(self.program.wait_line("@", deadline - time.monotonic())[1:])):
            pass
        return report

    def go_on(self, num_actors: int, num_updates: int) -> None:
        """Until so many play, and then for so many updates."""
        start = self.wait_report(lambda report: report["actors"] == num_actors)["updates"]
        self.wait_report(lambda report: report["updates"] >= start + num_updates)

    def end(self) -> dict[str, NDArray[Any]]:
        """The updates, as the program has noted them."""
        self.program.close_input()
        assert self.program.wait(LIMIT_S) == 0, self.program.errors()
        return dict(np.load(self.folder / "updates.npz"))


@pytest.mark.parametrize("how", ["killed", "cut off"])
def test_a_run_neither_waits_nor_miscounts_when_a_machine_goes_and_comes_back(
    site: Site, tmp_path: Path, how: str
) -> None:
    run = Run(site, tmp_path / "run")
    run.go_on(ACTORS, 100)
    if how == "killed":
        gone_at = site.doomed.send(signal.SIGKILL)
    else:
        gone_at = time.monotonic()
        site.far.cut()
    assert "is lost" in run.program.wait_line("it is replaced", LIMIT_S)
    noticed_at = time.monotonic()
    run.go_on(ACTORS - 1, 100)
    back_at = time.monotonic()
    if how == "killed":
        site.cluster.start_node("doomed", "--cpus", "1", host=site.far)
    else:
        site.far.heal()
    run.go_on(ACTORS, 100)
    took_s = time.monotonic() - back_at
    updates = run.end()

    pauses = {
        "before": longest_pause(updates["times"], 0, gone_at),
        "after the death": longest_pause(updates["times"], gone_at, back_at),
        "after the return": longest_pause(updates["times"], back_at, float("inf")),
    }
    print(
        f"{how}: noticed after {noticed_at - gone_at:.2f} s; 3 actors, and 100 updates, {took_s:.1f} s after", end=" "
    )
    print("the return; longest pauses between updates:", {when: round(pause, 2) for when, pause in pauses.items()})
    assert max(pauses["after the death"], pauses["after the return"]) < LONGEST_PAUSE_S
    assert_counts_are_right(updates, run.folder)
    assert_every_step_was_learned_once(updates)


def longest_pause(times: NDArray[np.float64], since: float, until: float) -> float:
    """Between two updates one after the other, of which the second is in this time."""
    ends = times[1:]
    return float(np.diff(times)[(ends > since) & (ends <= until)].max())


def assert_counts_are_right(updates: dict[str, NDArray[Any]], folder: Path) -> None:
    num = np.arange(1, len(updates["times"]) + 1)
    assert np.array_equal(updates["versions"], num)
    assert np.array_equal(updates["agent_steps"], num * UNROLL * COLUMNS)
    with (folder / "progress.csv").open(newline="") as file:
        rows = [(int(row["updates"]), int(row["agent_steps"])) for row in csv.DictReader(file)]
    assert [steps for _, steps in rows] == [updates * UNROLL * COLUMNS for updates, _ in rows]
    assert rows[-1][0] == num[-1]


def assert_every_step_was_learned_once(updates: dict[str, NDArray[Any]]) -> None:
    """Of each game a beginning without a gap: also of those that were cut short."""
    seeds, steps = updates["seeds"], updates["steps"].transpose(0, 2, 1)  # [N, B] and [N, B, T]
    assert (np.diff(steps) == 1).all()
    games = np.unique(seeds)
    assert len(games) == (ACTORS + 1) * ENVS  # those of one actor more: nobody plays again what somebody has played
    for game in games:
        # Batches that are complete at the same time may change places.
        learned = np.sort(steps[seeds == game].ravel())
        assert np.array_equal(learned, np.arange(len(learned)))
