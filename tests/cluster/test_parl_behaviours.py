"""What the tests of PARL check of its clusters, as far as no other test here does."""

from __future__ import annotations

import os
import signal
import socket
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.clusters import Cluster, node_of, skip_without_hosts, used_cpus, wait_used
from tests.cluster.processes import Driver, until
from tests.hosts import Network
from tests.proc import is_gone

NUM_NODES = 10


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("parl")) as cluster:
        cluster.start_master()
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    """Without nodes."""
    with shared_cluster.one_test():
        yield shared_cluster


def num_ready(driver: Driver) -> int:
    return sum(node.state == "ready" for node in driver.view().nodes)


@pytest.mark.slow
def test_two_nodes_of_four_cpus_run_eight_actors_at_once(cluster: Cluster) -> None:
    for name in ("one", "two"):
        cluster.start_node(name, "--cpus", "4", waits=False)
    driver = cluster.start_driver()
    pids = {driver.create(f"probe-{i}")["pid"] for i in range(8)}
    assert len(pids) == 8
    assert used_cpus(driver.view()) == {"one": 4, "two": 4}
    calls = [driver.start("call", f"probe-{i}", "echo", i) for i in range(8)]
    assert [call.value() for call in calls] == list(range(8))
    assert driver.leave() == 0


def test_actors_that_are_made_before_there_is_a_node_wait_for_one(cluster: Cluster) -> None:
    driver = cluster.start_driver()
    waiting = [driver.start("create", f"probe-{i}", {}) for i in range(2)]
    until(lambda: len(driver.view().waiting) == 2)
    cluster.start_node("late", "--cpus", "2", waits=False)
    assert len({reply.value()["pid"] for reply in waiting}) == 2
    assert driver.leave() == 0


