"""What the files of a run folder are called, and its settings. Imports nothing heavy; see `run_folder.py`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from asyncparl.training.errors import RunFolderError

CONFIG_FILE = "config.json"
PROGRESS_FILE = "progress.csv"
EVALUATIONS_FILE = "evaluations.csv"
STEP_COLUMN = "agent_steps"
CHECKPOINT_FOLDER = "checkpoints"


def read_config(path: Path) -> dict[str, Any]:
    """What config.json in a run folder says.

    Raises:
        RunFolderError: there is none, or it is not readable as such.
    """
    check_holds_run(path)
    try:
        config = json.loads((path / CONFIG_FILE).read_text())
    except (OSError, ValueError) as error:
        raise RunFolderError(f"{path / CONFIG_FILE} cannot be read: {error}") from error
    if not isinstance(config, dict):
        raise RunFolderError(f"{path / CONFIG_FILE} cannot be read: it holds no object")
    return config


def check_holds_run(path: Path) -> None:
    """Raise RunFolderError unless the folder is that of a run."""
    if not (path / CONFIG_FILE).is_file():
        raise RunFolderError(f"{path} is no run folder: there is no {CONFIG_FILE} in it")
