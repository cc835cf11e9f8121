"""The folders of nodes: what killed nodes left is swept, and nothing else, however many start at once."""

from __future__ import annotations

import os
import tempfile
import threading
from pathlib import Path

import pytest

from asyncparl.runtime import node_folder as folders


@pytest.fixture(autouse=True)
def folder_of_this_test(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(folders, "folder_for_sockets", lambda: str(tmp_path))  # however long it is


def test_a_node_that_starts_does_not_sweep_another_that_starts() -> None:
    done = threading.Event()

    def sweep_on_and_on() -> None:
        while not done.is_set():
            [folders.sweep(folder) for folder in Path(tempfile.gettempdir()).iterdir()]

    sweepers = [threading.Thread(target=sweep_on_and_on) for _ in range(2)]
    for sweeper in sweepers:
        sweeper.start()
    try:
        for _ in range(200):
            with folders.node_folder() as folder:
                assert os.path.isdir(folder)
    finally:
        done.set()
        for sweeper in sweepers:
            sweeper.join()


def test_what_a_killed_node_left_is_swept_by_the_next_one(tmp_path: Path) -> None:
    with folders.node_folder() as living:
        left = tmp_path / f"{folders.FOLDER_PREFIX}killed"
        left.mkdir()
        (left / folders.LOCK).touch()
        with folders.node_folder():
            assert not left.exists()
            assert os.path.isdir(living)
    assert not list(tmp_path.iterdir())
