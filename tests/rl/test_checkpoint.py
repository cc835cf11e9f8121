"""What becomes of a checkpoint for which there is no room."""

from __future__ import annotations

import os
import resource
from pathlib import Path

import pytest
import torch

from asyncparl.rl.checkpoint import read_checkpoint, write_checkpoint


@pytest.mark.parametrize("room", [0, 500, 20_000])
def test_a_checkpoint_for_which_there_is_no_room_is_a_system_error_with_its_path(tmp_path: Path, room: int) -> None:
    path = tmp_path / "state.pt"
    write_checkpoint(path, {"weights": torch.arange(3)})
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (room, before[1]))
    try:
        with pytest.raises(OSError, match="File too large") as caught:
            write_checkpoint(path, {"weights": torch.zeros(10_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
    assert caught.value.filename == str(path)
    assert os.listdir(tmp_path) == ["state.pt"]
    assert read_checkpoint(path)["weights"].tolist() == [0, 1, 2]
