"""The settings of a run: typed, checked as a whole when they are made, and saved beside the results.

This module imports nothing heavy, so that `--help` can show the defaults.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from asyncparl.machine import usable_cpus
from asyncparl.training.errors import ConfigError
from asyncparl.training.machine import has_cuda, has_fast_bf16
from asyncparl.training.presets import (
    ALGORITHM_NAMES,
    DEFAULTS,
    PRESET_NAMES,
    AlgorithmName,
    PresetName,
    algorithms_with,
    concerns,
)

if TYPE_CHECKING:
    from asyncparl.training.environments import EnvironmentOptions

# The same as in `asyncparl.algorithms`, which takes a second to import.
Precision = Literal["fp32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
Optimizer = Literal["adam", "rmsprop", "rmsprop_tf"]
OPTIMIZERS: tuple[Optimizer, ...] = get_args(Optimizer)
MAX_ACTORS_PER_CPU = 16
"""More than that is taken for a slip of the keyboard."""
MAX_SEED = 2**63
"""What torch takes."""
MAX_ENVIRONMENTS = 100_000
"""Each has a seed of its own, and so have those of actors that replace others; see `environments.base`."""


class _ByAlgorithm:
    """The default of a setting that every algorithm has another value for; `TrainingConfig` puts that in its place."""

    def __repr__(self) -> str:
        return "by algorithm"


_BY_ALGORITHM: Any = _ByAlgorithm()


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """One training run. `for_this_machine` fills in what depends on the machine; the defaults here suit two cores.

    What is not given, and depends on the algorithm, is as the preset "ours" in `presets.py` says. A setting that only
    another algorithm has must not be given.

    Attributes:
        env: an Atari game ("pong") or a gymnasium id.
        algorithm: "impala", "a2c", "ppo" or "ga3c".
        env_options: how it is preprocessed; None: as `EnvironmentOptions` says.
        model: "module:Class" of the network; None: the default one for such observations.
        lstm: the default network has an LSTM, so that the policy remembers what it saw earlier in the episode.
        steps: agent steps to learn from, before the run ends.
        seed: of everything that is drawn. No two sub-environments of a run are seeded alike. Not a promise of equal
            runs: which weights an actor has when depends on timing, unless the run is repeatable.
        repeatable: actors and learner take turns, so that two runs with the same settings have the same weights bit
            for bit; see `turns.py`. Slower, and only on this machine, with one learner thread and one predictor.
        num_actors: processes that play.
        envs_per_actor: sub-environments that each plays at once. In GA3C an actor plays them in two halves: one takes
            its step while the actions of the other are on their way.
        unroll_length: steps of a sub-environment in one rollout.
        batch_size: columns of a training batch, each one unroll of one sub-environment. In A2C and PPO always
            num_actors * envs_per_actor.
        num_batches: batches in memory. One fills while the others are with the learner; each more adds policy lag.
        learning_rate: at the start. anneal_learning_rate: linearly to final_learning_rate at the last step. The paper
            did, over 200 million frames; over a run of an hour on two cores it only slows the learning down.
            final_learning_rate: None: 0.
        optimizer: see `asyncparl.algorithms.optimizers`. rms_epsilon: of the two kinds of RMSProp.
        entropy_cost: weight of the entropy bonus; final_entropy_cost: linearly to this at the last step; None: it is
            constant. schedule_steps: agent steps after which both have come to their ends; None: `steps`.
        value_cost: weight of the value loss.
        discount: gamma. lambda_: of V-trace in IMPALA, of GAE in the others.
        max_grad_norm: gradients, of sums over a batch, in PPO of means, are clipped to this norm; infinite: they are
            not.
        normalise_advantages: not IMPALA: see `asyncparl.algorithms.A2C`.
        num_epochs, num_minibatches, clip_range: PPO: see `asyncparl.algorithms.PPO`.
        log_epsilon: GA3C: what is added to the probability of an action before its logarithm is taken.
        num_predictors: GA3C: threads at the learner that choose the actions of all actors, each with its own weights.
        prediction_batch_size: GA3C: observations that a predictor takes at once, at most. It takes what waits: its
            batches grow with its load.
        compress_rollouts: on their way to the learner, for slow links between hosts: see docs/scaling.md.
        device: where the learner computes, as torch names it; GA3C's predictors too.
        precision: of the network's trunk, in the learner and wherever actions are chosen.
        learner_threads: CPU threads of the learner.
        num_learners: processes that learn, each from an equal share of every batch, which an equal share of the actors
            plays for it. `num_actors` and `batch_size` are those of all together, `learner_threads` and
            `num_predictors` those of each. The first one is in the process of the run.
        evaluate_every: agent steps between evaluations, which play whole games apart from training; None: there are
            none. evaluation_episodes: how many episodes each of them plays.
        checkpoint_interval_s: seconds between two checkpoints.
        report_interval_s: seconds between two rows of progress.csv.
        max_actor_restarts: how often one actor may die before its place stays empty. That its machine went is no death.
        cluster: "host:port" of the master of the cluster that plays; None: a private one on this machine.
    """

    env: str
    algorithm: AlgorithmName = "impala"
    env_options: EnvironmentOptions | None = None
    model: str | None = None
    lstm: bool = False
    steps: int = 10_000_000
    seed: int = 1
    repeatable: bool = False
    num_actors: int = 2
    envs_per_actor: int = _BY_ALGORITHM
    unroll_length: int = _BY_ALGORITHM
    batch_size: int = _BY_ALGORITHM
    num_batches: int = 2
    optimizer: Optimizer = _BY_ALGORITHM
    learning_rate: float = _BY_ALGORITHM
    anneal_learning_rate: bool = _BY_ALGORITHM
    final_learning_rate: float | None = None
    rms_epsilon: float = _BY_ALGORITHM
    entropy_cost: float = _BY_ALGORITHM
    final_entropy_cost: float | None = None
    schedule_steps: int | None = None
    value_cost: float = _BY_ALGORITHM
    discount: float = _BY_ALGORITHM
    lambda_: float = _BY_ALGORITHM
    max_grad_norm: float = _BY_ALGORITHM
    normalise_advantages: bool | None = _BY_ALGORITHM
    num_epochs: int | None = _BY_ALGORITHM
    num_minibatches: int | None = _BY_ALGORITHM
    clip_range: float | None = _BY_ALGORITHM
    log_epsilon: float | None = _BY_ALGORITHM
    num_predictors: int | None = _BY_ALGORITHM
    prediction_batch_size: int | None = _BY_ALGORITHM
    compress_rollouts: bool = False
    device: str = "cpu"
    precision: Precision = "fp32"
    learner_threads: int = 1
    num_learners: int = 1
    evaluate_every: int | None = None
    evaluation_episodes: int = 16
    checkpoint_interval_s: float = 300.0
    report_interval_s: float = 10.0
    max_actor_restarts: int = 3
    cluster: str | None = None

    def __post_init__(self) -> None:
        _check_name("algorithm", self.algorithm, ALGORITHM_NAMES)
        for each in fields(self):
            if getattr(self, each.name) is _BY_ALGORITHM:
                object.__setattr__(self, each.name, self._default(each.name))
        problems = list(_foreign(self)) or list(_wrong_types(self)) or list(_wrong_values(self))
        if problems:
            raise ConfigError("\n".join(problems))

    def _default(self, name: str) -> Any:
        """Of a setting that depends on the algorithm. Asked in the order of the fields.

        A rollout of every actor has to fit into a learner's share of the batch: a default fits to what is given.
        """
        defaults = DEFAULTS[self.algorithm]
        value = defaults.presets["ours"].get(name)
        if defaults.is_synchronous:
            return self.num_actors * self.envs_per_actor if name == "batch_size" else value
        if name == "batch_size" and _is_count(self.envs_per_actor) and _is_count(self.num_learners):
            return max(value or 0, self.envs_per_actor * self.num_learners)
        if name == "envs_per_actor" and _is_count(self.batch_size) and _is_count(self.num_learners):
            return max(1, min(value or 1, self.batch_size // self.num_learners))
        return value

    @classmethod
    def for_this_machine(
        cls, env: str, *, algorithm: AlgorithmName = "impala", preset: PresetName = "ours", **settings: Any
    ) -> TrainingConfig:
        """Settings for the CPUs and the GPU that this process may use. Those that are None count as not given.

        Args:
            env: as below.
            algorithm: as below.
            preset: what counts where nothing is given; see `presets.py`.
            settings: the others.

        Raises:
            ConfigError: an unknown setting, or a wrong value.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        unknown = given.keys() - {each.name for each in fields(cls)}
        if unknown:
            raise ConfigError(f"no setting is called {', '.join(sorted(unknown))}")
        _check_name("algorithm", algorithm, ALGORITHM_NAMES)
        _check_name("preset", preset, PRESET_NAMES)
        defaults = DEFAULTS[algorithm]
        machine = _machine_defaults(given.get("device"))
        threads = defaults.threads(usable_cpus(), machine["device"] == "cpu")
        chosen = {} if preset == "ours" else dict(defaults.presets[preset])  # ours the machine may overrule
        if "final_learning_rate" in given:
            chosen["anneal_learning_rate"] = True
        if given.get("repeatable"):
            threads = dict.fromkeys(threads, 1)
            chosen |= {name: 1 for name in threads if name != "num_actors"}
        threads = _shared(threads, given.get("num_learners", 1))
        config = cls(env=env, algorithm=algorithm, **(machine | threads | chosen | given))
        if "rms_epsilon" in given and config.optimizer == "adam":
            raise ConfigError("rms_epsilon is only for RMSProp, and the optimizer is adam")
        return config

    @property
    def learner_cpus(self) -> int:
        """What a learner beside the first one takes of a cluster."""
        return self.learner_threads + (self.num_predictors or 0) if self.device == "cpu" else 1

    def warnings(self) -> list[str]:
        """What is allowed, but most likely not wanted; one line each."""
        num_cpus = usable_cpus()
        if self.cluster is None and self.num_actors > num_cpus:
            return [f"{self.num_actors} actors share {num_cpus} CPUs: more actors than CPUs seldom make a run faster"]
        return []

    def replace(self, **settings: Any) -> TrainingConfig:
        """A copy with other settings, checked like the original."""
        return dataclasses.replace(self, **settings)

    def to_json(self) -> dict[str, Any]:
        """Plain values, for config.json. Settings that the algorithm does not have are left out."""
        names = [each.name for each in fields(self) if concerns(each.name, self.algorithm)]
        values = {name: getattr(self, name) for name in names}
        if self.max_grad_norm == math.inf:
            values["max_grad_norm"] = None  # JSON has no infinity
        if self.env_options is not None:
            values["env_options"] = dataclasses.asdict(self.env_options)
        return values

    @classmethod
    def from_json(cls, values: Mapping[str, Any]) -> TrainingConfig:
        """The opposite of `to_json`.

        Raises:
            ConfigError: a setting is unknown, missing or wrong.
        """
        values = dict(values)
        try:
            if values.get("env_options") is not None:
                values["env_options"] = _env_options(values["env_options"])
            if values.get("max_grad_norm", 0.0) is None:
                values["max_grad_norm"] = math.inf
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"these are not the settings of this version: {error}") from error


