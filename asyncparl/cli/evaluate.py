"""`asyncparl evaluate`: how well a trained policy plays, apart from training."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from asyncparl.cli.train import missing_package
from asyncparl.errors import AsyncparlError
from asyncparl.training.errors import ConfigError, unwrapped_errors

if TYPE_CHECKING:
    from asyncparl.training.checkpoint import Checkpoint
    from asyncparl.training.evaluation import Evaluation, EvaluationSetup
    from asyncparl.training.trained_run import TrainedRun

_BOTH = "both"


@click.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--checkpoint",
    default=_BOTH,
    metavar="best|last|both|FILE",
    help="Which weights play; both: the best ones, if there are any yet, and the last ones.  [default: both]",
)
@click.option("--episodes", type=click.IntRange(min=1), default=32, help="Whole games to play.  [default: 32]")
@click.option(
    "--deterministic/--sampled",
    default=False,
    help="Always take the most probable action, or draw actions as in training.  [default: sampled]",
)
@click.option("--seed", type=click.IntRange(min=0), help="Of games and policy.  [default: that of the run]")
@click.option(
    "--actors", type=click.IntRange(min=1), default=1, help="Processes that share the episodes.  [default: 1]"
)
@click.option(
    "--video", type=click.Path(path_type=Path), metavar="FILE|FOLDER",
    help="Film one more episode: a name that ends with .mp4 or .gif, or a folder for best.mp4 and last.mp4.  "
    "[default: no film]",
)  # fmt: skip
def evaluate(
    run: Path, checkpoint: str, episodes: int, deterministic: bool, seed: int | None, actors: int, video: Path | None
) -> None:
    """Play whole games with the policy of the run in the folder RUN.

    Returns are raw: rewards are not clipped, and no lost life ends a game. The seeds are none that the run was trained
    with. The same seed gives the same games, however many actors share them.
    """
    try:
        with unwrapped_errors():
            _evaluate(run, checkpoint, episodes, deterministic, seed, actors, video)
    except ModuleNotFoundError as error:
        raise missing_package(error) from error
    except (AsyncparlError, OSError) as error:
        raise click.ClickException(str(error)) from error


def _evaluate(
    run: Path, which: str, num_episodes: int, deterministic: bool, seed: int | None, num_actors: int, video: Path | None
) -> None:
    from asyncparl.training.evaluation import EvaluationSetup, check_num_episodes
    from asyncparl.training.trained_run import TrainedRun

    try:
        check_num_episodes(num_episodes)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    trained = TrainedRun.open(run)
    names = trained.names() if which == _BOTH else [which]
    checkpoints = {name: trained.checkpoint(name, warn=_warn) for name in names}
    films = _films(names, video)
    for checkpoint in checkpoints.values():
        trained.check_fit(checkpoint)
    setup = EvaluationSetup(trained.config, trained.model_class, deterministic, seed)
    evaluations = trio.run(_play, setup, list(checkpoints.values()), num_episodes, num_actors)
    _print_table(trained, checkpoints, evaluations)
    for name, path in films.items():
        _film(setup, checkpoints[name], path)


def _films(names: Sequence[str], video: Path | None) -> dict[str, Path]:
    """Where the film of each checkpoint goes."""
    from asyncparl.training.video import SUFFIXES, check_video

    if video is None:
        return {}
    if video.suffix in SUFFIXES and len(names) > 1:
        raise ConfigError(f"--video {video} is for one checkpoint: choose it by --checkpoint, or give a folder")
    if video.suffix and not video.is_dir():
        films = {names[0]: video}
    else:
        films = {name: video / f"{Path(name).stem}.mp4" for name in names}
    for path in films.values():
        check_video(path)
    return films


async def _play(
    setup: EvaluationSetup, checkpoints: Sequence[Checkpoint], num_episodes: int, num_actors: int
) -> list[Evaluation]:
    import asyncparl
    from asyncparl.training.evaluation import PRELOAD, Evaluator

    async with asyncparl.connect(preload=PRELOAD):
        evaluator = Evaluator(setup, num_actors)
        return [await evaluator.evaluate(each.model_weights(), num_episodes) for each in checkpoints]


def _print_table(trained: TrainedRun, checkpoints: dict[str, Checkpoint], evaluations: Sequence[Evaluation]) -> None:
    config = trained.config
    click.echo(f"{config.algorithm} on {config.env}, run {trained.path}")
    click.echo(
        f"{'checkpoint':12}{'steps':>13}{'episodes':>10}{'mean':>11}{'median':>11}{'deviation':>11}"
        f"{'min':>11}{'max':>11}{'length':>10}"
    )
    for (name, checkpoint), evaluation in zip(checkpoints.items(), evaluations, strict=True):
        figures = evaluation.figures()
        returns = "".join(f"{figures[f'{each}_return']:11.2f}" for each in ("mean", "median", "std", "min", "max"))
        click.echo(
            f"{Path(name).name:12}{checkpoint.counters.agent_steps:13,}{figures['episodes']:10}{returns}"
            f"{figures['mean_length']:10.1f}"
        )


def _film(setup: EvaluationSetup, checkpoint: Checkpoint, path: Path) -> None:
    from asyncparl.training.video import film_episode

    episode = film_episode(setup, checkpoint.model_weights(), path)
    click.echo(f"{path}: an episode of {episode.length} steps, return {episode.return_:.2f}")


def _warn(line: str) -> None:
    click.echo(f"warning: {line}", err=True)
