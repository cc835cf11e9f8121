"""Environments and models of users: what is wrong with one is said in one line, with what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
import trio
from gymnasium import spaces

import asyncparl
from asyncparl.rl import MLP
from asyncparl.training import ConfigError, Trainer, TrainingConfig, WrongEnvironmentError
from asyncparl.training.build import Interface, find_interface
from asyncparl.training.check_model import check_model
from asyncparl.training.environments import EnvironmentOptions, make_environment

ROOT = Path(__file__).parents[2]
LIMIT_S = 100


class Odd(gymnasium.Env[Any, Any]):
    """An environment that is wrong in the way that it is told."""

    def __init__(self, fault: str = "") -> None:
        observed: dict[str, spaces.Space[Any]] = {
            "dict": spaces.Dict({"a": spaces.Discrete(2)}), "text": spaces.Text(5), "one of six": spaces.Discrete(6),
        }  # fmt: skip
        acted: dict[str, spaces.Space[Any]] = {
            "continuous": spaces.Box(-1, 1, (2,), np.float32), "several": spaces.MultiDiscrete([2, 3]),
        }  # fmt: skip
        pixels = spaces.Box(0, 255, (4,), np.uint8)
        self.observation_space = observed.get(fault, pixels)
        self.action_space = acted.get(fault, spaces.Discrete(2))
        self._fault = fault

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        shapes = {"wrong shape": (5,), "no shape": ()}
        obs = np.zeros(shapes.get(self._fault, (4,)), np.float32 if self._fault == "wrong type" else np.uint8)
        return obs if self._fault == "old reset" else (obs, {})

    def step(self, action: Any) -> Any:
        obs = np.zeros(1 if self._fault == "later shape" else 4, np.uint8)
        reward = {"no reward": None, "rewards": np.zeros(2), "nan reward": np.nan}.get(self._fault, 0.0)
        if self._fault == "old step":
            return obs, reward, False, {}
        return obs, reward, False, False, {}


gymnasium.register("Odd-v0", entry_point=Odd, disable_env_checker=True, order_enforce=False)


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        (
            "dict",
            "'Odd-v0' observes Dict(.*); only arrays .* are supported: register it with a wrapper such",
        ),
        ("text", "'Odd-v0' observes Text(.*); only arrays"),
        ("one of six", r"'Odd-v0' observes Discrete\(6\); only arrays .*FlattenObservation"),
        (
            "continuous",
            r"'Odd-v0' acts in Box\(.*\); only Discrete actions are supported: register it with a gym",
        ),
        ("several", r"'Odd-v0' acts in MultiDiscrete\(\[2 3\]\); only Discrete actions are supported: register"),
        (
            "wrong shape",
            r"Odd-v0: observation_space is uint8\[4\], but what it gives is uint8\[5\]: correct one of",
        ),
        ("no shape", r"Odd-v0: observation_space is uint8\[4\], but what it gives is uint8\[\]"),
        ("wrong type", r"Odd-v0: observation_space is uint8\[4\], but what it gives is float32\[4\]"),
        ("old reset", r"Odd-v0: reset\(\) must give \(obs, info\), not ndarray; that of the old gym gave obs alone"),
    ],
)
def test_a_wrong_environment_is_one_clear_line_before_anything_starts(fault: str, line: str) -> None:
    config = TrainingConfig(env="Odd-v0", env_options=EnvironmentOptions(arguments={"fault": fault}))
    with pytest.raises(ConfigError, match=f"^{line}") as caught:
        find_interface(config)
    assert "\n" not in str(caught.value)


def test_arguments_that_the_environment_does_not_take_are_one_clear_line() -> None:
    config = TrainingConfig(env="Odd-v0", env_options=EnvironmentOptions(arguments={"size": 5}))
    with pytest.raises(ConfigError, match=r"^'Odd-v0' cannot be made with \{'size': 5\}: .*unexpected keyword"):
        find_interface(config)


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("later shape", r"Odd-v0: observation_space is uint8\[4\], but what it gives is uint8\[1\]"),
        ("no reward", r"Odd-v0: step\(\) must give a number as reward and two booleans, not reward None"),
        ("nan reward", r"Odd-v0: step\(\) gave the reward nan: nothing can be learned from that"),
        ("rewards", r"Odd-v0: step\(\) must give a number as reward and two booleans, not reward array\(\[0., 0.\]\)"),
        ("old step", r"Odd-v0: step\(\) must give \(obs, reward, terminated, truncated, info\), not 4 values"),
    ],
)
def test_what_an_environment_does_wrong_in_a_step_is_one_clear_line(fault: str, line: str) -> None:
    environment = make_environment("Odd-v0", num_envs=2, options=EnvironmentOptions(arguments={"fault": fault}))
    environment.reset()
    with pytest.raises(WrongEnvironmentError, match=f"^{line}"):
        environment.step(np.zeros(2, np.int64))


# --- models


class Given(asyncparl.Model):
    """Gives what it is told."""

    def __init__(self, given: Any, fails: bool = False) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 2)
        self.given = given
        self.fails = fails

    def forward(self, obs: torch.Tensor) -> Any:
        return self.layer(obs) if self.fails else self.given


class Empty(asyncparl.Model):
    pass


_LOGITS, _VALUES = torch.zeros(3, 2), torch.zeros(3)
_WANTED = r"forward must give \(logits \[N, 2\], values \[N\]\)"


@pytest.mark.parametrize(
    ("model", "line"),
    [
        (Given(None), f"model Given: {_WANTED}, two tensors, not NoneType"),
        (Given(_LOGITS), f"model Given: {_WANTED}, two tensors, not Tensor"),
        (Given((_LOGITS, 1.0)), f"model Given: {_WANTED}, two tensors, not tuple of Tensor, float"),
        (
            Given((torch.zeros(3, 5), _VALUES)),
            rf"model Given: {_WANTED}; for N = 3 its logits are \[3, 5\]: the last",
        ),
        (Given((_LOGITS, torch.zeros(3, 1))), rf"model Given: {_WANTED}; for .* values are \[3, 1\]: squeeze them"),
        (Given((_LOGITS, torch.zeros(()))), rf"model Given: {_WANTED}; for .* values are \[\]"),
        (Given((_LOGITS.long(), _VALUES)), r"model Given: its logits must be floating-point numbers, not torch.int64"),
        (
            Given(None, fails=True),
            r"model Given: forward fails for observations uint8\[3, 4\]: RuntimeError: .* \(test",
        ),
        (Empty(), r"model Empty has no parameters: there is nothing to learn"),
    ],
)
def test_a_wrong_model_is_one_clear_line(model: asyncparl.Model, line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{line}") as caught:
        check_model(model, Interface((4,), np.dtype(np.uint8), 2))
    assert "\n" not in str(caught.value)


class Normalising(MLP):
    """Has numbers that a call in training mode changes, and draws then."""

    def __init__(self, obs_size: int, num_actions: int) -> None:
        super().__init__(obs_size, num_actions)
        self.first = torch.nn.Sequential(torch.nn.BatchNorm1d(obs_size), torch.nn.Dropout(0.5))

    def forward(self, obs: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return super().forward(self.first(obs))


def test_checking_a_model_changes_nothing() -> None:
    model = Normalising(4, 2)
    before = model.get_weights()
    state = torch.get_rng_state()
    check_model(model, Interface((4,), np.dtype(np.float32), 2))
    assert model.training
    assert torch.equal(torch.get_rng_state(), state)
    assert all((before[name] == each).all() for name, each in model.get_weights().items())


def test_a_wrong_model_is_found_before_anything_starts(tmp_path: Path) -> None:
    config = TrainingConfig(env="CartPole-v1", model="tests.training.test_own_environment:TooManyActions")
    with pytest.raises(ConfigError, match=r"^model TooManyActions: .* needs 2 outputs, one for each action$"):
        Trainer(config, run_dir=tmp_path / "run")
    assert not (tmp_path / "run").exists()


class TooManyActions(MLP):
    def __init__(self, obs_shape: Any, num_actions: int) -> None:
        super().__init__(obs_shape[0], num_actions + 1)


# --- what a script leaves can be used


@pytest.mark.slow
def test_a_run_that_a_script_has_made_can_be_evaluated(tmp_path: Path) -> None:
    """The model was a class of the script, and so was the environment."""
    for name in ("own_environment.py",):
        (tmp_path / name).write_bytes((ROOT / "examples" / name).read_bytes())
    environment = os.environ | {"PYTHONPATH": str(ROOT)}

    def run(*arguments: str) -> str:
        done = subprocess.run(
            [sys.executable, *arguments], check=False, cwd=tmp_path, env=environment, text=True, timeout=LIMIT_S,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout
        return done.stdout

    run("own_environment.py", "--num-actors", "1", "--steps", "640", "--run-dir", "run")
    output = run("-m", "asyncparl.cli", "evaluate", "run", "--episodes", "4", "--video", "run/forager.gif")
    assert "impala on own_environment:Forager-v0, run run" in output
    assert "run/forager.gif: an episode of" in output
    assert (tmp_path / "run" / "forager.gif").read_bytes().startswith(b"GIF8")


@pytest.mark.slow
def test_an_environment_that_goes_wrong_later_ends_the_run_with_its_one_line(tmp_path: Path) -> None:
    options = EnvironmentOptions(arguments={"fault": "old step"})
    config = TrainingConfig(
        env="tests.training.test_own_environment:Odd-v0", env_options=options, num_actors=1, envs_per_actor=2,
        batch_size=2,
    )  # fmt: skip

    async def run() -> None:
        with trio.fail_after(LIMIT_S):
            await Trainer(config, run_dir=tmp_path).run()

    with pytest.raises(WrongEnvironmentError, match=r"^Odd-v0: step\(\) must give"):
        trio.run(run)
