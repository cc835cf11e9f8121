"""`--config`: settings from a file or from another run; what is given on the command line wins."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest

from asyncparl.cli import commands
from asyncparl.training import TrainingConfig
from asyncparl.training.environments import EnvironmentOptions


class Started(Exception):
    """Instead of a run."""


def _config(arguments: str, monkeypatch: pytest.MonkeyPatch) -> TrainingConfig:
    """The settings that a run of the command would have."""
    configs: list[TrainingConfig] = []

    def start(config: TrainingConfig, **_: Any) -> None:
        configs.append(config)
        raise Started

    monkeypatch.setattr("asyncparl.training.trainer.Trainer", start)
    with pytest.raises(Started):
        commands.main(["train", *arguments.split()], standalone_mode=False)
    return configs[0]


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def _save(config: TrainingConfig, run: str) -> None:
    Path(run).mkdir()
    Path(run, "config.json").write_text(json.dumps(config.to_json()))


def test_settings_come_from_the_file_and_options_win(monkeypatch: pytest.MonkeyPatch) -> None:
    Path("run.toml").write_text(
        """
        env = "pong"
        preset = "parl"
        protocol = "machado2018"
        steps = 5_000
        max_grad_norm = inf
        env_options = { screen_size = [42, 42], noop_max = 3 }
        """
    )
    arguments = "impala --config run.toml --steps 6000 --env-option noop_max=4 --device cpu"
    config = _config(arguments, monkeypatch)
    assert (config.env, config.steps, config.max_grad_norm) == ("pong", 6000, float("inf"))
    assert (config.optimizer, config.unroll_length) == ("adam", 50)  # of the preset
    assert config.env_options == EnvironmentOptions.for_protocol("machado2018", screen_size=(42, 42), noop_max=4)


@pytest.mark.parametrize("run", ["run", "run/config.json"])
def test_another_run_is_repeated_with_its_settings(run: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = EnvironmentOptions(frame_skip=2, screen_size=(42, 42))
    before = TrainingConfig(env="pong", env_options=options, seed=3, optimizer="adam", max_grad_norm=float("inf"))
    _save(before, "run")
    assert _config(f"impala --config {run}", monkeypatch) == before
    assert _config(f"impala --config {run} --seed 4", monkeypatch) == before.replace(seed=4)


def test_what_follows_from_other_settings_follows_from_the_new_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    _save(TrainingConfig(env="CartPole-v1", algorithm="a2c", num_actors=2, envs_per_actor=4, rms_epsilon=0.1), "run")
    config = _config("a2c --config run --actors 3 --optimizer adam", monkeypatch)
    assert (config.num_actors, config.batch_size, config.optimizer) == (3, 12, "adam")


def test_each_setting_of_a_run_can_be_read_back(monkeypatch: pytest.MonkeyPatch) -> None:
    before = TrainingConfig.for_this_machine(
        "CartPole-v1", algorithm="ga3c", preset="paper", device="cpu", evaluate_every=100, final_entropy_cost=0.0
    )
    _save(before, "run")
    after = _config("ga3c --config run", monkeypatch)
    assert after == before


def test_every_option_of_the_command_line_is_a_setting() -> None:
    module = importlib.import_module("asyncparl.cli.train")
    assert {setting.name for setting in module._SETTINGS} <= TrainingConfig.__dataclass_fields__.keys()
