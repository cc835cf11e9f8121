"""A run that is looked at from outside: its settings, and the weights that it has saved."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from asyncparl.training.build import ModelClass, find_interface, import_model, make_model
from asyncparl.training.checkpoint import BEST_NAME, Checkpoint, list_checkpoints, load_checkpoint, load_latest
from asyncparl.training.config import TrainingConfig
from asyncparl.training.errors import ConfigError, RunFolderError
from asyncparl.training.run_files import CHECKPOINT_FOLDER, read_config

BEST, LAST = "best", "last"


@dataclass(frozen=True, slots=True)
class TrainedRun:
    """What the folder of a run says."""

    path: Path
    config: TrainingConfig
    model_class: ModelClass | None

    @classmethod
    def open(cls, path: Path) -> TrainedRun:
        """Read the settings of a run; it may be under way.

        Raises:
            RunFolderError: there is no run in the folder.
            ConfigError: its environment or its model is not to be had here.
        """
        config = TrainingConfig.from_json(read_config(path))
        return cls(path, config, None if config.model is None else import_model(config.model))

    def checkpoint(self, which: str, *, warn: Callable[[str], None] = lambda _: None) -> Checkpoint:
        """The "best" or the "last" one, or that in the file of this name, here or in the folder of the run.

        Args:
            warn: told of newer checkpoints that cannot be read.

        Raises:
            RunFolderError: there is no such checkpoint. The error tells which ones the run has.
        """
        folder = self.path / CHECKPOINT_FOLDER
        if which == LAST:
            return load_latest(folder, warn=warn)
        if which == BEST and not (folder / BEST_NAME).exists():
            why = "it comes with the first evaluation, or after 100 episodes"
            raise RunFolderError(f"there is no {BEST_NAME} in {folder}: {why}; {self._what_there_is()}")
        for path in [folder / BEST_NAME] if which == BEST else [Path(which), folder / which]:
            if path.is_file():
                return load_checkpoint(path)
        raise RunFolderError(f"there is no checkpoint {which!r}, neither here nor in {folder}; {self._what_there_is()}")

    def _what_there_is(self) -> str:
        folder = self.path / CHECKPOINT_FOLDER
        files = [path.name for path in list_checkpoints(folder)] if folder.is_dir() else []
        names = ([BEST] if (folder / BEST_NAME).exists() else []) + ([LAST] if files else [])
        return f"the run has {', '.join(names + files)}" if names else "the run has none yet"

    def names(self) -> list[str]:
        """What `checkpoint` can be asked for: the best one, if there is one, and the last."""
        has_best = (self.path / CHECKPOINT_FOLDER / BEST_NAME).exists()
        return [BEST, LAST] if has_best else [LAST]

    def check_fit(self, checkpoint: Checkpoint) -> None:
        """Raise ConfigError if the environment or the model is another one now than it was for the checkpoint."""
        model = make_model(find_interface(self.config), self.model_class, lstm=self.config.lstm)
        try:
            model.set_weights(checkpoint.model_weights())
        except ValueError as error:
            raise ConfigError(f"the checkpoint does not fit model and environment: {error}") from error
