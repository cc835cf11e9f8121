"""How parts and peers are run, and what becomes of those that fail."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from asyncparl.bench import installing, running
from asyncparl.bench.installing import NoPeer, install, version
from asyncparl.bench.parts import PARTS, PEERS, Peer
from asyncparl.bench.processes import run_alone
from asyncparl.bench.report import Row
from asyncparl.bench.running import Benchmark, join, written
from tests.cluster.processes import until

GRANDCHILD = "import subprocess, sys; p = subprocess.Popen(['sleep', '600']); print(p.pid, flush=True); "


def test_what_a_program_wrote_is_returned() -> None:
    program = [sys.executable, "-c", "import os; print(os.environ['X'])"]
    assert run_alone(program, limit_s=60, environ={"X": "y"}) == "y\n"


def test_a_program_that_fails_leaves_its_last_words_and_no_process() -> None:
    with pytest.raises(subprocess.CalledProcessError) as caught:
        run_alone([sys.executable, "-c", GRANDCHILD + "sys.exit('out of luck')"], limit_s=60)
    pid, last_words = caught.value.output.splitlines()
    assert last_words == "out of luck"
    until(lambda: not is_running(int(pid)), within_s=10)


def is_running(pid: int) -> bool:
    try:
        return bool(psutil.Process(pid).status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False


def test_a_program_that_takes_too_long_is_ended() -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run_alone([sys.executable, "-c", GRANDCHILD + "p.wait()"], limit_s=1)


def test_samples_of_a_peer_are_put_beside_ours_by_name() -> None:
    rows = [Row("call", "us", [1.0]), Row("rate", "/s", [2.0])]
    records = [
        {"name": "call", "unit": "us", "samples": [3.0], "note": "by hand"},
        {"name": "rate", "unit": "GB/s", "samples": [4.0], "note": ""},
        {"name": "other", "unit": "us", "samples": [5.0], "note": ""},
    ]
    remarks = list(join(rows, "Ray", records))
    assert [row.peers for row in rows] == [{"Ray": [3.0]}, {}]
    assert remarks == [
        "Ray, call: by hand",
        "Ray, rate: in GB/s, not in /s",
        "Ray, other: asyncparl has no such figure here",
    ]


def test_a_line_that_was_being_written_when_the_program_ended_is_no_row(tmp_path: Path) -> None:
    path = tmp_path / "rows"
    assert written(path) == []
    path.write_text('{"name": "first"}\n{"name": "sec')
    assert written(path) == [{"name": "first"}]


def test_a_part_that_fails_does_not_end_the_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(running, "PARTS", dict.fromkeys(("no-such-part", "neither"), PARTS["footprint"]))
    said: list[str] = []
    benchmark = Benchmark(
        ["no-such-part", "neither"], with_peers=True, repeats=1, save_as=tmp_path / "bench", how="how", say=said.append
    )
    benchmark.run()
    assert benchmark.num_failed == 2
    assert (tmp_path / "bench.md").read_text().count("asyncparl did not finish: ") == 2
    assert any("invalid choice: 'neither'" in line for line in said)


def test_the_requirements_of_every_peer_pin_it_and_torch() -> None:
    for peer in PEERS.values():
        assert version(peer)
        lines = (installing.PEERS_FOLDER / peer.requirements).read_text().splitlines()
        assert all("==" in line for line in lines if not line.startswith("#")), peer
        assert not [line for line in lines if line.startswith("torch=") and line != "torch==2.13.0"], peer


@pytest.fixture
def peer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Peer:
    """One whose requirements are in the test's folder; there is no network."""
    monkeypatch.setattr(installing, "PEERS_FOLDER", tmp_path)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(tmp_path))
    return Peer("Somebody", "program", "somebody.txt", "somebody")


@pytest.mark.slow
def test_a_peer_is_installed_once_and_again_if_that_was_not_finished(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "somebody.txt").write_text("# nothing\n")
    environment = tmp_path / "cache" / "somebody"
    environment.mkdir(parents=True)
    (unfinished := environment / "unfinished").touch()
    python = install("somebody", peer, environment.parent)
    assert not unfinished.exists()
    assert run_alone([str(python), "-c", "import sys; print(sys.prefix)"], limit_s=60).strip() == str(environment)
    (mark := environment / "mark").touch()
    assert install("somebody", peer, environment.parent) == python
    assert mark.exists()


@pytest.mark.slow
def test_a_peer_that_cannot_be_installed_says_why(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "somebody.txt").write_text("not-to-be-had==1.0\n")
    with pytest.raises(NoPeer, match=r"cannot be installed here: No matching distribution found for not-to-be-had"):
        install("somebody", peer, tmp_path / "cache")
    assert not (tmp_path / "cache" / "somebody" / "requirements.txt").exists()


def test_a_folder_that_cannot_be_written_is_a_reason_too(peer: Peer, tmp_path: Path) -> None:
    (tmp_path / "somebody.txt").touch()
    (tmp_path / "file").touch()
    with pytest.raises(NoPeer, match=r"cannot be installed here: .*Not a directory"):
        install("somebody", peer, tmp_path / "file" / "cache")


def test_the_cache_is_where_others_keep_theirs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", os.fspath(Path("/somewhere")))
    assert installing.cache_folder() == Path("/somewhere/asyncparl/peers")
