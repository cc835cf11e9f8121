"""`--config`: settings from a file or from another run; what is given on the command line wins."""

from __future__ import annotations

import importlib
import json
from pathlib import Path
from typing import Any

import pytest
from click import ClickException

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


@pytest.mark.parametrize("given", ["--env-option frame_skip=4", "--config slip.toml", "--config slip.toml --env pong"])
def test_an_option_of_other_environments_is_refused_wherever_it_stands_and_whatever_its_value(given: str) -> None:
    name = "max_episode_steps" if given.endswith("pong") else "frame_skip"  # 4 is the default of the latter
    Path("slip.toml").write_text(f"env = 'CartPole-v1'\nenv_options = {{ {name} = 4 }}")
    env = "" if "--config" in given else "--env CartPole-v1"
    with pytest.raises(ClickException, match=rf"^option {name} is only for .*, which '(CartPole-v1|pong)' is not$"):
        commands.main(["train", "impala", *given.split(), *env.split()], standalone_mode=False)


def test_options_that_a_run_has_by_default_are_none_of_a_choice(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its config.json has all of them, also those of other environments."""
    before = TrainingConfig(env="CartPole-v1", env_options=EnvironmentOptions(max_episode_steps=100))
    _save(before, "run")
    assert _config("impala --config run", monkeypatch) == before
    assert _config("impala --config run --env-option clip_rewards=true", monkeypatch).env_options == EnvironmentOptions(
        max_episode_steps=100, clip_rewards=True
    )


def test_a_protocol_on_the_command_line_wins_over_the_options_of_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    _save(TrainingConfig(env="pong", env_options=EnvironmentOptions(noop_max=7, frame_skip=2)), "run")
    config = _config("impala --config run --protocol machado2018", monkeypatch)
    assert config.env_options == EnvironmentOptions.for_protocol("machado2018", frame_skip=2)


def test_a_preset_beside_the_settings_of_a_run_is_refused() -> None:
    _save(TrainingConfig(env="CartPole-v1"), "run")
    with pytest.raises(ClickException, match=r"^--preset is for what nobody says, and the settings of a run say every"):
        commands.main(["train", "impala", "--config", "run", "--preset", "paper"], standalone_mode=False)


def test_evaluations_and_the_cluster_of_another_run_can_be_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    before = TrainingConfig(env="CartPole-v1", cluster="alpha:8010", evaluate_every=100)
    _save(before, "run")
    config = _config("impala --config run --cluster none --evaluate-every 0", monkeypatch)
    assert config == before.replace(cluster=None, evaluate_every=None)


def test_options_of_a_resumed_run_that_are_not_given_stay(monkeypatch: pytest.MonkeyPatch) -> None:
    resumed: list[dict[str, Any]] = []

    def resume(run_dir: Path, *, changes: dict[str, Any], **_: Any) -> None:
        resumed.append(changes)
        raise Started

    monkeypatch.setattr("asyncparl.training.trainer.Trainer.resume", resume)
    options = EnvironmentOptions(frame_skip=2, screen_size=(42, 42))
    _save(TrainingConfig(env="pong", env_options=options, cluster="alpha:8010", evaluate_every=5), "run")
    given = "--compress-rollouts --cluster none --evaluate-every 0 --env-option num_threads=2"
    with pytest.raises(Started):
        commands.main(["train", "impala", "--resume", "run", *given.split()], standalone_mode=False)
    with pytest.raises(ClickException, match=r"^option max_episode_steps is only for gymnasium environments"):
        commands.main(
            ["train", "impala", "--resume", "run", "--env-option", "max_episode_steps=5"], standalone_mode=False
        )
    assert resumed == [
        {
            "algorithm": "impala", "compress_rollouts": True, "cluster": None, "evaluate_every": None,
            "env_options": EnvironmentOptions(frame_skip=2, screen_size=(42, 42), num_threads=2),
        }
    ]  # fmt: skip


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
