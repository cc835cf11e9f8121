"""The best checkpoint of a run: kept beside the last ones, whatever becomes of the policy later."""

from __future__ import annotations

from collections.abc import Callable

import trio

from asyncparl.training.checkpoint import BEST_NAME, Checkpoint, Score, load_checkpoint
from asyncparl.training.errors import RunFolderError
from asyncparl.training.run_folder import RunFolder


class BestCheckpoint:
    """Keeps checkpoints/best.pt the one with the highest score.

    Args:
        folder: of the run; what it has from earlier in the run counts, if its score is of the same kind.
        kind: of the scores; see `Score`.
        say: told when a file cannot be read or written.
    """

    def __init__(self, folder: RunFolder, kind: str, *, say: Callable[[str], None]) -> None:
        self._folder = folder
        self._kind = kind
        self._say = say
        self.path = folder.checkpoints / BEST_NAME
        self.score = self._earlier_score()

    def _earlier_score(self) -> Score | None:
        if not self.path.exists():
            return None
        try:
            score = load_checkpoint(self.path).score
        except RunFolderError as error:
            self._say(str(error))
            return None
        return score if score is not None and score.kind == self._kind else None

    def is_beaten_by(self, mean_return: float) -> bool:
        """Whether a policy with such returns is better than all before it."""
        return self.score is None or mean_return > self.score.mean_return

    async def offer(self, checkpoint: Checkpoint, mean_return: float) -> None:
        """Put it in the place of the best one, if it is better.

        That the disk is full is said, and is no error: it may have room later.

        Raises:
            RunFolderError: the folder has gone.
        """
        if not self.is_beaten_by(mean_return):
            return
        score = Score(mean_return, self._kind)
        try:
            await trio.to_thread.run_sync(self._folder.save_best, checkpoint, score)
        except OSError as error:
            self._say(f"the best checkpoint could not be written: {error}")
        else:
            self.score = score