def _shared(threads: Mapping[str, int], num_learners: int) -> dict[str, int]:
    """What one learner would use, for several."""
    if not isinstance(num_learners, int) or num_learners <= 1:
        return dict(threads)
    each = {name: max(1, number // num_learners) for name, number in threads.items()}
    return each | {"num_actors": each["num_actors"] * num_learners}


def _machine_defaults(device: str | None) -> dict[str, Any]:
    """What depends on the machine, whatever the algorithm."""
    return {
        "device": device or ("cuda" if has_cuda() else "cpu"),
        "precision": "bf16" if has_fast_bf16() else "fp32",  # actors infer on the CPU in any case
    }


def _env_options(values: Mapping[str, Any]) -> EnvironmentOptions:
    from asyncparl.training.environments import EnvironmentOptions

    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return EnvironmentOptions(**values)


def _check_name(what: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        raise ConfigError(f"{what} must be one of {', '.join(known)}, not {name!r}")


_TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "bool": bool}


def _foreign(config: TrainingConfig) -> Iterator[str]:
    for each in fields(config):
        if not concerns(each.name, config.algorithm) and getattr(config, each.name) is not None:
            *others, last = algorithms_with(each.name)
            known = f"{', '.join(others)} and {last}" if others else last
            yield f"{each.name} is only for {known}, not for {config.algorithm}"


def _wrong_types(config: TrainingConfig) -> Iterator[str]:
    for each in fields(config):
        value = getattr(config, each.name)
        type_name = str(each.type).removesuffix(" | None")
        expected = _TYPES.get(type_name)
        if expected is None or (value is None and type_name != each.type):
            continue
        is_bool_by_mistake = isinstance(value, bool) and type_name != "bool"
        if is_bool_by_mistake or not isinstance(value, expected):
            yield f"{each.name} must be {_article(type_name)}, not {value!r}"


def _wrong_values(config: TrainingConfig) -> Iterator[str]:
    if not config.env:
        yield "env must be the name of an environment, not an empty text"
    yield from _below_limit(config)
    for name in ("discount", "lambda_"):
        if not 0 <= getattr(config, name) <= 1:
            yield f"{name} must be between 0 and 1, not {getattr(config, name)}"
    if config.log_epsilon is not None and not 0 <= config.log_epsilon < 1:
        yield f"log_epsilon must be 0 or more and less than 1, not {config.log_epsilon}"
    for name, known in (("precision", PRECISIONS), ("optimizer", OPTIMIZERS)):
        if getattr(config, name) not in known:
            yield f"{name} must be {' or '.join(known)}, not {getattr(config, name)!r}"
    yield from _unworkable(config)


_AT_LEAST_1 = (
    "steps", "num_actors", "envs_per_actor", "unroll_length", "batch_size", "learner_threads", "num_learners",
    "num_predictors", "prediction_batch_size", "num_epochs", "num_minibatches", "evaluate_every",
    "evaluation_episodes", "schedule_steps",
)  # fmt: skip
_AT_LEAST_0 = (
    "seed", "max_actor_restarts", "entropy_cost", "value_cost", "final_entropy_cost", "final_learning_rate",
)  # fmt: skip
_MORE_THAN_0 = (
    "learning_rate", "max_grad_norm", "rms_epsilon", "clip_range", "checkpoint_interval_s", "report_interval_s",
)  # fmt: skip


def _below_limit(config: TrainingConfig) -> Iterator[str]:
    """What is too small, infinite or not a number."""
    for name in _AT_LEAST_1:
        value = getattr(config, name)
        if value is not None and value < 1:
            yield f"{name} must be at least 1, not {value}"
    for name in _AT_LEAST_0:
        if not 0 <= (getattr(config, name) or 0) < math.inf:
            yield f"{name} must be 0 or more, not {getattr(config, name)}"
    for name in _MORE_THAN_0:
        value = getattr(config, name)
        if value is not None and (not 0 < value <= math.inf or (value == math.inf and name != "max_grad_norm")):
            yield f"{name} must be more than 0, not {value}"


def _unworkable(config: TrainingConfig) -> Iterator[str]:
    """What does not go together."""
    if config.lstm and config.model is not None:
        yield "lstm is for the default networks: a model of one's own has its LSTM inside; see asyncparl.rl.LSTMModel"
    if config.lstm and config.algorithm == "ppo":
        yield "lstm is not for ppo, which learns from single steps in any order"
    if config.num_batches < 2:
        yield f"num_batches must be at least 2, one to fill and one to learn from, not {config.num_batches}"
    yield from _wrong_batch_size(config)
    yield from _wrong_num_minibatches(config)
    yield from _wrong_num_learners(config)
    yield from _not_repeatable(config)
    if config.final_learning_rate is not None and not config.anneal_learning_rate:
        yield "final_learning_rate is for a learning rate that is annealed: anneal_learning_rate must be true"
    if config.seed >= MAX_SEED:
        yield f"seed must be less than {MAX_SEED}, not {config.seed}"
    num_cpus = usable_cpus()
    if config.cluster is None and config.num_actors > MAX_ACTORS_PER_CPU * num_cpus:
        yield f"{config.num_actors} actors are too many for {num_cpus} CPUs: at most {MAX_ACTORS_PER_CPU} for each"
    elif config.num_actors * config.envs_per_actor > MAX_ENVIRONMENTS:
        yield (
            f"num_actors ({config.num_actors}) times envs_per_actor ({config.envs_per_actor}) must be at most "
            f"{MAX_ENVIRONMENTS}: a run has seeds for so many environments"
        )


def _wrong_num_learners(config: TrainingConfig) -> Iterator[str]:
    num_learners, num_envs, batch_size = config.num_learners, config.envs_per_actor, config.batch_size
    if num_learners <= 1:
        return
    shared = ("num_actors",) if DEFAULTS[config.algorithm].is_synchronous else ("batch_size", "num_actors")
    for name in shared:
        if getattr(config, name) % num_learners:
            value = getattr(config, name)
            yield f"{name} ({value}) must be a multiple of num_learners ({num_learners}): each has an equal share"
    if batch_size // num_learners < num_envs <= batch_size:
        yield (
            f"envs_per_actor ({num_envs}) must not be more than the share of batch_size ({batch_size}) that each of "
            f"{num_learners} learners has: a rollout has a column for each environment"
        )
    num_cpus = usable_cpus()
    if config.cluster is None and num_learners > num_cpus:
        yield f"{num_learners} learners are too many for {num_cpus} CPUs: at most one for each"
    if config.device not in ("cpu", "cuda"):
        yield f"device must be cpu or cuda with several learners, which have a GPU each, not {config.device!r}"


def _not_repeatable(config: TrainingConfig) -> Iterator[str]:
    if not config.repeatable:
        return
    for name in ("learner_threads", "num_predictors"):
        if (getattr(config, name) or 1) > 1:
            yield f"{name} must be 1 in a repeatable run, not {getattr(config, name)}"
    if config.cluster is not None:
        yield "a repeatable run plays on this machine: cluster must not be given"


def _is_count(value: object) -> bool:
    return type(value) is int and value > 0


def _wrong_batch_size(config: TrainingConfig) -> Iterator[str]:
    num_actors, num_envs, batch_size = config.num_actors, config.envs_per_actor, config.batch_size
    if DEFAULTS[config.algorithm].is_synchronous:
        if batch_size != num_actors * num_envs >= 1:
            yield (
                f"batch_size ({batch_size}) must be num_actors ({num_actors}) times envs_per_actor ({num_envs}): "
                f"in {config.algorithm} a batch is one rollout of every actor"
            )
    elif num_envs > batch_size >= 1:
        yield (
            f"envs_per_actor ({num_envs}) must not be more than batch_size ({batch_size}): "
            "a rollout has a column for each environment"
        )
    if config.prediction_batch_size is not None and 1 <= config.prediction_batch_size < num_envs:
        yield (
            f"prediction_batch_size ({config.prediction_batch_size}) must not be less than envs_per_actor ({num_envs})"
        )


def _wrong_num_minibatches(config: TrainingConfig) -> Iterator[str]:
    if config.num_minibatches is None:
        return
    num_steps = config.unroll_length * config.batch_size // max(1, config.num_learners)
    if 1 <= num_steps < config.num_minibatches:
        yield f"num_minibatches ({config.num_minibatches}) must not be more than the {num_steps} steps of a batch"


def _article(type_name: str) -> str:
    return {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}[type_name]
