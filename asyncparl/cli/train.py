"""`asyncparl train`: train an agent and watch it."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, TypeVar

import click
import trio

from asyncparl.errors import AsyncparlError
from asyncparl.training.config import PRECISIONS, TrainingConfig
from asyncparl.training.errors import ConfigError, unwrapped_errors

if TYPE_CHECKING:
    from asyncparl.training.display import Display
    from asyncparl.training.trainer import Trainer, TrainingResult

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

INTERRUPTED = 128 + signal.SIGINT
TERMINATED = 128 + signal.SIGTERM
UNREAD = 128 + signal.SIGPIPE

_POSITIVE = click.IntRange(min=1)
_NOT_NEGATIVE = click.FloatRange(min=0)
_MORE_THAN_0 = click.FloatRange(min=0, min_open=True)
_FOLDER = click.Path(path_type=Path)
_MACHINE = "by the machine"


def _setting(
    name: str, field: str, kind: Any, text: str, default: str | None = None
) -> Callable[[FunctionT], FunctionT]:
    """An option that counts only if it is given; its help shows the default of the settings."""
    default = default or str(TrainingConfig.__dataclass_fields__[field].default)
    return click.option(name, field, type=kind, default=None, help=f"{text}  [default: {default}]")


_SETTINGS = (
    _setting("--steps", "steps", _POSITIVE, "Agent steps to learn from."),
    _setting("--seed", "seed", click.IntRange(min=0), "Of environments, policies and first weights."),
    _setting("--actors", "num_actors", _POSITIVE, "Processes that play.", _MACHINE),
    _setting("--envs-per-actor", "envs_per_actor", _POSITIVE, "Environments that each of them plays at once."),
    _setting("--unroll-length", "unroll_length", _POSITIVE, "Steps of an environment in one rollout."),
    _setting("--batch-size", "batch_size", _POSITIVE, "Rollouts of one environment each in a training batch."),
    _setting("--learning-rate", "learning_rate", _MORE_THAN_0, "At the start."),
    _setting("--anneal/--no-anneal", "anneal_learning_rate", None, "Lower it to 0 at the last step.", "no-anneal"),
    _setting("--entropy-cost", "entropy_cost", _NOT_NEGATIVE, "Weight of the entropy bonus."),
    _setting("--value-cost", "value_cost", _NOT_NEGATIVE, "Weight of the value loss."),
    _setting("--discount", "discount", click.FloatRange(0, 1), "Gamma."),
    _setting("--max-grad-norm", "max_grad_norm", _MORE_THAN_0, "Gradients are clipped to this norm."),
    _setting("--rms-epsilon", "rms_epsilon", _MORE_THAN_0, "Of the optimizer, RMSProp."),
    _setting("--device", "device", str, "Where the learner computes: cpu, cuda, cuda:1.", _MACHINE),
    _setting("--precision", "precision", click.Choice(PRECISIONS), "Of the network.", "bf16 where that is fast"),
    _setting("--learner-threads", "learner_threads", _POSITIVE, "CPU threads of the learner.", _MACHINE),
    _setting("--checkpoint-interval", "checkpoint_interval_s", _MORE_THAN_0, "Seconds between checkpoints."),
    _setting("--report-interval", "report_interval_s", _MORE_THAN_0, "Seconds between rows of progress.csv."),
)


def _settings(function: FunctionT) -> FunctionT:
    for option in reversed(_SETTINGS):
        function = option(function)
    return function


@click.group()
def train() -> None:
    """Train an agent."""


@train.command()
@click.option("--env", help="An Atari game (pong) or a gymnasium id (CartPole-v1, module:EnvId).")
@_settings
@click.option(
    "--env-option",
    "env_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="Of the preprocessing, such as frame_skip=4 or episodic_life=true. May be repeated.",
)
@click.option(
    "--model", metavar="MODULE:CLASS", help="A subclass of asyncparl.Model, made with obs_shape and num_actions."
)
@click.option(
    "--cluster",
    metavar="HOST:PORT",
    help="Play on the nodes of this cluster; the learner stays here. --actors is then by its free CPUs.  "
    "[default: this machine]",
)
@click.option("--run-dir", type=_FOLDER, help="New folder for the results.  [default: runs/impala-ENV-DATE-SEED]")
@click.option(
    "--resume",
    type=_FOLDER,
    metavar="RUN",
    help="Go on with the run in this folder. Other options may change how it runs, not what it is.",
)
def impala(env_options: Sequence[str], run_dir: Path | None, resume: Path | None, **settings: Any) -> NoReturn:
    """Train with IMPALA: actors play, one learner learns.

    The run folder gets config.json, progress.csv, TensorBoard events and checkpoints. Ctrl-C ends the run with a
    checkpoint, a second Ctrl-C at once. Exit status: 0 if all steps were done, 130 after Ctrl-C, 143 after SIGTERM,
    1 or 2 for an error.
    """
    given = {name: value for name, value in settings.items() if value is not None}
    try:
        trainer = _make_trainer(given, env_options, run_dir, resume)
        result = trio.run(_run, trainer, _make_display(trainer))
    except KeyboardInterrupt:
        click.echo("stopped at once", err=True)
        sys.exit(INTERRUPTED)
    except BrokenPipeError:
        # Nobody reads what we say. Python's own flush at exit must not fail on it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(UNREAD)
    except ModuleNotFoundError as error:
        raise _missing_package(error) from error
    except AsyncparlError as error:
        raise click.ClickException(str(error)) from error
    _say_how_it_ended(result)
    sys.exit({None: 0, "SIGTERM": TERMINATED}.get(result.stop_reason, INTERRUPTED))


def _make_trainer(
    given: dict[str, Any], env_options: Sequence[str], run_dir: Path | None, resume: Path | None
) -> Trainer:
    from asyncparl.cli.env_options import parse_env_options
    from asyncparl.rl import keep_freed_memory
    from asyncparl.training.trainer import Trainer

    keep_freed_memory()
    if env_options:
        given["env_options"] = parse_env_options(env_options)
    if resume is not None:
        if run_dir is not None:
            raise ConfigError("--run-dir is for new runs: a resumed run goes on in its own folder")
        return Trainer.resume(resume, changes=given, warn=_warn)
    if "env" not in given:
        raise click.UsageError("--env says what to play, --resume which run to go on with: one of them is needed")
    if given.get("cluster") and "num_actors" not in given:
        given["num_actors"] = trio.run(_free_cpus, given["cluster"])
    config = TrainingConfig.for_this_machine(given.pop("env"), **given)
    for warning in config.warnings():
        _warn(warning)
    return Trainer(config, run_dir=run_dir)


async def _free_cpus(cluster: str) -> int:
    """As many actors as the cluster has CPUs for, now."""
    import asyncparl

    async with asyncparl.connect(cluster) as connected:
        nodes = (await connected.describe()).nodes
    return max(1, int(sum((node.total_cpus or 0) - node.used_cpus for node in nodes)))


def _make_display(trainer: Trainer) -> Display:
    from asyncparl.training.display import make_display

    config = trainer.config
    for name, value in config.to_json().items():
        click.echo(f"{name:22} {value}")
    title = f"asyncparl: IMPALA on {config.env}"
    return make_display(title, config.steps, str(trainer.run_dir), sys.stdout)


async def _run(trainer: Trainer, display: Display) -> TrainingResult:
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, trainer, display)
            result = await trainer.run(display)
            nursery.cancel_scope.cancel()
    return result


async def _stop_on_signal(trainer: Trainer, display: Display) -> None:
    with trio.open_signal_receiver(signal.SIGINT, signal.SIGTERM) as signals:
        number = await anext(signals)
    # The next one finds Python's own handlers again.
    trainer.stop(signal.Signals(number).name)
    display.say("stopping: writing a checkpoint; Ctrl-C again stops at once")


def _say_how_it_ended(result: TrainingResult) -> None:
    ending = "finished" if result.stop_reason is None else f"stopped by {result.stop_reason}"
    report = result.report
    click.echo(f"{ending} after {report.agent_steps:,} steps; mean return {report.mean_return:.2f}")
    click.echo(f"results: {result.run_dir}")
    if result.stop_reason is not None and result.checkpoint is not None:
        program = sys.argv[0] if Path(sys.argv[0]).name == "asyncparl" else "asyncparl"
        click.echo(f"go on with: {program} train impala --resume {result.run_dir}")


def _warn(line: str) -> None:
    click.echo(f"warning: {line}", err=True)


def _missing_package(error: ModuleNotFoundError) -> click.ClickException:
    package = (error.name or "").partition(".")[0]
    if package in {"torch", "numpy", "gymnasium", "ale_py", "rich", "tensorboard"}:
        return click.ClickException(f"training needs {package}, which is not installed: pip install 'asyncparl[train]'")
    raise error
