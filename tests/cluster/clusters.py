"""Clusters for tests: masters, nodes and programs, on hosts of a `Network` or on this machine."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self, TypeVar

import pytest

from asyncparl.protocol.cluster_view import ClusterView, NodeSummary
from tests.cluster.processes import PATIENCE_S, Driver, Program, until
from tests.hosts import Host, hosts_unavailable

ROOT = Path(__file__).parents[2]

PYTHON = [sys.executable]
# -P: as with the installed commands, what lies in the working directory is no code of theirs.
MASTER = [*PYTHON, "-P", "-c", "from asyncparl.cli.services import master_main; master_main()"]
NODE = [*PYTHON, "-P", "-c", "from asyncparl.cli.services import node_main; node_main()"]
COMMAND = [*PYTHON, "-P", "-m", "asyncparl.cli"]

AnyProgram = TypeVar("AnyProgram", bound=Program)


class Cluster:
    """A state folder, and the processes that use it. `with` ends them."""

    def __init__(self, folder: Path) -> None:
        self.state = folder / "state"
        self.address = ""
        self._folder = folder
        self._programs: list[Program] = []
        self._num_logs = 0
        # Short, for the paths of sockets.
        self.temporary = Path(tempfile.mkdtemp(prefix="c-"))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for program in self._programs:
            program.clean_up()
        shutil.rmtree(self.temporary, ignore_errors=True)

    @contextlib.contextmanager
    def one_test(self) -> Iterator[Self]:
        """End what the block has started."""
        num_before = len(self._programs)
        try:
            yield self
        finally:
            for program in self._programs[num_before:]:
                program.ask_to_end()
            for program in self._programs[num_before:]:
                program.clean_up(grace_s=5.0)
            del self._programs[num_before:]

    def environ(self, more: Mapping[str, str] | None = None) -> dict[str, str]:
        """For every process of this cluster."""
        ours = {"ASYNCPARL_STATE": str(self.state), "TMPDIR": str(self.temporary), "PYTHONPATH": str(ROOT)}
        return {**os.environ, **ours, **(more or {})}

    def secret(self, role: str) -> Path:
        """The file of a secret."""
        return self.state / self.address.rpartition(":")[2] / f"{role}-secret"

    def start_master(self, host: Host | None = None, listen: str = "") -> Program:
        """A master that is ready; by default at port 8010 of its host, or at any of this machine."""
        listen = listen or ("[::]:8010" if host is not None else "127.0.0.1:0")
        master = self.add(Program([*MASTER, "--listen", listen], host, self.new_log(), env=self.environ()))
        port = master.wait_line("is ready at").partition(";")[0].rpartition(":")[2]
        self.address = f"{host.ipv4 if host is not None else '127.0.0.1'}:{port}"
        return master

    def start_node(
        self,
        name: str,
        *options: str,
        host: Host | None = None,
        environ: Mapping[str, str] | None = None,
        master: str = "",
        waits: bool = True,
    ) -> Program:
        """A node; it has joined when this returns, with `waits`."""
        command = [*NODE, "--master", master or self.address, "--name", name, *options]
        node = self.add(Program(command, host, self.new_log(), env=self.environ(environ)))
        if waits:
            self.wait_joined(node)
        return node

    @staticmethod
    def wait_joined(*nodes: Program) -> None:
        """For nodes that were started without waiting for them."""
        for node in nodes:
            node.wait_line("has joined")

    def start_driver(
        self, host: Host | None = None, *, environ: Mapping[str, str] | None = None, waits: bool = True, **options: Any
    ) -> Driver:
        """A driver; it is connected when this returns, with `waits`. `options` are for `asyncparl.connect`."""
        options = {"address": self.address, **options}
        folder = self._folder / f"cwd-{self._num_logs}"
        folder.mkdir()
        driver = Driver(options, host, self.new_log(), env=self.environ(environ), cwd=folder)
        self.add(driver)
        if waits:
            driver.wait_line('@"ready"')
        return driver

    def warm_up(self, host: Host | None = None, **options: Any) -> None:
        """Run a program with an actor: a node keeps the process that its workers were forked from."""
        driver = self.start_driver(host)
        driver.create("probe", num_cpus=0, **options)
        driver.leave()

    def start(self, command: Sequence[str], host: Host | None = None, **popen: Any) -> Program:
        """Any other process."""
        return self.add(Program(command, host, self.new_log(), **{"env": self.environ(), **popen}))

    def run(self, command: Sequence[str], host: Host | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
        """A command to its end; what it prints."""
        options = {"env": self.environ(), "timeout": PATIENCE_S, **options}
        if host is not None:
            return host.run(command, **options)
        return subprocess.run(command, capture_output=True, text=True, check=False, **options)

    def asyncparl(self, *arguments: str, host: Host | None = None) -> subprocess.CompletedProcess[str]:
        """The command `asyncparl`, about this cluster."""
        return self.run([*COMMAND, *arguments, "--master", self.address], host)

    def add(self, program: AnyProgram) -> AnyProgram:
        """A process that ends with the cluster."""
        self._programs.append(program)
        return program

    def new_log(self) -> Path:
        """A file for what a process writes to standard error."""
        self._num_logs += 1
        return self._folder / f"errors-{self._num_logs}"


def skip_without_hosts() -> None:
    """For fixtures that make a network."""
    reason = hosts_unavailable()
    if reason is not None:
        pytest.skip(f"no network namespaces: {reason}")


def node_of(view: ClusterView, name: str) -> NodeSummary:
    """The node of this name."""
    return next(node for node in view.nodes if node.name == name)


def used_cpus(view: ClusterView) -> dict[str, float]:
    """By node."""
    return {node.name: node.used_cpus for node in view.nodes}


def wait_used(driver: Driver, within_s: float = 0.5, **expected: float) -> None:
    """Until these CPUs are in use, by node. The master and the driver are told of an end at the same time."""
    until(lambda: used_cpus(driver.view()) == expected, within_s)
