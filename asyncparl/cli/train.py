"""`asyncparl train`: train an agent and watch it."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn, TypeVar

import click
import trio

from asyncparl.cli.addresses import AddressType
from asyncparl.cli.groups import CommandGroup
from asyncparl.cli.monitor import monitor_text_option
from asyncparl.cli.signals import INTERRUPTED, TERMINATED, Terminated, first_signal, sigterm_raised
from asyncparl.errors import AsyncparlError, RemoteTraceback
from asyncparl.training.config import OPTIMIZERS, PRECISIONS, TrainingConfig
from asyncparl.training.errors import ConfigError, unwrapped_errors
from asyncparl.training.presets import ALGORITHM_NAMES, DEFAULTS, PRESET_NAMES, AlgorithmName, concerns
from asyncparl.training.protocols import PROTOCOL_NAMES

if TYPE_CHECKING:
    from asyncparl.training.display import Display
    from asyncparl.training.trainer import Trainer, TrainingResult

FunctionT = TypeVar("FunctionT", bound=Callable[..., Any])

_POSITIVE = click.IntRange(min=1)
_NOT_NEGATIVE = click.FloatRange(min=0)
_MORE_THAN_0 = click.FloatRange(min=0, min_open=True)
_SHARE = click.FloatRange(0, 1)
_FOLDER = click.Path(path_type=Path)
_MACHINE = "by the machine"


class _Setting(NamedTuple):
    """An option that counts only if it is given."""

    option: str
    name: str  # in TrainingConfig
    kind: Any
    help: str
    default: str | None = None  # None: that of the settings


_SETTINGS = (
    _Setting("--steps", "steps", _POSITIVE, "Agent steps to learn from."),
    _Setting("--seed", "seed", click.IntRange(min=0), "Of environments, policies and first weights."),
    _Setting("--lstm/--no-lstm", "lstm", None, "Give the default network an LSTM: a memory of the episode."),
    _Setting("--repeatable/--not-repeatable", "repeatable", None, "Actors and learner take turns: exactly repeatable."),
    _Setting("--actors", "num_actors", _POSITIVE, "Processes that play.", _MACHINE),
    _Setting("--envs-per-actor", "envs_per_actor", _POSITIVE, "Environments that each of them plays at once."),
    _Setting("--unroll-length", "unroll_length", _POSITIVE, "Steps of an environment in one rollout."),
    _Setting("--batch-size", "batch_size", _POSITIVE, "Rollouts of one environment each in a training batch."),
    _Setting("--optimizer", "optimizer", click.Choice(OPTIMIZERS), "Its kind; rmsprop_tf is that of the A3C paper."),
    _Setting("--learning-rate", "learning_rate", _MORE_THAN_0, "At the start."),
    _Setting("--anneal/--no-anneal", "anneal_learning_rate", None, "Lower it to the final one, in a straight line."),
    _Setting("--final-learning-rate", "final_learning_rate", _NOT_NEGATIVE, "At the last step; anneals to it.", "0"),
    _Setting("--rms-epsilon", "rms_epsilon", _MORE_THAN_0, "Of RMSProp."),
    _Setting("--entropy-cost", "entropy_cost", _NOT_NEGATIVE, "Weight of the entropy bonus."),
    _Setting("--final-entropy-cost", "final_entropy_cost", _NOT_NEGATIVE, "At the last step.", "the same"),
    _Setting(
        "--schedule-steps", "schedule_steps", _POSITIVE, "Agent steps at which both of these are final.", "--steps"
    ),
    _Setting("--value-cost", "value_cost", _NOT_NEGATIVE, "Weight of the value loss."),
    _Setting("--discount", "discount", _SHARE, "Gamma."),
    _Setting("--lambda", "lambda_", _SHARE, "From 0, one-step returns, to 1, returns to the end of the rollout."),
    _Setting("--max-grad-norm", "max_grad_norm", _MORE_THAN_0, "Gradients are clipped to this norm; inf: not at all."),
    _Setting(
        "--normalise-advantages/--no-normalise-advantages", "normalise_advantages", None,
        "Give those of a batch mean 0 and deviation 1.",
    ),
    _Setting("--epochs", "num_epochs", _POSITIVE, "How often each step is learned from."),
    _Setting("--minibatches", "num_minibatches", _POSITIVE, "Into how many all steps are cut, each time."),
    _Setting("--clip-range", "clip_range", _MORE_THAN_0, "How far ratios of probabilities count, from 1."),
    _Setting("--log-epsilon", "log_epsilon", _SHARE, "Added to probabilities before their logarithm is taken."),
    _Setting("--predictors", "num_predictors", _POSITIVE, "Threads that choose actions, at most.", _MACHINE),
    _Setting(
        "--prediction-batch-size", "prediction_batch_size", _POSITIVE,
        "Observations that one of them takes at once, at most.",
    ),
    _Setting(
        "--compress-rollouts/--no-compress-rollouts", "compress_rollouts", None,
        "On their way: for links of 1 Gbit/s and less between hosts.",
    ),
    _Setting("--device", "device", str, "Where the learner computes: cpu, cuda, cuda:1.", _MACHINE),
    _Setting("--precision", "precision", click.Choice(PRECISIONS), "Of the network.", "bf16 where that is fast"),
    _Setting("--learner-threads", "learner_threads", _POSITIVE, "CPU threads of each learner.", _MACHINE),
    _Setting("--learners", "num_learners", _POSITIVE, "Processes that learn, each from its share of every batch."),
    _Setting(
        "--evaluate-every", "evaluate_every", click.IntRange(min=0), "Agent steps between evaluations; 0: none.", "0",
    ),
    _Setting("--evaluation-episodes", "evaluation_episodes", _POSITIVE, "Episodes that each of them plays."),
    _Setting("--checkpoint-interval", "checkpoint_interval_s", _MORE_THAN_0, "Seconds between checkpoints."),
    _Setting("--report-interval", "report_interval_s", _MORE_THAN_0, "Seconds between rows of progress.csv."),
)  # fmt: skip


def _settings(algorithm: AlgorithmName) -> Callable[[FunctionT], FunctionT]:
    """An option for each setting that the algorithm has; its help shows the default."""
    defaults = TrainingConfig(env="any", algorithm=algorithm)
    is_synchronous = DEFAULTS[algorithm].is_synchronous

    def decorate(function: FunctionT) -> FunctionT:
        for setting in reversed(_SETTINGS):
            if concerns(setting.name, algorithm) and not (is_synchronous and setting.name == "batch_size"):
                function = _option(setting, getattr(defaults, setting.name))(function)
        return function

    return decorate


def _option(setting: _Setting, value: Any) -> Callable[[FunctionT], FunctionT]:
    default = setting.default or str(value)
    if isinstance(value, bool):
        default = setting.option.split("/")[0 if value else 1].removeprefix("--")
    text = f"{setting.help}  [default: {default}]"
    return click.option(setting.option, setting.name, type=setting.kind, default=None, help=text)


@click.group(cls=CommandGroup, subcommand_metavar="ALGORITHM [OPTIONS]")
def train() -> None:
    """Train an agent, or go on with a run: asyncparl train ALGORITHM --help shows all options."""


_SUMMARIES: dict[AlgorithmName, str] = {
    "impala": "actors play on while the learner learns; V-trace corrects for their older weights.",
    "a2c": "all actors play with the same weights, then wait for the learner to learn from all of it.",
    "ppo": "like A2C, but all of it is learned from several times, in small steps.",
    "ga3c": "actors hold environments only; predictors beside the learner choose all actions.",
}


def _command(algorithm: AlgorithmName) -> click.Command:
    """`asyncparl train ALGORITHM`."""

    @_settings(algorithm)
    def command(**options: Any) -> NoReturn:
        _train(algorithm, **options)

    title = DEFAULTS[algorithm].title
    command.__doc__ = f"""Train with {title}: {_SUMMARIES[algorithm]}

    The run folder gets config.json, progress.csv, TensorBoard events and checkpoints. Ctrl-C ends the run with a
    checkpoint, a second Ctrl-C at once. Exit status: 0 if all steps were done, 130 after Ctrl-C, 143 after SIGTERM,
    1 or 2 for an error.
    """
    for option in reversed(_common_options(algorithm)):
        command = option(command)
    return click.command(algorithm)(command)


class _ClusterType(AddressType):
    """An address, or none, which is an empty text."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        return "" if value in ("", "none") else super().convert(value, param, ctx)


