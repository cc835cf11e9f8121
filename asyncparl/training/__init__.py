"""From an environment's name to a trained agent: environments, sampling, batches, learner, run folders.

    result = await train(TrainingConfig.for_this_machine("pong", steps=1_000_000))

The names here are loaded when they are used: settings and `--help` need no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from asyncparl.training.config import TrainingConfig as TrainingConfig
    from asyncparl.training.errors import ConfigError as ConfigError
    from asyncparl.training.errors import RunFolderError as RunFolderError
    from asyncparl.training.errors import TrainingError as TrainingError
    from asyncparl.training.errors import WrongEnvironmentError as WrongEnvironmentError
    from asyncparl.training.trainer import Trainer as Trainer
    from asyncparl.training.trainer import TrainingResult as TrainingResult
    from asyncparl.training.trainer import train as train

_HOMES = {
    "ConfigError": "errors",
    "RunFolderError": "errors",
    "Trainer": "trainer",
    "TrainingConfig": "config",
    "TrainingError": "errors",
    "TrainingResult": "trainer",
    "WrongEnvironmentError": "errors",
    "train": "trainer",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
