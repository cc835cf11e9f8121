"""The scripts in examples/ run, in a small setting."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LIMIT_S = 150

SMALL = "--env pong --num-actors 2 --seed 3 --steps 160"
SCRIPTS = {
    "own_model.py": ("--env CartPole-v1 --num-actors 1 --steps 640", "after 640 steps"),
    "own_environment.py": ("--algorithm a2c --num-actors 1 --steps 640", "after 640 steps"),
    "hello.py": ("", "counted [0, 1, 2]"),
    "impala_atari.py": (f"{SMALL} --envs-per-actor 2 --unroll-length 5 --batch-columns 4", "in 8 updates"),
    "a2c_atari.py": (f"{SMALL} --envs-per-actor 2 --unroll-length 5", "in 8 updates"),
    "ga3c_atari.py": (f"{SMALL} --envs-per-group 2 --unroll-length 5 --batch-columns 4", "in 8 updates"),
}


def test_every_example_is_run_here() -> None:
    assert {path.name for path in ROOT.joinpath("examples").glob("*.py")} == SCRIPTS.keys()


@pytest.mark.slow
@pytest.mark.parametrize("script", SCRIPTS)
def test_an_example_runs_to_its_end(script: str, tmp_path: Path) -> None:
    arguments, last_words = SCRIPTS[script]
    done = subprocess.run(
        [sys.executable, str(ROOT / "examples" / script), *arguments.split()],
        check=False,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=LIMIT_S,
    )
    assert done.returncode == 0, done.stdout
    assert last_words in done.stdout