def _common_options(algorithm: AlgorithmName) -> list[Callable[[Any], Any]]:
    """What is no setting, or given in another form."""
    return [
        click.option(
            "--config",
            "config_file",
            type=_FOLDER,
            metavar="FILE|RUN",
            help="Settings from a TOML file, or those of another run; options win over them. docs/training.md has the "
            "names.  [default: no file]",
        ),
        click.option("--env", help="An Atari game (pong) or a gymnasium id (CartPole-v1, module:EnvId)."),
        click.option(
            "--preset",
            type=click.Choice(PRESET_NAMES),
            default=None,
            help="Whose defaults are used where nothing is given below; those shown there are ours.  [default: ours]",
        ),
        click.option(
            "--protocol",
            type=click.Choice(PROTOCOL_NAMES),
            default=None,
            help="Play Atari games as in Mnih et al. 2015 or in Machado et al. 2018: sticky actions, lost lives, "
            "actions, frame limit.  [default: neither; see docs/training.md]",
        ),
        click.option(
            "--env-option",
            "env_options",
            multiple=True,
            metavar="NAME=VALUE",
            help="Of the environment: frame_skip=4 or episodic_life=true of an Atari game, max_episode_steps=500 or "
            "'arguments={\"size\": 8}' of others. May be repeated; docs/training.md has the names.",
        ),
        click.option(
            "--model",
            metavar="MODULE:CLASS",
            help="A subclass of asyncparl.Model, made with obs_shape and num_actions.",
        ),
        click.option(
            "--cluster",
            type=_ClusterType(as_text=True),
            help="Play on the nodes of this cluster; the learner stays here. --actors is then by its free CPUs. none: "
            "on this machine after all, where a resumed run or --config says otherwise.  [default: this machine]",
        ),
        monitor_text_option,
        click.option(
            "--run-dir",
            type=_FOLDER,
            help=f"New folder for the results.  [default: runs/{algorithm}-ENV-DATE-SEED]",
        ),
        click.option(
            "--resume",
            type=_FOLDER,
            metavar="RUN",
            help="Go on with the run in this folder, when it has ended. Options may change how it runs, such as "
            "--steps, --actors and --device, not what it is; docs/training.md has a list.",
        ),
    ]


