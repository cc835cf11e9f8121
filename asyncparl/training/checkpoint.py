"""Checkpoints of a run: everything that it needs to go on, in one file that is there as a whole or not at all.

checkpoints/checkpoint-000000001280.pt      numbered by agent steps; the two newest are kept
checkpoints/best.pt                         the one that played best so far; its score is in it
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from numpy.typing import NDArray

from asyncparl.rl.checkpoint import read_checkpoint, write_checkpoint
from asyncparl.training.errors import RunFolderError, first_line

NUM_KEPT = 2
BEST_NAME = "best.pt"
_NAME = re.compile(r"checkpoint-(\d+)\.pt")


@dataclass(frozen=True, slots=True)
class Counters:
    """How far a run has come."""

    agent_steps: int = 0
    updates: int = 0
    episodes: int = 0
    elapsed_s: float = 0.0
    environments_started: int = 0  # so that a resumed run seeds none like an earlier one


@dataclass(frozen=True, slots=True)
class Score:
    """Why a checkpoint is the best. Scores of different kinds are not compared."""

    mean_return: float
    kind: str  # "training": of the last 100 episodes there; "evaluation": of episodes apart from training


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """The contents of one file."""

    counters: Counters
    algorithm: dict[str, Any]
    random_state: dict[str, Any]
    score: Score | None = None  # of the best one only

    def model_weights(self) -> dict[str, NDArray[Any]]:
        """A copy of the model's weights, by name."""
        return {name: tensor.cpu().numpy().copy() for name, tensor in self.algorithm["model"].items()}


def save_checkpoint(checkpoint: Checkpoint, folder: Path) -> Path:
    """Write a checkpoint, then remove all but the newest two. Blocks: call it from a thread.

    Raises:
        OSError: no space, or the folder is gone. Earlier checkpoints are still there then.
    """
    path = folder / f"checkpoint-{checkpoint.counters.agent_steps:012d}.pt"
    _write(checkpoint, path)
    for old in list_checkpoints(folder)[:-NUM_KEPT]:
        old.unlink(missing_ok=True)
    return path


def save_best(checkpoint: Checkpoint, score: Score, folder: Path) -> Path:
    """Put a checkpoint, with its score, in the place of the best one. Blocks: call it from a thread.

    Raises:
        OSError: no space, or the folder is gone. The best one so far is still there then.
    """
    path = folder / BEST_NAME
    _write(dataclasses.replace(checkpoint, score=score), path)
    return path


def _write(checkpoint: Checkpoint, path: Path) -> None:
    contents = {
        "counters": dataclasses.asdict(checkpoint.counters),
        "algorithm": to_cpu(checkpoint.algorithm),
        "random_state": checkpoint.random_state,
    }
    if checkpoint.score is not None:
        contents["score"] = dataclasses.asdict(checkpoint.score)
    write_checkpoint(path, contents)


def list_checkpoints(folder: Path) -> list[Path]:
    """The checkpoints in a folder, oldest first."""
    numbered = [(int(match[1]), path) for path in folder.iterdir() if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(numbered)]


def has_checkpoint(folder: Path) -> bool:
    """Whether there is any, which can be read or not: the best one counts too."""
    return (folder / BEST_NAME).exists() or bool(list_checkpoints(folder))


def load_latest(folder: Path, *, warn: Callable[[str], None], or_best: bool = False) -> Checkpoint:
    """The newest checkpoint that can be read.

    Args:
        warn: told, in one line each, which ones could not, and that it is the best one.
        or_best: the best one will do if there is no other: a run may end before its first checkpoint.

    Raises:
        RunFolderError: there is none.
    """
    paths = list_checkpoints(folder) if folder.is_dir() else []
    best = folder / BEST_NAME
    if or_best and best.exists():
        paths.insert(0, best)
    if not paths:
        raise RunFolderError(f"there is no checkpoint in {folder} yet")
    for path in reversed(paths):
        try:
            checkpoint = load_checkpoint(path)
        except RunFolderError as error:
            warn(str(error))
        else:
            if path == best:
                warn(f"there is no other checkpoint, so the best one, of step {checkpoint.counters.agent_steps:,}")
            return checkpoint
    raise RunFolderError(f"no checkpoint in {folder} can be read")


def load_checkpoint(path: Path) -> Checkpoint:
    """Read one file.

    Raises:
        RunFolderError: it is missing, damaged, or of another version.
    """
    try:
        contents = read_checkpoint(path)
        score = Score(**contents["score"]) if "score" in contents else None
        return Checkpoint(Counters(**contents["counters"]), contents["algorithm"], contents["random_state"], score)
    except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
        raise RunFolderError(f"checkpoint {path} cannot be read: {first_line(error)}") from error


def to_cpu(state: Any) -> Any:
    """A state dict with its tensors on the CPU, so that a machine without the device can read it."""
    if isinstance(state, torch.Tensor):
        return state.cpu()
    if isinstance(state, dict):
        return {key: to_cpu(item) for key, item in state.items()}
    if isinstance(state, list):
        return [to_cpu(item) for item in state]
    return state
