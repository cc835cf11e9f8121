"""Environments and models of users: what is wrong with one is said in one line, with what to do about it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, ClassVar

import gymnasium
import numpy as np
import pytest
import torch
import trio
from gymnasium import spaces

import asyncparl
from asyncparl.rl import MLP
from asyncparl.training import ConfigError, Trainer, TrainingConfig, WrongEnvironmentError
from asyncparl.training.build import Interface, find_interface, make_model
from asyncparl.training.check_model import check_model
from asyncparl.training.environments import EnvironmentOptions, make_environment
from asyncparl.training.evaluation import EvaluationSetup
from asyncparl.training.video import check_filmed

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
        self._num_steps = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        shapes = {"wrong shape": (5,), "no shape": ()}
        obs: Any = np.zeros(shapes.get(self._fault, (4,)), np.float32 if self._fault == "wrong type" else np.uint8)
        obs = {"no array": None, "ragged": [[0, 0], [0]]}.get(self._fault, obs)
        return {"old reset": obs, "no reset": None, "more than reset": (obs, {}, {})}.get(self._fault, (obs, {}))

    def step(self, action: Any) -> Any:
        obs = np.zeros(1 if self._fault == "later shape" else 4, np.uint8)
        reward = {"no reward": None, "rewards": np.zeros(2), "nan reward": np.nan}.get(self._fault, 0.0)
        self._num_steps += 1
        if self._fault == "old step" or (self._fault == "later old step" and self._num_steps > 5):
            return obs, reward, False, {}
        later_obs: Any = {"later type": obs.astype(np.float32), "later array": None}.get(self._fault, obs)
        return None if self._fault == "no step" else (later_obs, reward, False, False, {})


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
        ("no reset", r"Odd-v0: reset\(\) must give \(obs, info\), not NoneType$"),
        ("more than reset", r"Odd-v0: reset\(\) must give \(obs, info\), not 3 values"),
        ("no array", r"Odd-v0: observation_space is uint8\[4\], but what it gives is of type NoneType: correct"),
        ("ragged", r"Odd-v0: observation_space is uint8\[4\], but what it gives is a list of parts with several len"),
        ("old step", r"Odd-v0: step\(\) must give \(obs, reward, terminated, truncated, info\), not 4 values; that of"),
        ("no step", r"Odd-v0: step\(\) must give \(obs, reward, terminated, truncated, info\), not NoneType$"),
        ("no reward", r"Odd-v0: step\(\) must give a number as reward"),
    ],
)
def test_a_wrong_environment_is_one_clear_line_before_anything_starts(fault: str, line: str) -> None:
    config = TrainingConfig(env="Odd-v0", env_options=EnvironmentOptions(arguments={"fault": fault}))
    with pytest.raises(ConfigError, match=f"^{line}") as caught:
        find_interface(config)
    assert "\n" not in str(caught.value)


class Sound(gymnasium.Env[Any, Any]):
    """As gymnasium wants it; what is below has one fault each."""

    observation_space: spaces.Space[Any] = spaces.Box(0, 1, (2,), np.float32)
    action_space: spaces.Space[Any] = spaces.Discrete(2)

    def __init__(self, render_mode: str | None = None) -> None:
        self.render_mode = render_mode

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return np.zeros(2, np.float32), {}

    def step(self, action: Any) -> Any:
        return np.ones(2, np.float32), 0.0, False, False, {}


class WithoutSeed(Sound):
    def reset(self) -> Any:  # type: ignore[override]
        return np.zeros(2, np.float32), {}


class WithoutOptions(Sound):
    def reset(self, seed: int | None = None) -> Any:  # type: ignore[override]
        return np.zeros(2, np.float32), {}


class WithoutAction(Sound):
    def step(self) -> Any:  # type: ignore[override]
        return super().step(0)


class WithOldReset(Sound):
    def reset(self, **_: Any) -> Any:
        return np.zeros(2, np.float32)


class WithOldStep(Sound):
    def step(self, action: Any) -> Any:
        return np.zeros(2, np.float32), 0.0, False, {}


class WithoutObservationSpace(gymnasium.Env[Any, Any]):
    action_space = spaces.Discrete(2)


class WithoutActionSpace(Sound):
    action_space = None  # type: ignore[assignment]


class WithForeignSpace(Sound):
    observation_space = (2,)  # type: ignore[assignment]


class OutOfBounds(Sound):
    def step(self, action: Any) -> Any:
        return np.array([0.5, 255.0], np.float32), 0.0, False, False, {}


class NotANumber(Sound):
    def reset(self, **_: Any) -> Any:
        return np.array([0.0, np.nan], np.float32), {}


class OutOfChoices(Sound):
    observation_space = spaces.MultiDiscrete([3, 3])

    def reset(self, **_: Any) -> Any:
        return np.array([0, 3]), {}


class FailingConstructor(Sound):
    def __init__(self) -> None:
        raise LookupError("no such maze")


class FailingReset(Sound):
    def reset(self, **_: Any) -> Any:
        raise LookupError("no such maze")


class FailingStep(Sound):
    def step(self, action: Any) -> Any:
        raise LookupError("the wall is too high")


class Sized(Sound):
    def __init__(self, size: int) -> None:
        pass


class NoEnvironment:
    pass


_STEP_GIVES = r"step\(\) must give \(obs, reward, terminated, truncated, info\), not 4 values; that of the old gym"
_RESET_TAKES = r"reset\(\) must take seed and options: def reset\(self, \*, seed=None, options=None\)$"
_NO_SPACE = "gymnasium expects one of its spaces, of the class or made in __init__: gymnasium.spaces."


@pytest.mark.parametrize("wrapper", [None, gymnasium.wrappers.FlattenObservation], ids=["plain", "wrapped"])
@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (WithoutSeed, rf"NAME: {_RESET_TAKES}"),
        (WithoutOptions, rf"NAME: {_RESET_TAKES}"),
        (WithoutAction, r"NAME: step\(\) must take an action: def step\(self, action\)$"),
        (WithOldReset, r"NAME: reset\(\) must give \(obs, info\), not ndarray; that of the old gym gave obs alone"),
        (WithOldStep, rf"NAME: {_STEP_GIVES}"),
        (NotANumber, r"NAME: reset\(\) gave an observation with nan in it: nothing can be learned from that"),
        (FailingReset, r"NAME: reset\(\) failed: LookupError: no such maze \(test_own_environment.py:\d+\)$"),
        (FailingStep, r"NAME: step\(\) failed: LookupError: the wall is too high \(test_own_environment.py:\d+\)$"),
    ],
)
def test_a_fault_is_told_as_it_is_whatever_is_wrapped_around_it(
    environment: type[Sound], wrapper: type[gymnasium.Wrapper[Any, Any, Any, Any]] | None, line: str, register: Register
) -> None:
    """Time limits and other wrappers trip over most faults with errors of their own."""
    name = register(environment if wrapper is None else lambda: wrapper(environment()), max_episode_steps=10)
    with pytest.raises(ConfigError, match=f"^{line.replace('NAME', name)}") as caught:
        find_interface(TrainingConfig(env=name))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (WithoutObservationSpace, rf"'NAME' has no observation_space: {_NO_SPACE}Box\(-1, 1, \(4,\), numpy.float32\)$"),
        (WithoutActionSpace, rf"'NAME' has no action_space: {_NO_SPACE}Discrete\(2\)$"),
        (WithForeignSpace, rf"'NAME' has builtins.tuple as observation_space: {_NO_SPACE}"),
        (OutOfChoices, r"NAME: reset\(\) gave .* not in its observation_space, .*: \[0, 3\]; correct one of"),
        (FailingConstructor, r"'NAME' cannot be made: LookupError: no such maze \(test_own_environment.py:\d+\)$"),
        (Sized, r"'NAME' cannot be made: TypeError: .* 'size'; --env-option 'arguments=\{\"NAME\": VALUE\}' gives"),
        (NoEnvironment, r"'NAME' cannot be made: TypeError: The environment must inherit from the gymnasium.Env class"),
        ("tests.training.test_own_environment:Nothing", r"'NAME' cannot be made: AttributeError: module .* 'Nothing'$"),
    ],
)
def test_an_environment_that_cannot_be_made_is_one_clear_line(environment: Any, line: str, register: Register) -> None:
    name = register(environment)
    with pytest.raises(ConfigError, match=f"^{line.replace('NAME', name, 1)}") as caught:
        find_interface(TrainingConfig(env=name))
    assert "\n" not in str(caught.value)


class Drawn(Sound):
    metadata: ClassVar = {"render_modes": ["rgb_array"]}

    def render(self) -> Any:
        return np.zeros((4, 6, 3), np.uint8)


class Counted(Drawn):
    """Notes which of its copies are open; has a fault, or the third copy cannot be made."""

    opened: ClassVar[list[int]] = []
    closed: ClassVar[list[int]] = []

    def __init__(self, fault: str, render_mode: str | None = None) -> None:
        if fault == "third copy" and len(self.opened) == 2:
            raise LookupError("no room")
        self.render_mode = render_mode
        if fault == "film" and render_mode is not None:
            raise LookupError("no canvas")
        if fault == "actions":
            self.action_space = spaces.Box(-1, 1, (2,), np.float32)
        self.opened.append(id(self))

    def close(self) -> None:
        self.closed.append(id(self))


@pytest.mark.parametrize(("fault", "num_opened"), [("third copy", 2), ("actions", 3), ("film", 3), ("option", 3)])
def test_no_copy_of_an_environment_stays_open_if_something_is_wrong(
    fault: str, num_opened: int, register: Register
) -> None:
    Counted.opened.clear()
    Counted.closed.clear()
    options = EnvironmentOptions(
        arguments={"fault": fault}, sticky_action_probability=0.25 if fault == "option" else 0.0
    )
    with pytest.raises(ValueError, match=r"no room|only Discrete|no canvas|sticky_action"):
        make_environment(register(Counted), num_envs=3, options=options, filmed=fault == "film")
    assert len(Counted.opened) == num_opened
    assert sorted(Counted.closed) == sorted(Counted.opened)


@pytest.mark.parametrize("environment", [Sound, OutOfBounds])
def test_a_sound_environment_is_taken_and_one_step_of_it_is_tried(environment: type[Sound], register: Register) -> None:
    assert find_interface(TrainingConfig(env=register(environment))) == Interface((2,), np.dtype(np.float32), 2)


class WithoutRenderMode(Drawn):
    def __init__(self) -> None:
        pass


class FailingWhenFilmed(Drawn):
    def __init__(self, render_mode: str | None = None) -> None:
        if render_mode is not None:
            raise LookupError("no canvas")


class ForgettingRenderMode(Drawn):
    def __init__(self, render_mode: str | None = None) -> None:
        pass


class WithoutRender(Drawn):
    def render(self) -> Any:
        return super(Drawn, self).render()


class DrawingNothing(Drawn):
    def render(self) -> Any:
        return None


class DrawingInGrey(Drawn):
    def render(self) -> Any:
        return np.zeros((4, 6), np.uint8)


class DrawingShares(Drawn):
    def render(self) -> Any:
        return np.zeros((4, 6, 3), np.float32)


class NeedingMore(Drawn):
    def render(self) -> Any:
        import no_such_canvas  # type: ignore[import-not-found]  # noqa: F401


class FailingRender(Drawn):
    def render(self) -> Any:
        raise LookupError("no canvas")


_FRAME = r"render\(\) must give an array uint8\[height, width, 3\] where render_mode is 'rgb_array'"
_KEEPS = r"def __init__\(self, ..., render_mode=None\), that keeps it: self.render_mode = render_mode$"


@pytest.mark.parametrize(
    ("environment", "line"),
    [
        (Sound, r"'NAME' cannot be filmed: its render_modes are \[\]; it needs 'rgb_array', and a render\(\) that"),
        (WithoutRenderMode, rf"'NAME' cannot be filmed: its class must take render_mode: {_KEEPS}"),
        (FailingWhenFilmed, r"'NAME' cannot be filmed: LookupError: no canvas \(test_own_environment.py:\d+\)$"),
        (ForgettingRenderMode, rf"'NAME' cannot be filmed: its render_mode is None: it needs {_KEEPS}"),
        (WithoutRender, rf"NAME cannot be drawn: it has no render\(\); {_FRAME}$"),
        (DrawingNothing, rf"NAME cannot be drawn: {_FRAME}, not NoneType$"),
        (DrawingInGrey, rf"NAME cannot be drawn: {_FRAME}, not uint8\[4, 6\]$"),
        (DrawingShares, rf"NAME cannot be drawn: {_FRAME}, not float32\[4, 6, 3\]$"),
        (NeedingMore, r"NAME cannot be drawn: it needs the module no_such_canvas, which is not installed: pip install"),
        (
            FailingRender,
            r"NAME cannot be drawn: render\(\) failed: LookupError: no canvas \(test_own_environment.py:",
        ),
    ],
)
def test_what_cannot_be_filmed_is_one_clear_line_before_anything_is_played(
    environment: type[Sound], line: str, register: Register, tmp_path: Path
) -> None:
    name = register(environment)
    with pytest.raises(ConfigError, match=f"^{line.replace('NAME', name)}") as caught:
        check_filmed(EvaluationSetup(TrainingConfig(env=name), None), [tmp_path / "new" / "film.mp4"])
    assert "\n" not in str(caught.value)
    assert not list(tmp_path.iterdir())


def test_what_can_be_filmed_leaves_no_film_yet(register: Register, tmp_path: Path) -> None:
    check_filmed(EvaluationSetup(TrainingConfig(env=register(Drawn)), None), [tmp_path / "new" / "film.mp4"])
    assert [path.name for path in tmp_path.rglob("*")] == ["new"]


Register = Callable[..., str]


@pytest.fixture
def register() -> Iterator[Register]:
    """Gives an environment an id until the test ends."""
    names: list[str] = []

    def register(entry_point: Any, **options: Any) -> str:
        names.append(f"Registered{len(names)}-v0")
        gymnasium.register(names[-1], entry_point=entry_point, **options)
        return names[-1]

    yield register
    for name in names:
        del gymnasium.registry[name]


def test_arguments_that_the_environment_does_not_take_are_one_clear_line() -> None:
    config = TrainingConfig(env="Odd-v0", env_options=EnvironmentOptions(arguments={"size": 5}))
    with pytest.raises(ConfigError, match=r"^'Odd-v0' cannot be made with \{'size': 5\}: .*unexpected keyword"):
        find_interface(config)


@pytest.mark.parametrize(
    ("fault", "line"),
    [
        ("later shape", r"Odd-v0: observation_space is uint8\[4\], but what it gives is uint8\[1\]"),
        ("later type", r"Odd-v0: observation_space is uint8\[4\], but what it gives is float32\[4\]"),
        ("later array", r"Odd-v0: observation_space is uint8\[4\], but what it gives is of type NoneType"),
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


class FailingModel(MLP):
    def __init__(self, obs_shape: Any, num_actions: int) -> None:
        raise LookupError(f"no layers for {obs_shape}")


@pytest.mark.parametrize(
    ("model_class", "line"),
    [
        (FailingModel, r"LookupError: no layers for \(4,\) \(test_own_environment.py:\d+\)$"),
        (MLP, r"TypeError: .*__init__\(\) got an unexpected keyword argument 'obs_shape'$"),
    ],
)
def test_a_model_that_cannot_be_made_is_one_clear_line(model_class: type[MLP], line: str) -> None:
    with pytest.raises(ConfigError, match=rf"^the model cannot be made with obs_shape and num_actions: {line}"):
        make_model(Interface((4,), np.dtype(np.uint8), 2), model_class)


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
    options = EnvironmentOptions(arguments={"fault": "later old step"})
    config = TrainingConfig(
        env="tests.training.test_own_environment:Odd-v0", env_options=options, num_actors=1, envs_per_actor=2,
        batch_size=2,
    )  # fmt: skip

    async def run() -> None:
        with trio.fail_after(LIMIT_S):
            await Trainer(config, run_dir=tmp_path).run()

    with pytest.raises(WrongEnvironmentError, match=r"^Odd-v0: step\(\) must give"):
        trio.run(run)
