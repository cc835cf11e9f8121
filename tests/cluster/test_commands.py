"""What the commands say when something is wrong: one line, and an exit code that is not 0."""

from __future__ import annotations

import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from asyncparl import __version__
from asyncparl.cli.services import node_main
from tests.cluster.clusters import COMMAND, MASTER, Cluster
from tests.cluster.processes import until

OTHER_VERSION = "99.9.9"

# As if another version were installed.
WITH_OTHER_VERSION = f"""
import sys, types
version = types.ModuleType("asyncparl._version")
version.__version__ = {OTHER_VERSION!r}
sys.modules["asyncparl._version"] = version
"""


@pytest.fixture(scope="module")
def shared_cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    with Cluster(tmp_path_factory.mktemp("commands")) as cluster:
        cluster.start_master()
        yield cluster


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Iterator[Cluster]:
    with shared_cluster.one_test():
        yield shared_cluster


def assert_one_line(code: int, errors: str, text: str) -> None:
    assert code != 0
    assert errors.startswith("error: ") and text in errors, errors
    assert len(errors.splitlines()) == 1


@pytest.mark.parametrize("command", [[*MASTER, "--listen"], [*COMMAND, "start", "--port"]], ids=["master", "start"])
def test_a_port_that_is_in_use_is_named(cluster: Cluster, command: list[str]) -> None:
    with socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True) as server:
        port = str(server.getsockname()[1])
        done = cluster.run([*command, port if "start" in command else f"[::]:{port}"])
    assert_one_line(done.returncode, done.stderr, "in use")
    assert port in done.stderr


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (["--cpus", "-1"], "--cpus"),
        (["--cpus", "many"], "'many' is not a valid float"),
        (["--gpus", "99"], "--gpus 99, but this machine has"),
        (["--labels", "gpu"], "a label is NAME=VALUE"),
        (["--memory", "3 apples"], "'3 apples' is not a size, such as 512MiB or 16GiB"),
        (["--listen", "nonsense"], "nonsense"),
        (["--listen", "127.0.0.1:99999"], "99999"),
        (["--master", "127.0.0.1:0"], "is not host:port"),
        (["--master", "[::1"], "is not host:port"),
        (["--colour", "blue"], "--colour"),
        (["--secret-file", "/does/not/exist"], "/does/not/exist"),
    ],
    ids=lambda value: value[0].removeprefix("--") if isinstance(value, list) else "",
)
def test_a_bad_option_of_a_node_is_named(
    cluster: Cluster,
    options: list[str],
    text: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """In this process, because there are so many of them."""
    monkeypatch.setenv("ASYNCPARL_STATE", str(cluster.state))
    monkeypatch.setattr(sys, "argv", ["asyncparl-node", "--master", cluster.address, *options])
    with pytest.raises(SystemExit) as stop:
        node_main()
    assert isinstance(stop.value.code, int)
    assert_one_line(stop.value.code, capsys.readouterr().err, text)


def test_actors_shows_what_each_of_them_does_waits_for_and_has_to_do(cluster: Cluster) -> None:
    node = cluster.start_node("alpha")
    driver = cluster.start_driver()
    pid = driver.create("probe", num_cpus=0)["pid"]
    driver.do("lend", "holder", "probe", {"num_cpus": 0})
    driver.create("idle", num_cpus=0)
    driver.start("call", "holder", "ask", "sleep", 600)
    time.sleep(1.2)
    driver.start("call", "probe", "pid")
    driver.start("call", "probe", "pid")
    driver.do("view")  # so that they have left
    head, *rows = cluster.asyncparl("actors").stdout.splitlines()
    assert head.split() == ["ACTOR", "ID", "STATE", "NODE", "PID", "QUEUE", "CPUS", "PROGRAM", "DOING"]
    by_name = {row.split()[0]: row for row in rows}
    assert re.search(rf" running +alpha +{pid} +2 +0 .* runs sleep for [1-9]\.\d s$", by_name["Probe#1"])
    assert re.search(r" 0 +0 .* waits for Probe#1\.sleep, in ask for [1-9]\.\d s$", by_name["Holder#1"])
    assert re.search(r" 0 +0 .* waits for calls$", by_name["Probe#2"])
    told = json.loads(cluster.asyncparl("actors", "--json").stdout)
    probe = next(actor for actor in told if actor["name"] == "Probe#1")
    assert (probe["state"], probe["pid"], probe["num_waiting"], probe["doing"]) == ("started", pid, 2, "runs sleep")
    os.kill(pid, signal.SIGSTOP)

    def row() -> str:
        return next(row for row in cluster.asyncparl("actors").stdout.splitlines() if row.startswith("Probe#1 "))

    until(lambda: " silent " in (told := row()) and "stopped (SIGSTOP)" in told, within_s=10)
    os.kill(pid, signal.SIGCONT)
    driver.do("kill_all")
    assert node.end() == 0


def test_a_command_that_runs_says_what_it_does_when_it_is_asked(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        master, node = cluster.start_master(), cluster.start_node("alpha")
        for program, task in ((master, "Master.run"), (node, "WorkerPool.run")):
            program.send(signal.SIGUSR1)
            program.wait_errors("\n---\n")
            text = program.errors()
            assert "tasks, and where each of them waits:" in text
            assert f"  {task}\n" in text
        assert cluster.asyncparl("status").returncode == 0
        assert node.end() == master.end() == 0


SIGNALLED = """
import os, signal, click
from asyncparl.cli.running import run_command

@click.command()
def command():
    os.kill(os.getpid(), signal.SIGUSR1)
    click.echo("goes on")

run_command(command)
"""


def test_a_command_says_what_it_does_from_its_first_moment_on() -> None:
    command = [sys.executable, "-c", SIGNALLED]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert (done.returncode, done.stdout) == (0, "goes on\n")
    assert done.stderr.startswith("--- what -c (pid ")
    environ = {**os.environ, "ASYNCPARL_DUMP_SIGNAL": "SIGNONE"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60, env=environ)
    assert_one_line(done.returncode, done.stderr, "ASYNCPARL_DUMP_SIGNAL must be the name of a signal")


def test_a_full_disk_under_what_a_command_prints_is_named(cluster: Cluster) -> None:
    with open("/dev/full", "w") as full:
        command = [*COMMAND, "status", "--master", cluster.address]
        done = subprocess.run(
            command, check=False, stdout=full, stderr=subprocess.PIPE, text=True, env=cluster.environ(), timeout=60
        )
    assert_one_line(done.returncode, done.stderr, "standard output: No space left on device")


def test_a_full_disk_elsewhere_is_not_that_under_what_a_command_prints() -> None:
    program = """
import click
from asyncparl.cli.running import run_command

@click.command()
def command():
    click.echo("begins")
    with open("/dev/full", "w") as full:
        full.write("text")

run_command(command)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 1
    assert done.stdout == "begins\n"
    assert "Traceback" in done.stderr and "error: standard output" not in done.stderr


@pytest.mark.parametrize("command", ["status", "top"])
def test_a_command_whose_output_nobody_reads_ends_without_a_word(command: str, cluster: Cluster) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with os.fdopen(writer, "w") as unread:
        whole = [*COMMAND, command, "--master", cluster.address]
        done = subprocess.run(
            whole, check=False, stdout=unread, stderr=subprocess.PIPE, text=True, env=cluster.environ(), timeout=60
        )
    assert (done.returncode, done.stderr) == (1, "")


def test_a_master_without_standard_error_serves(tmp_path: Path) -> None:
    with Cluster(tmp_path) as cluster:
        shell = f"exec {shlex.join([*MASTER, '--listen', '127.0.0.1:0'])} 2>&-"
        master = cluster.start(["/bin/sh", "-c", shell])
        address = master.wait_line("asyncparl master is ready at ").split()[5].removesuffix(";")
        assert cluster.run([*COMMAND, "status", "--master", address]).returncode == 0


def test_a_command_without_standard_output_does_its_work(cluster: Cluster) -> None:
    shell = f"exec {shlex.join([*COMMAND, 'status', '--master', cluster.address])} >&-"
    done = cluster.run(["/bin/sh", "-c", shell])
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_a_command_that_does_not_exist_is_named(cluster: Cluster) -> None:
    done = cluster.run([*COMMAND, "states"])
    assert_one_line(done.returncode, done.stderr, "states")


def test_a_node_of_another_version_is_refused_with_both_versions(cluster: Cluster) -> None:
    program = WITH_OTHER_VERSION + "from asyncparl.cli.services import node_main; node_main()"
    done = cluster.run([sys.executable, "-P", "-c", program, "--master", cluster.address])
    assert_one_line(done.returncode, done.stderr, OTHER_VERSION)
    assert __version__ in done.stderr


def test_a_program_of_another_version_is_refused_with_both_versions(cluster: Cluster) -> None:
    program = WITH_OTHER_VERSION + textwrap.dedent(
        f"""
        import trio, asyncparl
        async def main():
            try:
                async with asyncparl.connect({cluster.address!r}):
                    pass
            except asyncparl.ResourceError as error:
                print(error)
        trio.run(main)
        """
    )
    done = cluster.run([sys.executable, "-c", program])
    assert done.returncode == 0, done.stderr
    assert OTHER_VERSION in done.stdout and __version__ in done.stdout
