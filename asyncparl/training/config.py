"""The settings of a run: typed, checked as a whole when they are made, and saved beside the results.

This module imports nothing heavy, so that `--help` can show the defaults.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, get_args

from asyncparl.machine import usable_cpus
from asyncparl.training.errors import ConfigError
from asyncparl.training.machine import has_cuda, has_fast_bf16

if TYPE_CHECKING:
    from asyncparl.training.environments import EnvironmentOptions

Precision = Literal["fp32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
MAX_ACTORS_PER_CPU = 16
"""More than that is taken for a slip of the keyboard."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingConfig:
    """One training run. `for_this_machine` fills in what depends on the machine; the defaults here suit two cores.

    Attributes:
        env: an Atari game ("pong") or a gymnasium id.
        env_options: how it is preprocessed; None: as `EnvironmentOptions` says.
        model: "module:Class" of the network; None: the default one for such observations.
        steps: agent steps to learn from, before the run ends.
        seed: of everything that is drawn. No two sub-environments of a run are seeded alike. Not a promise of equal
            runs: which weights an actor has when depends on timing.
        num_actors: processes that play.
        envs_per_actor: sub-environments that each plays at once.
        unroll_length: steps of a sub-environment in one rollout.
        batch_size: columns of a training batch, each one unroll of one sub-environment.
        num_batches: batches in memory. One fills while the others are with the learner; each more adds policy lag.
        learning_rate: at the start. anneal_learning_rate: linearly to 0 at the last step. The paper did, over 200
            million frames; over a run of an hour on two cores it only slows the learning down.
        entropy_cost: weight of the entropy bonus. value_cost: weight of the value loss.
        discount: gamma. max_grad_norm: gradients, of sums over a batch, are clipped to this norm.
        rms_epsilon: of the optimizer, RMSProp.
        device: where the learner computes, as torch names it.
        precision: of the network's trunk, in the learner and in the actors.
        learner_threads: CPU threads of the learner.
        checkpoint_interval_s: seconds between two checkpoints.
        report_interval_s: seconds between two rows of progress.csv.
        max_actor_restarts: how often one actor may die before its place stays empty. That its machine went is no death.
        cluster: "host:port" of the master of the cluster that plays; None: a private one on this machine.
    """

    env: str
    env_options: EnvironmentOptions | None = None
    model: str | None = None
    steps: int = 10_000_000
    seed: int = 1
    num_actors: int = 2
    envs_per_actor: int = 16
    unroll_length: int = 20
    batch_size: int = 32
    num_batches: int = 2
    learning_rate: float = 6e-4
    anneal_learning_rate: bool = False
    entropy_cost: float = 0.01
    value_cost: float = 0.5
    discount: float = 0.99
    max_grad_norm: float = 40.0
    rms_epsilon: float = 0.01
    device: str = "cpu"
    precision: Precision = "fp32"
    learner_threads: int = 1
    checkpoint_interval_s: float = 300.0
    report_interval_s: float = 10.0
    max_actor_restarts: int = 3
    cluster: str | None = None

    def __post_init__(self) -> None:
        problems = list(_wrong_types(self)) or list(_wrong_values(self))
        if problems:
            raise ConfigError("\n".join(problems))

    @classmethod
    def for_this_machine(cls, env: str, **settings: Any) -> TrainingConfig:
        """The defaults for the CPUs and the GPU that this process may use. Settings that are None count as not given.

        Raises:
            ConfigError: an unknown setting, or a wrong value.
        """
        given = {name: value for name, value in settings.items() if value is not None}
        unknown = given.keys() - {each.name for each in fields(cls)}
        if unknown:
            raise ConfigError(f"no setting is called {', '.join(sorted(unknown))}")
        return cls(env=env, **(_machine_defaults(usable_cpus(), given.get("device")) | given))

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
        """Plain values, for config.json."""
        values = {each.name: getattr(self, each.name) for each in fields(self)}
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
            return cls(**values)
        except TypeError as error:
            raise ConfigError(f"these are not the settings of this version: {error}") from error


def _machine_defaults(num_cpus: int, device: str | None) -> dict[str, Any]:
    """What depends on the machine.

    A core plays about 2,700 Atari steps a second with the policy included, and learns from 4,800 in bf16: without a
    GPU the learner needs a third of the cores. On two of them, two actors and one learner thread leave none idle.
    """
    device = device or ("cuda" if has_cuda() else "cpu")
    on_cpu = device == "cpu"
    learner_threads = max(1, num_cpus // 3) if on_cpu else 1
    return {
        "device": device,
        "precision": "bf16" if has_fast_bf16() else "fp32",  # actors infer on the CPU in any case
        "learner_threads": learner_threads,
        "num_actors": max(1, min(num_cpus, 2), num_cpus - learner_threads),
    }


def _env_options(values: Mapping[str, Any]) -> EnvironmentOptions:
    from asyncparl.training.environments import EnvironmentOptions

    values = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
    return EnvironmentOptions(**values)


_TYPES: dict[str, type | tuple[type, ...]] = {"int": int, "float": (int, float), "str": str, "bool": bool}


def _wrong_types(config: TrainingConfig) -> Iterator[str]:
    for each in fields(config):
        value = getattr(config, each.name)
        expected = _TYPES.get(str(each.type))
        is_bool_by_mistake = isinstance(value, bool) and each.type != "bool"
        if expected is not None and (is_bool_by_mistake or not isinstance(value, expected)):
            yield f"{each.name} must be {_article(str(each.type))}, not {value!r}"


def _wrong_values(config: TrainingConfig) -> Iterator[str]:
    if not config.env:
        yield "env must be the name of an environment, not an empty text"
    for name in ("steps", "num_actors", "envs_per_actor", "unroll_length", "batch_size", "learner_threads"):
        if getattr(config, name) < 1:
            yield f"{name} must be at least 1, not {getattr(config, name)}"
    for name in ("seed", "max_actor_restarts", "entropy_cost", "value_cost"):
        if not 0 <= getattr(config, name) < math.inf:
            yield f"{name} must be 0 or more, not {getattr(config, name)}"
    for name in ("learning_rate", "max_grad_norm", "rms_epsilon", "checkpoint_interval_s", "report_interval_s"):
        if not 0 < getattr(config, name) < math.inf:
            yield f"{name} must be more than 0, not {getattr(config, name)}"
    if not 0 <= config.discount <= 1:
        yield f"discount must be between 0 and 1, not {config.discount}"
    yield from _unworkable(config)


def _unworkable(config: TrainingConfig) -> Iterator[str]:
    if config.precision not in PRECISIONS:
        yield f"precision must be {' or '.join(PRECISIONS)}, not {config.precision!r}"
    if config.num_batches < 2:
        yield f"num_batches must be at least 2, one to fill and one to learn from, not {config.num_batches}"
    if config.envs_per_actor > config.batch_size >= 1:
        yield (
            f"envs_per_actor ({config.envs_per_actor}) must not be more than batch_size ({config.batch_size}): "
            "a rollout has a column for each environment"
        )
    num_cpus = usable_cpus()
    if config.cluster is None and config.num_actors > MAX_ACTORS_PER_CPU * num_cpus:
        yield f"{config.num_actors} actors are too many for {num_cpus} CPUs: at most {MAX_ACTORS_PER_CPU} for each"


def _article(type_name: str) -> str:
    return {"int": "a whole number", "float": "a number", "str": "a text", "bool": "true or false"}[type_name]
