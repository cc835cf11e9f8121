"""Evaluations: whole games with raw returns, the same whoever plays them; and the best checkpoint."""

from __future__ import annotations

import csv
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import trio
from numpy.typing import NDArray

import asyncparl
from asyncparl.cli import main
from asyncparl.training import ConfigError, Trainer, TrainingConfig, TrainingError, TrainingResult
from asyncparl.training import evaluation as evaluation_module
from asyncparl.training.best import BestCheckpoint
from asyncparl.training.build import Interface, make_model
from asyncparl.training.checkpoint import (
    Checkpoint,
    Counters,
    Score,
    list_checkpoints,
    load_checkpoint,
    save_best,
    save_checkpoint,
)
from asyncparl.training.display import SilentDisplay
from asyncparl.training.environments import (
    CATCH_ID,
    COUNTER_ID,
    EnvironmentOptions,
    VectorEnvironment,
    make_environment,
)
from asyncparl.training.evaluation import PRELOAD, Evaluation, EvaluationSetup, Evaluator, play_episodes
from asyncparl.training.recipes import make_algorithm
from asyncparl.training.run_folder import RunFolder
from asyncparl.training.trained_run import TrainedRun
from asyncparl.training.video import film_episode
from tests.training.subjects import HANGING_SEEDS_ID

ROOT = Path(__file__).parents[2]
LIMIT_S = 100


def _config(env: str = CATCH_ID, **settings: Any) -> TrainingConfig:
    small = {"steps": 4_000, "num_actors": 1, "envs_per_actor": 8, "batch_size": 16, "learning_rate": 5e-3}
    return TrainingConfig(**{"env": env, "seed": 1, **small, **settings})


def _weights(setup: EvaluationSetup, seed: int = 0) -> dict[str, NDArray[Any]]:
    environment = setup.make_environment(0, 1)
    torch.manual_seed(seed)
    model = make_model(Interface.of(environment), setup.model_class)
    environment.close()
    return model.get_weights()


