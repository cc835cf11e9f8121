"""Who has the wrong secret stays out, and is told so in one line; the right ones are shown to nobody."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.cluster.clusters import NODE, Cluster

WRONG = "12" * 32


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("secrets")) as cluster:
        cluster.start_master()
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    with shared_cluster.one_test():
        yield shared_cluster


def start_node(cluster: Cluster, *options: str, **environ: str) -> subprocess.CompletedProcess[str]:
    command = [*NODE, "--master", cluster.address, *options]
    return cluster.run(command, env=cluster.environ(environ))


def run_driver(cluster: Cluster, **environ: str) -> subprocess.CompletedProcess[str]:
    program = f"""
import trio, asyncparl
async def main():
    async with asyncparl.connect({cluster.address!r}):
        pass
trio.run(main)
"""
    return cluster.run([sys.executable, "-c", program], env=cluster.environ(environ))


def assert_one_line(done: subprocess.CompletedProcess[str], text: str) -> None:
    assert done.returncode == 1
    assert done.stderr.startswith("error: ") and text in done.stderr
    assert len(done.stderr.splitlines()) == 1


def test_a_node_with_a_wrong_secret_is_refused(cluster: Cluster) -> None:
    assert_one_line(start_node(cluster, ASYNCPARL_NODE_SECRET=WRONG), "the secret is not the one of that cluster")


def test_a_node_with_the_secret_of_drivers_is_refused(cluster: Cluster) -> None:
    done = start_node(cluster, "--secret-file", str(cluster.secret("driver")))
    assert_one_line(done, "the secret is not the one of that cluster")


def test_a_node_without_a_secret_is_told_where_to_get_it(cluster: Cluster, tmp_path: Path) -> None:
    done = start_node(cluster, ASYNCPARL_STATE=str(tmp_path))
    assert_one_line(done, "node-secret from its machine to the same place, or pass it with --secret-file")


@pytest.mark.parametrize("mode", [0o644, 0o640, 0o606])
def test_a_secret_that_others_can_use_is_refused(cluster: Cluster, tmp_path: Path, mode: int) -> None:
    secret = tmp_path / "node-secret"
    secret.write_bytes(cluster.secret("node").read_bytes())
    secret.chmod(mode)
    assert_one_line(start_node(cluster, "--secret-file", str(secret)), f"others can use the secret file {secret}")


def test_a_program_with_a_wrong_secret_is_refused(cluster: Cluster) -> None:
    done = run_driver(cluster, ASYNCPARL_DRIVER_SECRET=WRONG)
    assert done.returncode == 1
    error = done.stderr.splitlines()[-1]
    assert error.startswith("asyncparl.errors.AuthenticationError: ")
    assert error.endswith("the secret is not the one of that cluster")


def test_a_program_with_the_secret_of_nodes_is_refused(cluster: Cluster) -> None:
    """The names of the secrets are not interchangeable."""
    done = run_driver(cluster, ASYNCPARL_DRIVER_SECRET=cluster.secret("node").read_text().strip())
    assert "asyncparl.errors.AuthenticationError: " in done.stderr


def test_secrets_are_private_from_the_beginning(cluster: Cluster) -> None:
    for role in ("node", "driver"):
        assert cluster.secret(role).stat().st_mode & 0o777 == 0o600
    assert cluster.state.stat().st_mode & 0o777 == 0o700


@pytest.mark.parametrize("way", ["file", "variable"])
def test_secrets_are_shown_to_nobody(cluster: Cluster, way: str) -> None:
    """Neither in command lines, nor to what actors run, nor in what anybody writes."""
    secrets = {role: cluster.secret(role).read_text().strip() for role in ("node", "driver")}
    environ = {f"ASYNCPARL_{role.upper()}_SECRET": secret for role, secret in secrets.items()}
    node = cluster.start_node("node", environ=environ if way == "variable" else {})
    driver = cluster.start_driver(environ=environ if way == "variable" else {})
    driver.create("probe")
    driver.do("call", "probe", "say", "something")
    driver.start("call", "probe", "shoot", "last words").failure()
    driver.create("next")
    workers = [process.pid for process in psutil.Process(node.pid).children(recursive=True)]
    command_lines = subprocess.run(["ps", "-eww", "-o", "args"], capture_output=True, text=True, check=True).stdout
    printed = driver.errors() + "".join(driver.lines)
    seen = {
        "command lines": command_lines,
        "the environment of actors": str(driver.do("call", "next", "environ")),
        "the environment of what starts them": "".join(environment_of(each) for each in workers),
        "what the node writes": node.errors() + "".join(node.lines),
        "logs": "".join(path.read_text() for path in cluster.temporary.rglob("*.log")),
        "what the program prints": printed,
    }
    assert [where for where, text in seen.items() for secret in secrets.values() if secret in text] == []


def environment_of(pid: int) -> str:
    return Path(f"/proc/{pid}/environ").read_bytes().decode(errors="replace")