def _train(
    algorithm: AlgorithmName,
    *,
    config_file: Path | None,
    env_options: Sequence[str],
    run_dir: Path | None,
    resume: Path | None,
    monitor: str | None,
    **settings: Any,
) -> NoReturn:
    """Train, and end the process."""
    given = {name: value for name, value in settings.items() if value is not None}
    # Zero evaluations and no cluster are None among the settings, and win over what a file or a run says.
    given |= {name: given[name] or None for name in ("evaluate_every", "cluster") if name in given}
    try:
        with sigterm_raised():
            trainer = _make_trainer(algorithm, given, config_file, env_options, run_dir, resume)
        result = trio.run(_run, trainer, _make_display(trainer), monitor or False)
    except (KeyboardInterrupt, Terminated) as stop:
        click.echo("stopped at once", err=True)
        sys.exit(TERMINATED if isinstance(stop, Terminated) else INTERRUPTED)
    except ModuleNotFoundError as error:
        fail_by_missing_package(error)
    except AsyncparlError as error:
        raise click.ClickException(str(error)) from error
    except Exception as error:
        if not is_from_actor(error):
            raise
        fail_by_actor(error)
    _say_how_it_ended(algorithm, result)
    sys.exit({None: 0, "SIGTERM": TERMINATED}.get(result.stop_reason, INTERRUPTED))


def _make_trainer(
    algorithm: AlgorithmName,
    given: dict[str, Any],
    config_file: Path | None,
    env_options: Sequence[str],
    run_dir: Path | None,
    resume: Path | None,
) -> Trainer:
    from asyncparl.rl import keep_freed_memory
    from asyncparl.training.trainer import Trainer

    keep_freed_memory()
    if resume is not None:
        _check_resumable(given, config_file, run_dir)
        changes = _with_env_options_of(resume, given, env_options) if env_options else given
        return Trainer.resume(resume, changes={"algorithm": algorithm, **changes}, warn=_warn)
    settings = _with_env_options(_from_file(config_file, given, algorithm), env_options)
    if "env" not in settings:
        raise click.UsageError("--env says what to play, --resume which run to go on with: one of them is needed")
    if settings.get("cluster") and "num_actors" not in settings:
        settings["num_actors"] = _actors_of_cluster(algorithm, settings)
    config = TrainingConfig.for_this_machine(algorithm=algorithm, **settings)
    for warning in config.warnings():
        _warn(warning)
    return Trainer(config, run_dir=run_dir)


def _check_resumable(given: dict[str, Any], config_file: Path | None, run_dir: Path | None) -> None:
    if run_dir is not None:
        raise ConfigError("--run-dir is for new runs: a resumed run goes on in its own folder")
    for option, is_given in (
        ("--preset", "preset" in given), ("--protocol", "protocol" in given), ("--config", config_file is not None),
    ):  # fmt: skip
        if is_given:
            raise ConfigError(f"{option} is for new runs: a resumed run keeps the settings that it has")


def _from_file(config_file: Path | None, given: dict[str, Any], algorithm: AlgorithmName) -> dict[str, Any]:
    from asyncparl.cli.config_file import is_of_run, merge, read_config_file

    if config_file is None:
        return given
    if "preset" in given and is_of_run(config_file):
        raise ConfigError("--preset is for what nobody says, and the settings of a run say everything: leave it out")
    return merge(read_config_file(config_file, algorithm), given, algorithm)