def _first_action(obs: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    return np.zeros(len(obs), np.int64), np.zeros(len(obs), np.float32)


# --- episodes


def test_every_environment_plays_one_whole_episode() -> None:
    environment = make_environment(COUNTER_ID, num_envs=4, seed=0)  # of 3, 4, 5 steps; the last is cut after 5
    episodes = play_episodes(environment, _first_action)
    assert [episode.length for episode in episodes] == [3, 4, 5, 5]
    assert [episode.return_ for episode in episodes] == [1.5, 2.0, 2.5, 2.5]  # what comes after them does not count


def test_returns_are_raw_and_a_lost_life_ends_no_episode() -> None:
    options = EnvironmentOptions(episodic_life=True, clip_rewards=True, frame_skip=4)
    setup = EvaluationSetup(_config("breakout", env_options=options), None)
    assert (setup.options().clip_rewards, setup.options().episodic_life) == (False, False)
    environment = setup.make_environment(0, 1)
    lost = 0

    def to_the_right(obs: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        nonlocal lost
        lost += 1
        return np.array([1 if lost % 10 == 0 else 2]), np.zeros(1, np.float32)  # serve now and then

    (episode,) = play_episodes(environment, to_the_right)
    environment.close()
    assert episode.length > 100  # five lives of it


def test_an_episode_without_an_end_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(evaluation_module, "MAX_STEPS", 2)
    environment = make_environment(COUNTER_ID, num_envs=1)
    with pytest.raises(TrainingError, match=r"^an episode has not ended after 2 steps: give the environment a limit"):
        play_episodes(environment, _first_action)


def test_the_seeds_of_an_evaluation_are_none_that_training_uses() -> None:
    setup = EvaluationSetup(_config(), None)
    assert setup.seed_of(0) == 1_900_000  # training has those from 1,000,000 on
    assert EvaluationSetup(_config(), None, seed=7).seed_of(3) == 7_900_003


def test_the_best_action_is_the_same_every_time_and_drawn_ones_are_not() -> None:
    played: dict[bool, set[tuple[int, ...]]] = {True: set(), False: set()}
    for deterministic, seen in played.items():
        for seed in range(4):
            setup = EvaluationSetup(_config(), None, deterministic)
            environment = setup.make_environment(0, 1)
            policy = EvaluationSetup(_config(seed=seed), None, deterministic).make_policy(
                environment, _weights(setup), 0
            )
            obs = environment.reset()
            seen.add(tuple(int(policy(obs)[0][0]) for _ in range(8)))
            environment.close()
    assert len(played[True]) == 1
    assert len(played[False]) == 4


def test_the_figures_are_those_of_the_returns() -> None:
    episodes = tuple(evaluation_module.Episode(float(return_), 5) for return_ in (1, 2, 9))
    assert Evaluation(episodes).figures() == {
        "episodes": 3, "mean_return": 4.0, "median_return": 2.0, "std_return": pytest.approx(19**0.5),
        "min_return": 1.0, "max_return": 9.0, "mean_length": 5.0,
    }  # fmt: skip


@pytest.mark.slow
async def test_more_actors_play_the_same_games(monkeypatch: pytest.MonkeyPatch) -> None:
    setup = EvaluationSetup(_config("CartPole-v1"), None)
    weights = _weights(setup)
    with trio.fail_after(LIMIT_S):
        async with asyncparl.connect(preload=PRELOAD):
            alone = await Evaluator(setup, 1).evaluate(weights, 19)
            seen: list[Evaluation] = []
            together = await Evaluator(setup, 2).evaluate(weights, 19, on_played=seen.append)
            assert alone == together == seen[-1]
            assert len(seen) == 3
            assert all(set(so_far.episodes) <= set(alone.episodes) for so_far in seen)
            assert len(set(alone.returns)) > 3
            with pytest.raises(ValueError, match="missing"):
                await Evaluator(setup).evaluate({"no": np.zeros(1)}, 1)


# --- during training


class Said(SilentDisplay):
    def __init__(self) -> None:
        self.lines: list[str] = []

    def say(self, line: str) -> None:
        self.lines.append(line)


async def _run(trainer: Trainer, display: SilentDisplay | None = None) -> TrainingResult:
    with trio.fail_after(LIMIT_S):
        return await trainer.run(display)


def _rows(path: Path) -> list[dict[str, str]]:
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.slow
async def test_evaluations_during_training_leave_its_figures_and_weights_alone(tmp_path: Path) -> None:
    config = _config(repeatable=True)
    plain = await _run(Trainer(config, run_dir=tmp_path / "plain"))
    display = Said()
    evaluated = await _run(
        Trainer(config.replace(evaluate_every=1_500, evaluation_episodes=10), run_dir=tmp_path / "evaluated"), display
    )
    assert plain.checkpoint is not None and evaluated.checkpoint is not None
    without, with_ = load_checkpoint(plain.checkpoint), load_checkpoint(evaluated.checkpoint)
    assert all(
        bool((with_.algorithm["model"][name] == each).all()) for name, each in without.algorithm["model"].items()
    )
    assert with_.counters.episodes == without.counters.episodes
    assert evaluated.mean_return == plain.mean_return
    assert not (tmp_path / "plain" / "evaluations.csv").exists()

    rows = _rows(tmp_path / "evaluated" / "evaluations.csv")
    steps = [int(row["agent_steps"]) for row in rows]
    assert steps == sorted(steps) and steps[0] >= 1_500 and steps[-1] == evaluated.agent_steps >= 4_000
    assert {row["episodes"] for row in rows} == {"10"}
    assert sum(line.startswith("evaluation after ") for line in display.lines) == len(rows)

    best = load_checkpoint(tmp_path / "evaluated" / "checkpoints" / "best.pt")
    best_row = max(rows, key=lambda row: float(row["mean_return"]))
    assert best.score == Score(pytest.approx(float(best_row["mean_return"]), abs=1e-5), "evaluation")
    assert best.counters.agent_steps == int(best_row["agent_steps"])
    # ... and it is said of those very weights.
    setup = EvaluationSetup(config, None)
    async with asyncparl.connect(preload=PRELOAD):
        again = await Evaluator(setup).evaluate(best.model_weights(), 10)
    assert float(again.returns.mean()) == best.score.mean_return

    resumed = Trainer.resume(tmp_path / "evaluated", changes={"steps": 4_300})
    await _run(resumed)
    assert _rows(tmp_path / "evaluated" / "evaluations.csv")[: len(rows)] == rows


@pytest.mark.slow
async def test_the_best_and_the_last_checkpoints_are_kept_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("asyncparl.training.trainer.BEST_INTERVAL_S", 0.02)
    config = _config(steps=20_000, checkpoint_interval_s=0.1)
    result = await _run(Trainer(config, run_dir=tmp_path))
    folder = tmp_path / "checkpoints"
    last = list_checkpoints(folder)
    assert sorted(os.listdir(folder)) == sorted(["best.pt", *(path.name for path in last)])
    assert len(last) == 2
    assert result.best_checkpoint == folder / "best.pt"
    best = load_checkpoint(result.best_checkpoint)
    assert best.score is not None and best.score.kind == "training"
    assert best.score.mean_return >= result.mean_return - 1e-6
    assert load_checkpoint(last[-1]).score is None


# --- the best one


def _folder(path: Path) -> RunFolder:
    folder = RunFolder.create(path)
    folder.write_config(_config().to_json())
    return folder


def _checkpoint(steps: int) -> Checkpoint:
    return Checkpoint(Counters(agent_steps=steps), {"model": {}}, {})


async def test_only_a_better_one_takes_the_place_of_the_best(tmp_path: Path) -> None:
    folder = _folder(tmp_path)
    best = BestCheckpoint(folder, "training", say=print)
    for steps, mean_return in ((1, -5.0), (2, 3.0), (3, 2.9), (4, 3.0)):
        await best.offer(_checkpoint(steps), mean_return)
    assert load_checkpoint(best.path).counters.agent_steps == 2
    # A resumed run remembers it ...
    resumed = BestCheckpoint(folder, "training", say=print)
    await resumed.offer(_checkpoint(5), 2.0)
    assert load_checkpoint(best.path).counters.agent_steps == 2
    # ... but scores of another kind are not compared.
    evaluated = BestCheckpoint(folder, "evaluation", say=print)
    await evaluated.offer(_checkpoint(6), 1.0)
    folder.close()
    assert load_checkpoint(best.path).score == Score(1.0, "evaluation")


async def test_a_best_checkpoint_that_cannot_be_read_or_written_is_said(tmp_path: Path) -> None:
    said: list[str] = []
    folder = _folder(tmp_path)
    path = folder.checkpoints / "best.pt"
    path.write_bytes(b"cut")
    best = BestCheckpoint(folder, "training", say=said.append)
    assert best.score is None
    path.unlink()
    path.mkdir()  # nothing can take its place
    await best.offer(_checkpoint(1), 1.0)
    folder.close()
    assert [line.partition(":")[0] for line in said] == [
        f"checkpoint {path} cannot be read",
        "the best checkpoint could not be written",
    ]
    assert os.listdir(folder.checkpoints) == ["best.pt"]
    assert best.is_beaten_by(0.0)


# --- film


def _frames(path: Path) -> tuple[int, tuple[int, int]]:
    """Their number, and width and height."""
    import imageio_ffmpeg

    number, _ = imageio_ffmpeg.count_frames_and_secs(str(path))
    reader = imageio_ffmpeg.read_frames(str(path))
    size = next(reader)["size"]
    reader.close()
    return number, size


def test_a_film_shows_every_step_of_an_episode(tmp_path: Path) -> None:
    setup = EvaluationSetup(_config(), None)
    episode = film_episode(setup, _weights(setup), tmp_path / "new" / "catch.mp4")
    assert episode.length == 9
    assert _frames(tmp_path / "new" / "catch.mp4") == (9, (100, 200))
    assert os.listdir(tmp_path / "new") == ["catch.mp4"]


def test_a_film_of_an_atari_game_shows_in_colour_what_is_played(make_filmed: Any) -> None:
    options = EnvironmentOptions(sticky_action_probability=0.25, screen_size=(210, 160))
    filmed: VectorEnvironment = make_filmed("breakout", options, filmed=True)
    plain: VectorEnvironment = make_filmed("breakout", options, filmed=False)
    rng = np.random.default_rng(0)
    np.testing.assert_array_equal(filmed.reset(), plain.reset())
    for _ in range(100):
        actions = rng.integers(4, size=1)
        seen = filmed.step(actions).next_obs
        np.testing.assert_array_equal(seen, plain.step(actions).next_obs)
        frame = filmed.frame()
    assert (frame.shape, frame.dtype) == ((210, 160, 3), np.uint8)
    # Every colour has one grey, in the picture that the policy has of the very same moment.
    shades = {(*colour, grey) for colour, grey in zip(frame.reshape(-1, 3).tolist(), seen[0, -1].ravel(), strict=True)}
    assert len({shade[:3] for shade in shades}) == len(shades) > 5
    with pytest.raises(RuntimeError, match="filmed=True"):
        plain.frame()


@pytest.fixture
def make_filmed() -> Any:
    made: list[VectorEnvironment] = []

    def make(env: str, options: EnvironmentOptions, *, filmed: bool) -> VectorEnvironment:
        made.append(make_environment(env, num_envs=1, seed=5, options=options, filmed=filmed))
        return made[-1]

    yield make
    for environment in made:
        environment.close()


def test_what_cannot_be_filmed_is_one_clear_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    setup = EvaluationSetup(_config(COUNTER_ID), None)
    with pytest.raises(
        ConfigError, match=r"Counter-v0' cannot be filmed: its render_modes are \[\]; it needs 'rgb_arr"
    ):
        film_episode(setup, _weights(setup), tmp_path / "counter.mp4")
    with pytest.raises(ConfigError, match=r"^a video is a file whose name ends with \.mp4 or \.gif, not 'film\.avi'$"):
        film_episode(setup, {}, tmp_path / "film.avi")
    monkeypatch.setitem(sys.modules, "imageio_ffmpeg", None)
    with pytest.raises(ConfigError, match=r"which is not installed: pip install 'asyncparl\[video\]'$"):
        film_episode(setup, {}, tmp_path / "film.mp4")
    assert os.listdir(tmp_path) == []


# --- the command


def _command(arguments: str, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setattr(sys, "argv", ["asyncparl", *arguments.split()])
    monkeypatch.setattr(sys, "path", list(sys.path))
    with pytest.raises(SystemExit) as stop:
        main()
    return int(stop.value.code or 0)


@pytest.mark.slow
def test_the_command_evaluates_best_and_last_and_films_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    trio.run(_run, Trainer(_config(steps=3_000), run_dir=tmp_path / "run"))
    monkeypatch.chdir(tmp_path)
    assert _command("evaluate run --episodes 9 --actors 2 --deterministic --video films", monkeypatch) == 0
    title, header, best, last, *films = capsys.readouterr().out.splitlines()
    assert title == f"impala on {CATCH_ID}, run run"
    assert " ".join(header.split()) == "checkpoint steps episodes mean median deviation min max length"
    assert best.split()[::2][:2] == ["best", "9"] and best.split()[-1] == "9.0"
    assert last.split()[:3] == ["last", "3,040", "9"]
    assert [line.partition(":")[0] for line in films] == ["films/best.mp4", "films/last.mp4"]
    assert sorted(os.listdir("films")) == ["best.mp4", "last.mp4"]


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        ("missing", "missing is no run folder: there is no config.json in it"),
        ("run", "there is no checkpoint in run/checkpoints yet"),
        ("run --checkpoint best", "there is no best.pt in run/checkpoints: it comes with the first evaluation, or "),
        (
            "run --checkpoint no.pt",
            "there is no checkpoint 'no.pt', neither here nor in run/checkpoints; the run has no",
        ),
        (
            "good --checkpoint no",
            "there is no checkpoint 'no', neither here nor in good/checkpoints; the run has best, last, checkpoint-0",
        ),
        (
            "good --checkpoint broken.pt",
            "checkpoint broken.pt cannot be read: broken.pt is not an asyncparl checkpoint",
        ),
        ("run --episodes 100000", "an evaluation has from 1 to 50,000 episodes, not 100000"),
        ("run --actors 5000 --episodes 50000", "5000 actors are too many for "),
        ("run --episodes 0", "Invalid value for '--episodes': 0 is not in the range x>=1"),
        ("other --checkpoint last", "the checkpoint does not fit model and environment: "),
        ("good --video film.avi", "a video is a file whose name ends with .mp4 or .gif, not 'film.avi'"),
        (
            "good --checkpoint last --video good/config.json/film.mp4",
            "video good/config.json/film.mp4 cannot be written: ",
        ),
        (
            "cartpole --checkpoint last --video film.mp4",
            'CartPole-v1 cannot be drawn: pygame is not installed, run `pip install "gymnasium[classic-control]"`',
        ),
        ("counter --checkpoint last --video film.mp4", f"'{COUNTER_ID}' cannot be filmed: its render_modes are []"),
        ("good --video film.mp4", "--video film.mp4 is for one checkpoint: choose it by --checkpoint, or give a f"),
    ],
)
def test_a_mistake_is_one_clear_line(
    arguments: str, line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "pygame", None)  # not installed
    Path("broken.pt").touch()
    name = arguments.split(maxsplit=1)[0]
    envs = {"counter": COUNTER_ID, "cartpole": "CartPole-v1"}
    if name == "run":
        _folder(Path("run")).close()
    elif name != "missing":
        config = _config(envs.get(name, CATCH_ID))
        _make_run(Path(name), config, its_config=_config("CartPole-v1") if name == "other" else config)
    assert _command(f"evaluate {arguments}", monkeypatch) in (1, 2)
    printed = capsys.readouterr()
    assert printed.out == ""  # nothing was played
    (said,) = printed.err.splitlines()
    assert said.startswith(f"error: {line}")


def _make_run(path: Path, config: TrainingConfig, *, its_config: TrainingConfig | None = None) -> None:
    """A run that has learned nothing yet, with a best checkpoint and a last one; `its_config` is what it says."""
    environment = make_environment(config.env, num_envs=1, options=config.env_options)
    algorithm = make_algorithm(make_model(Interface.of(environment), None), config)
    environment.close()
    folder = RunFolder.create(path)
    folder.write_config((its_config or config).to_json())
    folder.close()
    checkpoint = Checkpoint(Counters(), algorithm.state_dict(), {})
    save_checkpoint(checkpoint, folder.checkpoints)
    save_best(checkpoint, Score(1.0, "training"), folder.checkpoints)


def test_a_checkpoint_is_found_by_its_name_in_the_folder_of_the_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    _make_run(Path("run"), _config())
    run = TrainedRun.open(Path("run"))
    for name in ("checkpoint-000000000000.pt", "run/checkpoints/checkpoint-000000000000.pt"):
        assert run.checkpoint(name).score is None
    assert run.checkpoint("best.pt").score == Score(1.0, "training")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_an_evaluation_with_what_was_played(number: signal.Signals, tmp_path: Path) -> None:
    setup = EvaluationSetup(_config(), None)
    arguments = {"folder": str(tmp_path), "first_seed": setup.seed_of(8)}  # the first group of episodes ends
    config = _config(HANGING_SEEDS_ID, env_options=EnvironmentOptions(arguments=arguments))
    _make_run(tmp_path / "run", config)
    process = subprocess.Popen(
        [sys.executable, "-m", "asyncparl.cli", "evaluate", str(tmp_path / "run"), "--episodes", "20"],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            deadline = time.monotonic() + LIMIT_S
            while not (tmp_path / "hangs").exists():
                assert process.poll() is None and time.monotonic() < deadline, process.communicate()
                time.sleep(0.02)
            # Ctrl-C reaches the whole group of processes.
            os.killpg(process.pid, number) if number == signal.SIGINT else process.send_signal(number)
            printed, said = process.communicate(timeout=LIMIT_S)
        finally:
            process.kill()
    assert process.returncode == 128 + number
    assert said.endswith(f"stopped by {number.name} after 8 of 40 episodes; those under way do not count\n")
    _, _, row = printed.splitlines()
    assert row.split()[:3] == ["best", "0", "8"]