@pytest.mark.slow
def test_nodes_are_counted_as_they_join_and_as_they_are_killed(cluster: Cluster) -> None:
    driver = cluster.start_driver()
    assert num_ready(driver) == 0
    nodes = [cluster.start_node(f"node-{i}", "--cpus", "1", waits=False) for i in range(NUM_NODES)]
    until(lambda: num_ready(driver) == NUM_NODES)
    for node in nodes[::2]:
        node.send(signal.SIGKILL)
    until(lambda: num_ready(driver) == NUM_NODES // 2, within_s=5)
    assert {node.name for node in driver.view().nodes if node.state == "ready"} == {
        f"node-{i}" for i in range(1, NUM_NODES, 2)
    }
    for node in nodes[1::2]:
        node.send(signal.SIGKILL)
    until(lambda: num_ready(driver) == 0, within_s=5)
    until(lambda: not driver.view().nodes, within_s=15)
    assert driver.leave() == 0


@pytest.mark.slow
def test_the_status_shows_what_is_in_use(cluster: Cluster) -> None:
    cluster.start_node("node", "--cpus", "2")
    driver = cluster.start_driver()

    def row() -> list[str]:
        lines = cluster.asyncparl("status").stdout.splitlines()
        return next(line.split() for line in lines if line.startswith("node "))

    idle = row()
    driver.create("probe")
    busy = row()
    driver.do("close", "probe")
    until(lambda: row() == idle, within_s=10)
    changed = [(before, after) for before, after in zip(idle, busy, strict=True) if before != after]
    assert changed == [("0/2", "1/2"), ("0", "1")]  # CPUs, and actors
    assert driver.leave() == 0


def test_the_cpus_of_a_program_that_is_terminated_are_free_for_the_next(cluster: Cluster) -> None:
    cluster.start_node("node", "--cpus", "1")
    first, second = cluster.start_driver(), cluster.start_driver()
    pid = first.create("probe")["pid"]
    first.start("call", "probe", "sleep", 600)
    waiting = second.start("create", "probe", {})
    until(lambda: bool(second.view().waiting))
    first.end(signal.SIGTERM)
    assert waiting.value(within_s=15)["pid"] != pid
    until(lambda: is_gone(pid), within_s=5)
    assert second.leave() == 0


def test_a_node_whose_helper_and_workers_are_all_killed_starts_others(cluster: Cluster) -> None:
    node = cluster.start_node("node", "--cpus", "2")
    driver = cluster.start_driver()
    pids = {driver.create(f"probe-{i}")["pid"] for i in range(2)}
    calls = [driver.start("call", f"probe-{i}", "sleep", 600) for i in range(2)]
    driver.do("view")
    for process in psutil.Process(node.pid).children(recursive=True):
        process.kill()
    for call in calls:
        assert call.failure(within_s=10).type == "ActorDied"
    wait_used(driver, within_s=5, node=0)
    others = {driver.create(f"other-{i}")["pid"] for i in range(2)}
    assert not pids & others
    assert driver.leave() == 0


@pytest.mark.slow
def test_connecting_where_no_master_is_fails_with_the_address(cluster: Cluster) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
        start = time.monotonic()
        driver = cluster.start_driver(address=address, secret_file=str(cluster.secret("driver")), waits=False)
        assert driver.wait(within_s=25) == 1
    assert time.monotonic() - start < 25
    last = driver.errors().splitlines()[-1]
    assert last.startswith("asyncparl.errors.ResourceError: no master answers at") and address in last


@pytest.mark.slow
def test_a_program_uses_several_clusters_at_once(cluster: Cluster, tmp_path: Path) -> None:
    cluster.start_node("of the first", "--cpus", "1")
    with Cluster(tmp_path) as other:
        other.start_master()
        other.start_node("of the other", "--cpus", "1")
        script = tmp_path / "program.py"
        script.write_text(
            textwrap.dedent("""
            import sys, trio, asyncparl

            @asyncparl.remote_class
            class Worker:
                def echo(self, value): return value

            async def main():
                first, first_secret, other, other_secret = sys.argv[1:]
                async with asyncparl.connect(first, secret_file=first_secret) as outside:
                    worker = Worker()
                    async with asyncparl.connect(other, secret_file=other_secret) as inside:
                        another = Worker()
                        print(await worker.echo(1), await another.echo(2))
                        for cluster in (outside, inside):
                            (node,) = (await cluster.describe()).nodes
                            print(node.name, node.used_cpus)
                    print(await worker.echo(3))

            if __name__ == "__main__":
                trio.run(main)
            """)
        )
        secrets = [argument for each in (cluster, other) for argument in (each.address, str(each.secret("driver")))]
        done = cluster.run([sys.executable, str(script), *secrets])
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "1 2\nof the first 1.0\nof the other 1.0\n3\n"


FAR = """
    import os, pathlib, sys, trio, asyncparl
    sys.path.append("lib")
    import near

    @asyncparl.remote_class
    class Reader:
        def read(self):
            return [pathlib.Path(name).read_text() for name in ("data/a.json", "data/deep/b.json")] + [near.VALUE]

        def network(self):
            return os.readlink("/proc/self/ns/net")

    async def main():
        async with asyncparl.connect(sys.argv[1], secret_file=sys.argv[2], files=["data"]):
            reader = Reader()
            print(await reader.network() != os.readlink("/proc/self/ns/net"))
            for path in (*pathlib.Path("data").rglob("*.json"), pathlib.Path("lib/near.py")):
                path.unlink()
            print(await reader.read())
            print(await Reader().read())

    if __name__ == "__main__":
        trio.run(main)
"""


@pytest.mark.slow
def test_files_that_were_sent_can_be_read_after_they_are_gone_here(tmp_path: Path) -> None:
    skip_without_hosts()
    for name, text in {
        "main.py": textwrap.dedent(FAR),
        "here/data/a.json": "a",
        "here/data/deep/b.json": "b",
        "here/lib/near.py": "VALUE = 'near'",
    }.items():
        (tmp_path / "program" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "program" / name).write_text(text)
    with Network() as network, Cluster(tmp_path) as cluster:
        near, far = network.host("near"), network.host("far")
        cluster.start_master(near)
        environ = {"ASYNCPARL_STATE": str(tmp_path / "state of the node")}
        secret = str(cluster.secret("node"))
        cluster.start_node("far", "--cpus", "2", "--secret-file", secret, host=far, environ=environ)
        command = [sys.executable, str(tmp_path / "program" / "main.py")]
        command += [cluster.address, str(cluster.secret("driver"))]
        done = cluster.run(command, near, cwd=tmp_path / "program" / "here")
    assert (done.returncode, done.stderr) == (0, "")
    assert done.stdout == "True\n['a', 'b', 'near']\n['a', 'b', 'near']\n"


def test_the_gpus_of_actors_that_fail_are_free_again(cluster: Cluster) -> None:
    cluster.start_node("node", "--cpus", "2", environ={"CUDA_VISIBLE_DEVICES": "0,1"})
    driver = cluster.start_driver()
    assert driver.start("create", "broken", {"num_gpus": 2}, "no such game").failure().type == "ValueError"
    wait_used(driver, within_s=5, node=0)
    assert node_of(driver.view(), "node").used_gpus == [0, 0]
    driver.create("probe", num_gpus=2)
    assert driver.do("call", "probe", "environ")["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert driver.start("call", "probe", "missing").failure().type == "AttributeError"
    assert node_of(driver.view(), "node").used_gpus == [1, 1]
    os.kill(driver.do("call", "probe", "pid"), signal.SIGKILL)
    until(lambda: node_of(driver.view(), "node").used_gpus == [0, 0], within_s=5)
    assert driver.leave() == 0
