"""`asyncparl evaluate`: how well a trained policy plays, apart from training."""

from __future__ import annotations

import signal
import sys
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import click
import trio

from asyncparl.cli.signals import Terminated, first_signal, sigterm_raised
from asyncparl.cli.train import fail_by_actor, fail_by_missing_package, is_from_actor
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
    "--actors",
    type=click.IntRange(min=1),
    default=1,
    help="Processes, each for eight episodes at a time.  [default: 1]",
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
            stopped_by = _evaluate(run, checkpoint, episodes, deterministic, seed, actors, video)
    except (KeyboardInterrupt, Terminated) as stop:
        stopped_by = signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT
        click.echo(f"stopped by {stopped_by.name}", err=True)
    except ModuleNotFoundError as error:
        fail_by_missing_package(error)
    except (AsyncparlError, OSError) as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        if not is_from_actor(error):
            raise
        fail_by_actor(error)
    if stopped_by is not None:
        sys.exit(128 + stopped_by)


def _evaluate(
    run: Path, which: str, num_episodes: int, deterministic: bool, seed: int | None, num_actors: int, video: Path | None
) -> signal.Signals | None:
    """None: to its end; else what has stopped it."""
    with sigterm_raised():
        from asyncparl.training.evaluation import EvaluationSetup, check_num_episodes, useful_actors
        from asyncparl.training.trained_run import TrainedRun
        from asyncparl.training.video import check_filmed

        try:
            check_num_episodes(num_episodes)
            num_actors = useful_actors(num_actors, num_episodes)
        except ValueError as error:
            raise ConfigError(str(error)) from error
        trained = TrainedRun.open(run)
        names = trained.names() if which == _BOTH else [which]
        checkpoints = {name: trained.checkpoint(name, warn=_warn) for name in names}
        films = _films(names, video)
        for checkpoint in checkpoints.values():
            trained.check_fit(checkpoint)
        setup = EvaluationSetup(trained.config, trained.model_class, deterministic, seed)
        if films:
            check_filmed(setup, films.values())
    played = _Played(checkpoints, num_episodes)
    trio.run(_play, setup, played, num_actors)
    if played.num_played():
        _print_table(trained, played)
    if played.stopped_by is not None:
        click.echo(f"stopped by {played.stopped_by.name} {played.how_far()}", err=True)
        return played.stopped_by
    with sigterm_raised():
        for name, path in films.items():
            _film(setup, checkpoints[name], path)
    return None


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


class _Played:
    """What was played of each checkpoint so far.

    Args:
        checkpoints: by name.
        num_episodes: of each, in the end.
    """

    def __init__(self, checkpoints: Mapping[str, Checkpoint], num_episodes: int) -> None:
        self.checkpoints = checkpoints
        self.num_episodes = num_episodes
        self.stopped_by: signal.Signals | None = None
        self.evaluations: dict[str, Evaluation] = {}
        """Of those that have been played at all."""

    def update(self, name: str, so_far: Evaluation) -> None:
        """More of a checkpoint was played."""
        self.evaluations[name] = so_far
        if sys.stderr.isatty():
            click.echo(f"\r{self.num_played()} of {self._all()} episodes", err=True, nl=False)

    def num_played(self) -> int:
        """Episodes of all checkpoints."""
        return sum(len(evaluation.episodes) for evaluation in self.evaluations.values())

    def how_far(self) -> str:
        """In words."""
        if self.num_played() == 0:
            return "before the first episodes were over"
        return f"after {self.num_played()} of {self._all()} episodes; those under way do not count"

    def _all(self) -> int:
        return self.num_episodes * len(self.checkpoints)


async def _play(setup: EvaluationSetup, played: _Played, num_actors: int) -> None:
    """Until all is played, or a signal comes."""
    import asyncparl
    from asyncparl.training.evaluation import PRELOAD, Evaluator

    async with trio.open_nursery() as nursery:
        nursery.start_soon(_stop_on_signal, played, nursery.cancel_scope)
        async with asyncparl.connect(preload=PRELOAD):
            evaluator = Evaluator(setup, num_actors)
            for name, checkpoint in played.checkpoints.items():
                update = partial(played.update, name)
                await evaluator.evaluate(checkpoint.model_weights(), played.num_episodes, on_played=update)
        nursery.cancel_scope.cancel()
    if sys.stderr.isatty():
        click.echo("\r\033[K", err=True, nl=False)


async def _stop_on_signal(played: _Played, scope: trio.CancelScope) -> None:
    played.stopped_by = await first_signal()
    scope.cancel()


def _print_table(trained: TrainedRun, played: _Played) -> None:
    config = trained.config
    click.echo(f"{config.algorithm} on {config.env}, run {trained.path}")
    click.echo(
        f"{'checkpoint':12}{'steps':>13}{'episodes':>10}{'mean':>11}{'median':>11}{'deviation':>11}"
        f"{'min':>11}{'max':>11}{'length':>10}"
    )
    for name, evaluation in played.evaluations.items():
        figures = evaluation.figures()
        returns = "".join(f"{figures[f'{each}_return']:11.2f}" for each in ("mean", "median", "std", "min", "max"))
        click.echo(
            f"{Path(name).name:12}{played.checkpoints[name].counters.agent_steps:13,}{figures['episodes']:10}{returns}"
            f"{figures['mean_length']:10.1f}"
        )


def _film(setup: EvaluationSetup, checkpoint: Checkpoint, path: Path) -> None:
    from asyncparl.training.video import film_episode

    episode = film_episode(setup, checkpoint.model_weights(), path)
    click.echo(f"{path}: an episode of {episode.length} steps, return {episode.return_:.2f}")


def _warn(line: str) -> None:
    click.echo(f"warning: {line}", err=True)
