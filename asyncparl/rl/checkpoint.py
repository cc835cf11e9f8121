"""Files that hold the state of an agent. Nothing in them is code: they are read with `weights_only=True`."""

from __future__ import annotations

import io
import os
import pickle
import random
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO, Any, BinaryIO, cast

import numpy as np
import torch

FORMAT_VERSION = 1


def write_checkpoint(path: str | os.PathLike[str], state: Mapping[str, Any]) -> None:
    """Write the state so that `path` holds either all of it or what it held before, whatever happens meanwhile.

    Missing folders are made.

    Raises:
        OSError: the folder cannot be written, or has no room; with the path.
    """
    target = Path(path)
    target.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            _save({"format_version": FORMAT_VERSION, **state}, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except OSError as error:
        os.unlink(temporary)
        raise OSError(error.errno, error.strerror, str(target)) from error
    except BaseException:
        os.unlink(temporary)
        raise


def _save(state: Mapping[str, Any], file: BinaryIO) -> None:
    """For what the file refuses torch has an error of its own, which does not say why."""
    refused: list[OSError] = []

    def write(data: bytes | memoryview) -> int:
        try:
            return file.write(data)
        except OSError as error:
            refused.append(error)
            raise

    try:
        torch.save(state, cast("IO[bytes]", _Writer(write)))
    except RuntimeError:
        if refused:
            raise refused[0] from None
        raise


class _Writer:
    """As much of a file as `torch.save` needs."""

    def __init__(self, write: Callable[[bytes | memoryview], int]) -> None:
        self.write = write

    def flush(self) -> None:
        """Its owner does that."""


def read_checkpoint(path: str | os.PathLike[str]) -> dict[str, Any]:
    """What `write_checkpoint` wrote, with all tensors on the CPU.

    Raises:
        FileNotFoundError: there is no such file.
        ValueError: the file is not a whole checkpoint, or is of a newer format.
    """
    if not Path(path).is_file():
        raise FileNotFoundError(f"no checkpoint at {os.fspath(path)}")
    content = io.BytesIO(Path(path).read_bytes())  # so that an OSError below is about the content, not about reading
    try:
        state = torch.load(content, map_location="cpu", weights_only=True)
    except (RuntimeError, EOFError, OSError, ValueError, pickle.UnpicklingError) as error:
        raise ValueError(f"{os.fspath(path)} is not an asyncparl checkpoint") from error
    if not isinstance(state, dict) or "format_version" not in state:
        raise ValueError(f"{os.fspath(path)} is not an asyncparl checkpoint")
    if state["format_version"] != FORMAT_VERSION:
        raise ValueError(f"{os.fspath(path)} has format {state['format_version']}, expected {FORMAT_VERSION}")
    return state


def get_random_state() -> dict[str, Any]:
    """The state of the global generators of torch, numpy and Python, made of tensors and plain values."""
    numpy_state: Any = np.random.get_state(legacy=True)  # noqa: NPY002 - users' code may draw from it
    kind, keys, position, has_gauss, cached_gaussian = numpy_state
    return {
        "torch": torch.get_rng_state(),
        "cuda": torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
        "numpy": (kind, torch.from_numpy(keys.astype(np.int64)), position, has_gauss, cached_gaussian),
        "python": random.getstate(),
    }


def set_random_state(state: Mapping[str, Any]) -> None:
    """Continue every generator from a state of `get_random_state`; those of GPUs only if their number is the same."""
    torch.set_rng_state(state["torch"])
    if state["cuda"] and len(state["cuda"]) == torch.cuda.device_count():
        torch.cuda.set_rng_state_all(state["cuda"])
    kind, keys, position, has_gauss, cached_gaussian = state["numpy"]
    np.random.set_state((kind, keys.numpy().astype(np.uint32), position, has_gauss, cached_gaussian))  # noqa: NPY002
    random.setstate(state["python"])
