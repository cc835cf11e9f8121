"""`--config FILE`: the settings of a run from a file of one's own, or from another run."""

from __future__ import annotations

import difflib
import json
import math
import tomllib
from collections.abc import Mapping
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from asyncparl.training.config import TrainingConfig
from asyncparl.training.errors import ConfigError
from asyncparl.training.presets import DEFAULTS, AlgorithmName
from asyncparl.training.protocols import PROTOCOLS
from asyncparl.training.run_files import CONFIG_FILE

_MORE = ("preset", "protocol")


def is_of_run(path: Path) -> bool:
    """Whether it holds all settings of a run, and not those that somebody has chosen."""
    return path.is_dir() or path.suffix == ".json"


def read_config_file(path: Path, algorithm: AlgorithmName) -> dict[str, Any]:
    """What the file says, by names of settings; values are checked with all others, later.

    Args:
        path: TOML written by people; or the config.json of a run, or the folder of that run.
        algorithm: which is to be trained.

    Raises:
        ConfigError: it cannot be read, has a name that is no setting, or is for another algorithm.
    """
    path = path / CONFIG_FILE if path.is_dir() else path
    values = _read(path)
    if "max_grad_norm" in values and values["max_grad_norm"] is None:
        values["max_grad_norm"] = math.inf  # JSON has no infinity; what else is null is not given
    values = {name: value for name, value in values.items() if value is not None}
    _check_names(path, values)
    if values.pop("algorithm", algorithm) != algorithm:
        raise ConfigError(f"{path} is for another algorithm than {algorithm}: remove it there, or train that")
    options = values.get("env_options", {})
    if not isinstance(options, dict):
        raise ConfigError(f"{path}: env_options must be a table of names and values")
    if is_of_run(path) and options:
        values["env_options"] = chosen_options(options)
    return values


def chosen_options(options: Mapping[str, Any]) -> dict[str, Any]:
    """Of the environment options of a run, which are all there, those that are not as they would be anyway."""
    from asyncparl.training.environments import EnvironmentOptions

    default = json.loads(json.dumps(asdict(EnvironmentOptions())))  # tuples are lists in JSON
    return {name: value for name, value in options.items() if name not in default or value != default[name]}


def merge(from_file: Mapping[str, Any], given: Mapping[str, Any], algorithm: AlgorithmName) -> dict[str, Any]:
    """All settings; those that are given on the command line win.

    What follows from others does not come from a file, for they may have changed: the batch size of A2C, and the
    epsilon of an optimizer that has none.
    """
    merged = {**from_file, **given}
    if "protocol" in given and "env_options" in from_file:
        options = from_file["env_options"]
        merged["env_options"] = {name: options[name] for name in options if name not in PROTOCOLS[given["protocol"]]}
    if DEFAULTS[algorithm].is_synchronous and "batch_size" not in given:
        merged.pop("batch_size", None)
    if merged.get("optimizer") == "adam" and "rms_epsilon" not in given:
        merged.pop("rms_epsilon", None)
    return merged


def _read(path: Path) -> dict[str, Any]:
    try:
        text = path.read_text()
        values = json.loads(text) if path.suffix == ".json" else tomllib.loads(text)
    except OSError as error:
        raise ConfigError(f"config {path} cannot be read: {error.strerror or error}") from error
    except ValueError as error:  # of either kind of file, or it is no text
        raise ConfigError(f"config {path} is no {'JSON' if path.suffix == '.json' else 'TOML'}: {error}") from error
    if not isinstance(values, dict):
        raise ConfigError(f"config {path} holds no settings: it must be an object")
    return values


def _check_names(path: Path, values: Mapping[str, Any]) -> None:
    known = [*(each.name for each in fields(TrainingConfig)), *_MORE]
    for name in values:
        if name not in known:
            close = difflib.get_close_matches(name.replace("-", "_"), known, n=1, cutoff=0.5)
            hint = f"; did you mean {close[0]}?" if close else f"; there are {', '.join(sorted(known))}"
            raise ConfigError(f"{path}: no setting is called {name!r}{hint}")
