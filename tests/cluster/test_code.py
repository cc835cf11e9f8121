"""What a program finds of itself on another host: its code and its files, and nothing else."""

from __future__ import annotations

import json
import os
import shutil
import sys
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.cluster.clusters import Cluster, skip_without_hosts
from tests.cluster.processes import PATIENCE_S
from tests.hosts import Host, Network

BIG_FILE_BYTES = 4 << 20

PROGRAM = """
    import json, os, sys, trio, asyncparl
    import sibling
    from sims.inner import engine

    @asyncparl.remote_class
    class Looker:
        def look(self):
            import late
            return {
                "network": os.readlink("/proc/self/ns/net"),
                "values": [sibling.VALUE, engine.VALUE, late.VALUE, type(Thing()).__name__],
                "config": open("configs/deep/one.yaml").read(),
                "folder": sorted(os.listdir(".")),
                "sources": [sibling.__file__, engine.__file__, late.__file__],
            }

        def make(self):
            return Thing()

    @asyncparl.remote_class
    class Other(engine.Engine.__wrapped__):
        def answer(self):
            return super().answer() + 1

    class Thing:
        pass

    async def main():
        async with asyncparl.connect(sys.argv[1], secret_file=sys.argv[2], files=["configs/**/*.yaml", "big"]):
            looker = Looker()
            seen = await looker.look()
            seen["same class"] = type(await looker.make()) is Thing
            seen["answers"] = [await engine.Engine().answer(), await Other().answer()]
            print(json.dumps(seen))

"""
ENDINGS = {"guarded": 'if __name__ == "__main__":\n    trio.run(main)\n', "unguarded": "trio.run(main)\n"}

FILES = {
    "project/sibling.py": "VALUE = 'sibling'\n",
    "project/late.py": "VALUE = 'late'\n",
    "project/sims/__init__.py": "",
    "project/sims/inner/__init__.py": "",
    "project/sims/inner/engine.py": """
        import asyncparl
        VALUE = 'engine'
        @asyncparl.remote_class
        class Engine:
            def answer(self):
                return 42
    """,
    "project/.git/hook.py": "",
    "project/.venv/pyvenv.cfg": "",
    "project/.venv/lib/module.py": "",
    "project/.env": "PASSWORD=x",
    "cwd/configs/deep/one.yaml": "rate: 1\n",
    "cwd/configs/deep/.env": "PASSWORD=x",
    "cwd/configs/not-asked-for.txt": "",
}


class Site(NamedTuple):
    cluster: Cluster
    driver: Host
    node: Host
    store: Path
    """Where the node keeps code."""
    folder: Path


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    skip_without_hosts()
    folder = tmp_path_factory.mktemp("code")
    with Network() as network, Cluster(folder) as cluster:
        driver, node = network.host("driver"), network.host("node")
        cluster.start_master(driver)
        secret = str(cluster.secret("node"))
        # The machines of a real cluster share no state folder.
        environ = {"ASYNCPARL_STATE": str(folder / "node-state")}
        cluster.start_node("node", "--cpus", "4", "--secret-file", secret, host=node, environ=environ)
        yield Site(cluster, driver, node, folder / "node-state" / "code", folder)


@pytest.fixture
def project(site: Site) -> Iterator[Path]:
    """A folder with the program, and the one that it is started in; the node does not have it yet."""
    folder = site.folder / "program"
    for name, text in FILES.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(textwrap.dedent(text))
    (folder / "cwd" / "big").write_bytes(os.urandom(BIG_FILE_BYTES))
    yield folder
    shutil.rmtree(folder)
    for path in site.store.iterdir():
        shutil.rmtree(path)


def run_program(site: Site, project: Path, ending: str = "guarded") -> dict[str, Any]:
    script = project / "project" / "program.py"
    script.write_text(textwrap.dedent(PROGRAM) + ENDINGS[ending])
    command = [sys.executable, str(script), site.cluster.address, str(site.cluster.secret("driver"))]
    done = site.cluster.run(command, site.driver, cwd=project / "cwd")
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)  # type: ignore[no-any-return]


@pytest.mark.parametrize("ending", list(ENDINGS))
def test_actors_on_another_host_have_the_code_and_the_files_of_their_program(
    site: Site, project: Path, ending: str
) -> None:
    seen = run_program(site, project, ending)
    assert seen["network"] == network_of(site.node)
    assert seen["values"] == ["sibling", "engine", "late", "Thing"]
    assert seen["config"] == "rate: 1\n"
    assert seen["folder"] == ["big", "configs"]
    assert seen["same class"] is True
    assert seen["answers"] == [42, 43]
    # Not those of the program itself, which are on the same disk here.
    assert all(Path(path).is_relative_to(site.store) for path in seen["sources"])


def test_only_code_and_what_is_asked_for_is_sent(site: Site, project: Path) -> None:
    run_program(site, project)
    (package,) = site.store.iterdir()
    sent = {str(path.relative_to(package)) for path in package.rglob("*") if path.is_file()}
    assert {path for path in sent if "__pycache__" not in path} == {
        "code/0/program.py",
        "code/0/sibling.py",
        "code/0/late.py",
        "code/0/sims/__init__.py",
        "code/0/sims/inner/__init__.py",
        "code/0/sims/inner/engine.py",
        "files/big",
        "files/configs/deep/one.yaml",
    }


def test_what_a_node_has_is_not_sent_again(site: Site, project: Path) -> None:
    start = received_bytes(site.node)
    run_program(site, project)
    sent_first = received_bytes(site.node) - start
    run_program(site, project)
    sent_again = received_bytes(site.node) - start - sent_first
    assert sent_first > BIG_FILE_BYTES
    assert sent_again < BIG_FILE_BYTES / 10
    assert len(list(site.store.iterdir())) == 1


def test_changed_code_is_sent(site: Site, project: Path) -> None:
    run_program(site, project)
    (project / "project" / "late.py").write_text("VALUE = 'changed'\n")
    assert "changed" in run_program(site, project)["values"]


def test_a_glob_that_matches_nothing_is_told_to_whoever_makes_the_actor(site: Site, project: Path) -> None:
    shutil.rmtree(project / "cwd" / "configs")
    script = project / "project" / "program.py"
    script.write_text(textwrap.dedent(PROGRAM) + ENDINGS["guarded"])
    command = [sys.executable, str(script), site.cluster.address, str(site.cluster.secret("driver"))]
    done = site.cluster.run(command, site.driver, cwd=project / "cwd")
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith("ValueError: the glob 'configs/**/*.yaml' of extra files matches no")


def network_of(host: Host) -> str:
    return host.run(["readlink", "/proc/self/ns/net"], check=True).stdout.strip()


def received_bytes(host: Host) -> int:
    """By the network device of a host."""
    lines = host.run(["cat", "/proc/net/dev"], check=True, timeout=PATIENCE_S).stdout.splitlines()
    return next(int(line.split()[1]) for line in lines if line.strip().startswith("eth0"))