def _with_env_options(settings: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """Protocol and options as the one setting that they are."""
    from asyncparl.cli.env_options import make_env_options
    from asyncparl.training.environments import find_atari_game

    settings = dict(settings)
    env, protocol = settings.get("env"), settings.pop("protocol", None)
    if protocol is not None and env is not None and find_atari_game(env) is None:
        raise ConfigError(f"--protocol is only for Atari games, which {env!r} is not")
    options = make_env_options(env, protocol, settings.pop("env_options", {}), texts)
    return settings if options is None else {**settings, "env_options": options}


def _with_env_options_of(run: Path, given: dict[str, Any], texts: Sequence[str]) -> dict[str, Any]:
    """The changes of a resumed run: those of its environment options that are not given stay as they are."""
    from asyncparl.cli.config_file import chosen_options
    from asyncparl.training.run_files import read_config

    before = read_config(run)
    settings = {"env": before.get("env", ""), "env_options": chosen_options(before.get("env_options") or {})}
    return {**given, "env_options": _with_env_options(settings, texts)["env_options"]}


def _actors_of_cluster(algorithm: AlgorithmName, settings: dict[str, Any]) -> int:
    """As many as the cluster has CPUs for, now, beside the learners there; the same number for each learner."""
    num_learners = settings.get("num_learners", 1)
    config = TrainingConfig.for_this_machine(algorithm=algorithm, **{**settings, "num_actors": num_learners})
    free = trio.run(_free_cpus, settings["cluster"]) - (num_learners - 1) * config.learner_cpus
    return int(max(1, free // num_learners)) * int(num_learners)


async def _free_cpus(cluster: str) -> float:
    """CPUs of the cluster that nobody uses now."""
    import asyncparl

    async with asyncparl.connect(cluster) as connected:
        nodes = (await connected.describe()).nodes
    return sum((node.total_cpus or 0) - node.used_cpus for node in nodes)


def _make_display(trainer: Trainer) -> Display:
    from asyncparl.training.display import make_display

    config = trainer.config
    for name, value in config.to_json().items():
        click.echo(f"{name:22} {value}")
    title = f"asyncparl: {DEFAULTS[config.algorithm].title} on {config.env}"
    return make_display(title, config.steps, str(trainer.run_dir), sys.stdout)


async def _run(trainer: Trainer, display: Display, monitor: str | bool) -> TrainingResult:
    with unwrapped_errors():
        async with trio.open_nursery() as nursery:
            nursery.start_soon(_stop_on_signal, trainer, display)
            result = await trainer.run(display, monitor=monitor)
            nursery.cancel_scope.cancel()
    return result


async def _stop_on_signal(trainer: Trainer, display: Display) -> None:
    number = await first_signal()
    trainer.stop(number.name)
    what = "writing a checkpoint" if trainer.has_learned else "there is nothing new for a checkpoint"
    display.say(f"stopping: {what}; Ctrl-C again stops at once")


def _say_how_it_ended(algorithm: AlgorithmName, result: TrainingResult) -> None:
    ending = "finished" if result.stop_reason is None else f"stopped by {result.stop_reason}"
    report = result.report
    click.echo(f"{ending} after {report.agent_steps:,} steps; mean return {report.mean_return:.2f}")
    click.echo(f"results: {result.run_dir}")
    if result.stop_reason is not None:
        program = sys.argv[0] if Path(sys.argv[0]).name == "asyncparl" else "asyncparl"
        click.echo(f"go on with: {program} train {algorithm} --resume {result.run_dir}")


def _warn(line: str) -> None:
    click.echo(f"warning: {line}", err=True)


def fail_by_missing_package(error: ModuleNotFoundError) -> NoReturn:
    """End the command; with a traceback if the module is none of those that training needs."""
    package = (error.name or "").partition(".")[0]
    if package in {"torch", "numpy", "gymnasium", "ale_py", "rich", "tensorboard"}:
        reason = f"training needs {package}, which is not installed: pip install 'asyncparl[train]'"
        raise click.ClickException(reason) from error
    raise error


def is_from_actor(error: Exception) -> bool:
    """Whether code of the user raised it in an actor."""
    return isinstance(error.__cause__, RemoteTraceback)


def fail_by_actor(error: Exception) -> NoReturn:
    """End the command, and show where in the user's code it was raised; our side of the call tells him nothing."""
    assert isinstance(error.__cause__, RemoteTraceback)
    click.echo(error.__cause__.args[0].rstrip(), err=True)
    where = "; ".join(getattr(error, "__notes__", ()))
    raise click.ClickException(f"{type(error).__name__}: {error}; {where}") from error


for _name in ALGORITHM_NAMES:
    train.add_command(_command(_name))
