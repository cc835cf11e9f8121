"""Settings: what is wrong is said at once, in one line each; what was saved comes back."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from asyncparl import machine
from asyncparl.algorithms import actor_critic, optimizers
from asyncparl.training import ConfigError, TrainingConfig, config
from asyncparl.training.environments import EnvironmentOptions
from asyncparl.training.prepare import CHANGEABLE, CHANGEABLE_ENV_OPTIONS, change_config
from asyncparl.training.presets import ALGORITHM_NAMES, DEFAULTS, PRESET_NAMES, concerns
from asyncparl.training.recipes import RECIPES

WRONG = [
    ({"env": ""}, "env must be the name of an environment"),
    ({"steps": 0}, "steps must be at least 1, not 0"),
    ({"steps": 1.5}, "steps must be a whole number, not 1.5"),
    ({"steps": True}, "steps must be a whole number, not True"),
    ({"seed": -1}, "seed must be 0 or more, not -1"),
    ({"seed": 2**63}, "seed must be less than 9223372036854775808, not 9223372036854775808"),
    ({"envs_per_actor": 60_000, "batch_size": 60_000}, r"num_actors \(2\) times envs_per_actor \(60000\) must be at "),
    ({"num_actors": 0}, "num_actors must be at least 1"),
    ({"num_actors": 100_000}, "100000 actors are too many"),
    ({"envs_per_actor": 33, "batch_size": 32}, r"envs_per_actor \(33\) must not be more than batch_size \(32\)"),
    ({"unroll_length": -20}, "unroll_length must be at least 1"),
    ({"batch_size": 0, "envs_per_actor": 1}, "batch_size must be at least 1"),
    ({"num_batches": 1}, "num_batches must be at least 2"),
    ({"learning_rate": 0.0}, "learning_rate must be more than 0"),
    ({"learning_rate": float("nan")}, "learning_rate must be more than 0, not nan"),
    ({"learning_rate": float("inf")}, "learning_rate must be more than 0, not inf"),
    ({"learning_rate": "fast"}, "learning_rate must be a number, not 'fast'"),
    ({"anneal_learning_rate": 1}, "anneal_learning_rate must be true or false, not 1"),
    ({"entropy_cost": -0.01}, "entropy_cost must be 0 or more"),
    ({"final_entropy_cost": -0.01}, "final_entropy_cost must be 0 or more, not -0.01"),
    ({"final_learning_rate": 1e-5}, "final_learning_rate is for a learning rate that is annealed"),
    ({"final_learning_rate": float("inf"), "anneal_learning_rate": True}, "final_learning_rate must be 0 or more"),
    ({"schedule_steps": 0}, "schedule_steps must be at least 1, not 0"),
    ({"evaluate_every": 0}, "evaluate_every must be at least 1, not 0"),
    ({"discount": 1.01}, "discount must be between 0 and 1"),
    ({"max_grad_norm": 0}, "max_grad_norm must be more than 0"),
    ({"max_grad_norm": float("nan")}, "max_grad_norm must be more than 0, not nan"),
    ({"lambda_": -0.1}, "lambda_ must be between 0 and 1, not -0.1"),
    ({"precision": "fp16"}, "precision must be fp32 or bf16, not 'fp16'"),
    ({"optimizer": "sgd"}, "optimizer must be adam or rmsprop or rmsprop_tf, not 'sgd'"),
    ({"algorithm": "dqn"}, "algorithm must be one of impala, a2c, ppo, ga3c, not 'dqn'"),
    ({"num_epochs": 3}, "num_epochs is only for ppo, not for impala"),
    ({"algorithm": "ppo", "num_epochs": 0}, "num_epochs must be at least 1, not 0"),
    ({"algorithm": "ppo", "num_minibatches": 2.5}, "num_minibatches must be a whole number, not 2.5"),
    (
        {"algorithm": "ppo", "num_minibatches": 2049},
        r"num_minibatches \(2049\) must not be more than the 2048 steps",
    ),
    ({"algorithm": "ppo", "clip_range": 0}, "clip_range must be more than 0, not 0"),
    ({"algorithm": "ppo", "lstm": True}, "lstm is not for ppo, which learns from single steps in any order"),
    ({"log_epsilon": 1e-6}, "log_epsilon is only for ga3c, not for impala"),
    ({"normalise_advantages": False}, "normalise_advantages is only for a2c, ppo and ga3c, not for impala"),
    ({"algorithm": "a2c", "num_predictors": 1}, "num_predictors is only for ga3c, not for a2c"),
    ({"algorithm": "a2c", "batch_size": 33}, r"batch_size \(33\) must be num_actors \(2\) times envs_per_actor \(16\)"),
    ({"algorithm": "a2c", "normalise_advantages": 1}, "normalise_advantages must be true or false, not 1"),
    ({"algorithm": "ga3c", "log_epsilon": 1.0}, "log_epsilon must be 0 or more and less than 1, not 1.0"),
    ({"algorithm": "ga3c", "log_epsilon": "small"}, "log_epsilon must be a number, not 'small'"),
    ({"algorithm": "ga3c", "num_predictors": 0}, "num_predictors must be at least 1, not 0"),
    ({"algorithm": "ga3c", "num_predictors": 1.5}, "num_predictors must be a whole number, not 1.5"),
    (
        {"algorithm": "ga3c", "prediction_batch_size": 31},
        r"prediction_batch_size \(31\) must not be less than envs_per_",
    ),
    ({"learner_threads": 0}, "learner_threads must be at least 1"),
    ({"checkpoint_interval_s": 0}, "checkpoint_interval_s must be more than 0"),
    ({"max_actor_restarts": -1}, "max_actor_restarts must be 0 or more"),
]


@pytest.mark.parametrize(("settings", "line"), WRONG)
def test_a_wrong_value_is_named_in_one_line(settings: dict[str, Any], line: str) -> None:
    with pytest.raises(ConfigError, match=f"^{line}") as caught:
        TrainingConfig(**({"env": "pong"} | settings))
    assert "\n" not in str(caught.value)


def test_all_wrong_values_are_named_together() -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingConfig(env="pong", steps=0, discount=2.0)
    assert str(caught.value).splitlines() == [
        "steps must be at least 1, not 0",
        "discount must be between 0 and 1, not 2.0",
    ]


def test_settings_come_back_from_json_as_they_were() -> None:
    options = EnvironmentOptions(frame_skip=2, screen_size=(42, 42))
    original = TrainingConfig(env="pong", env_options=options, steps=5, learning_rate=1e-4)
    text = json.dumps(original.to_json())
    assert TrainingConfig.from_json(json.loads(text)) == original


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
@pytest.mark.parametrize("preset", PRESET_NAMES)
def test_every_preset_is_sound_and_comes_back_from_json(algorithm: Any, preset: Any) -> None:
    chosen = TrainingConfig.for_this_machine("pong", algorithm=algorithm, preset=preset, device="cpu")
    for name, value in DEFAULTS[algorithm].presets[preset].items():
        if preset != "ours" or name != "num_predictors":  # which is by the machine
            assert getattr(chosen, name) == value, name
    text = json.dumps(chosen.to_json(), allow_nan=False)
    assert TrainingConfig.from_json(json.loads(text)) == chosen


def test_what_is_not_given_is_as_our_preset_says() -> None:
    for algorithm in ALGORITHM_NAMES:
        chosen = TrainingConfig(env="pong", algorithm=algorithm)
        for name, value in DEFAULTS[algorithm].presets["ours"].items():
            assert getattr(chosen, name) == value, name


def test_only_the_settings_of_the_algorithm_are_saved() -> None:
    saved = {name: TrainingConfig(env="pong", algorithm=name).to_json() for name in ALGORITHM_NAMES}
    assert "log_epsilon" in saved["ga3c"] and "log_epsilon" not in saved["a2c"]
    assert "normalise_advantages" in saved["a2c"] and "normalise_advantages" not in saved["impala"]
    assert saved["a2c"]["batch_size"] == 32
    assert not any(value is None for name, value in saved["impala"].items() if name not in NONE_BY_DEFAULT)


NONE_BY_DEFAULT = (
    "env_options", "model", "cluster", "evaluate_every", "final_learning_rate", "final_entropy_cost", "schedule_steps",
)  # fmt: skip


def test_settings_that_were_saved_before_there_were_other_algorithms_are_impalas() -> None:
    old = {"env": "pong", "steps": 5, "num_actors": 1, "envs_per_actor": 4, "rms_epsilon": 0.02}
    assert TrainingConfig.from_json(old) == TrainingConfig(algorithm="impala", **old)


def test_a_batch_of_a2c_is_one_rollout_of_every_actor() -> None:
    chosen = TrainingConfig(env="pong", algorithm="a2c", num_actors=3, envs_per_actor=5)
    assert chosen.batch_size == 15
    assert chosen.replace(num_actors=6, batch_size=30).batch_size == 30
    with pytest.raises(ConfigError, match=r"^batch_size \(15\) must be num_actors \(6\)"):
        chosen.replace(num_actors=6)


def test_an_epsilon_for_an_optimizer_that_has_none_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^rms_epsilon is only for RMSProp, and the optimizer is adam$"):
        TrainingConfig.for_this_machine("pong", optimizer="adam", rms_epsilon=0.1)


def test_an_unknown_preset_is_an_error() -> None:
    with pytest.raises(ConfigError, match=r"^preset must be one of ours, paper, parl, not 'mine'$"):
        TrainingConfig.for_this_machine("pong", preset="mine")  # type: ignore[arg-type]


def test_names_are_the_same_wherever_they_are_written() -> None:
    assert config.OPTIMIZERS == optimizers.OPTIMIZERS
    assert set(config.PRECISIONS) == set(actor_critic.PRECISIONS)
    assert RECIPES.keys() == DEFAULTS.keys() == set(ALGORITHM_NAMES)
    assert all(tuple(defaults.presets) == PRESET_NAMES for defaults in DEFAULTS.values())


def test_settings_of_another_version_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"not the settings of this version.*'lr'"):
        TrainingConfig.from_json({"env": "pong", "lr": 1.0})


def test_a_copy_is_checked_like_the_original() -> None:
    with pytest.raises(ConfigError, match="steps must be at least 1"):
        TrainingConfig(env="pong").replace(steps=0)


@pytest.mark.parametrize(
    ("num_cpus", "device", "num_actors", "learner_threads"),
    [(1, "cpu", 1, 1), (2, "cpu", 2, 1), (4, "cpu", 3, 1), (32, "cpu", 22, 10), (2, "cuda", 2, 1), (16, "cuda", 15, 1)],
)
def test_every_core_has_work(
    num_cpus: int, device: str, num_actors: int, learner_threads: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "usable_cpus", lambda: num_cpus)
    chosen = TrainingConfig.for_this_machine("pong", device=device)
    assert (chosen.num_actors, chosen.learner_threads) == (num_actors, learner_threads)
    assert chosen.warnings() == []


@pytest.mark.parametrize(
    ("algorithm", "num_cpus", "device", "expected"),
    [
        ("a2c", 1, "cpu", (1, 1, None)),
        ("a2c", 2, "cpu", (2, 2, None)),
        ("a2c", 16, "cpu", (16, 16, None)),
        ("a2c", 16, "cuda", (16, 1, None)),
        ("ga3c", 1, "cpu", (1, 1, 1)),
        ("ga3c", 2, "cpu", (2, 1, 1)),
        ("ga3c", 32, "cpu", (18, 10, 4)),
        ("ga3c", 16, "cuda", (14, 1, 1)),
    ],
)
def test_cores_are_shared_as_the_algorithm_needs_them(
    algorithm: Any, num_cpus: int, device: str, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "usable_cpus", lambda: num_cpus)
    chosen = TrainingConfig.for_this_machine("pong", algorithm=algorithm, device=device)
    assert (chosen.num_actors, chosen.learner_threads, chosen.num_predictors) == expected
    assert chosen.warnings() == []


@pytest.mark.parametrize(("is_fast", "precision"), [(True, "bf16"), (False, "fp32")])
def test_bf16_is_chosen_where_the_cpu_multiplies_it(
    is_fast: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "has_fast_bf16", lambda: is_fast)
    assert TrainingConfig.for_this_machine("pong", device="cpu").precision == precision


def test_given_settings_win_and_none_counts_as_not_given() -> None:
    chosen = TrainingConfig.for_this_machine("pong", num_actors=1, learner_threads=None, device="cpu")
    assert chosen.num_actors == 1
    assert chosen.learner_threads >= 1


def test_an_unknown_setting_is_an_error() -> None:
    with pytest.raises(ConfigError, match="no setting is called actors"):
        TrainingConfig.for_this_machine("pong", actors=2)


def test_more_actors_than_cpus_are_a_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config, "usable_cpus", lambda: 2)
    (warning,) = TrainingConfig(env="pong", num_actors=3).warnings()
    assert "3 actors share 2 CPUs" in warning


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="needs an affinity")
def test_cpus_that_are_not_ours_do_not_count() -> None:
    allowed = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(allowed)})
        assert machine.usable_cpus() == 1
    finally:
        os.sched_setaffinity(0, allowed)


@pytest.mark.parametrize(("text", "num_cpus"), [("150000 100000", 2), ("max 100000", None), ("", None)])
def test_the_quota_of_a_container_counts(
    text: str, num_cpus: int | None, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "cpu.max").write_text(text)
    monkeypatch.setattr(machine, "_CGROUP_CPUS", tmp_path / "cpu.max")
    assert machine._cgroup_cpus() == num_cpus


@pytest.mark.parametrize("algorithm", ALGORITHM_NAMES)
def test_the_documentation_shows_the_presets_as_they_are(algorithm: Any) -> None:
    text = (Path(__file__).parents[2] / "docs" / "algorithms.md").read_text()
    section = text.partition(f"\n## {DEFAULTS[algorithm].title}\n")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| `(\w+)` \| (\S.*?) \| (\S.*?) \| (\S.*?) \|$", section, re.MULTILINE)
    for number, preset in enumerate(PRESET_NAMES, start=1):
        settings = DEFAULTS[algorithm].presets[preset]
        shown = {row[0]: row[number].replace("none", "inf") for row in rows if row[number] != "by the machine"}
        by_the_machine = {"num_predictors"} if preset == "ours" else set()
        assert shown == {name: str(value) for name, value in settings.items() if name not in by_the_machine}


# --- several learners -----------------------------------------------------------------------------------------


def _learners(algorithm: Any = "impala", **settings: Any) -> TrainingConfig:
    sizes = {} if algorithm in ("a2c", "ppo") else {"batch_size": 16}
    small = {"env": "pong", "algorithm": algorithm, "num_learners": 2, "num_actors": 2, "envs_per_actor": 8}
    return TrainingConfig(**{**small, **sizes, **settings})


@pytest.mark.parametrize(
    ("settings", "line"),
    [
        ({"num_learners": 0}, r"^num_learners must be at least 1, not 0$"),
        (
            {"num_learners": 3, "num_actors": 3, "envs_per_actor": 1},
            r"^batch_size \(16\) must be a multiple of ",
        ),
        ({"num_learners": 4, "envs_per_actor": 4}, r"^num_actors \(2\) must be a multiple of num_learners \(4\): each"),
        ({"algorithm": "a2c", "num_actors": 3}, r"^num_actors \(3\) must be a multiple of num_learners \(2\): each"),
        ({"num_actors": 4, "num_learners": 4}, r"^envs_per_actor \(8\) must not be more than the share of batch_size"),
        ({"num_actors": 8, "num_learners": 8, "envs_per_actor": 1}, r"^8 learners are too many for 4 CPUs"),
        ({"device": "cuda:1"}, r"^device must be cpu or cuda with several learners"),
    ],
)
def test_learners_that_cannot_have_equal_shares_are_refused_in_one_line(
    settings: dict[str, Any], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "usable_cpus", lambda: 4)
    with pytest.raises(ConfigError, match=line) as caught:
        _learners(**settings)
    assert len(str(caught.value).splitlines()) == 1


@pytest.mark.parametrize(
    ("algorithm", "num_cpus", "expected"),
    [
        ("impala", 2, (2, 1, None)),
        ("impala", 32, (22, 5, None)),
        ("a2c", 32, (32, 16, None)),
        ("ga3c", 32, (18, 5, 2)),
    ],
)
def test_learners_share_the_cores_of_one(
    algorithm: Any, num_cpus: int, expected: tuple[Any, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "usable_cpus", lambda: num_cpus)
    chosen = TrainingConfig.for_this_machine("pong", algorithm=algorithm, num_learners=2, device="cpu")
    assert (chosen.num_actors, chosen.learner_threads, chosen.num_predictors) == expected
    in_turns = TrainingConfig.for_this_machine(
        "pong", algorithm=algorithm, num_learners=2, device="cpu", repeatable=True
    )
    assert (in_turns.num_actors, in_turns.learner_threads) == (2, 1)


# --- resumed runs

CHANGEABLE_VALUES = {
    "steps": 5, "repeatable": True, "num_actors": 3, "envs_per_actor": 4, "num_batches": 3, "num_predictors": 2,
    "prediction_batch_size": 256, "compress_rollouts": True, "device": "cuda", "precision": "bf16",
    "learner_threads": 3, "num_learners": 2, "schedule_steps": 7, "evaluate_every": 9, "evaluation_episodes": 3,
    "checkpoint_interval_s": 2.0, "report_interval_s": 2.0, "max_actor_restarts": 0, "cluster": "alpha:8010",
}  # fmt: skip
"""Another value than the default for each setting that a resumed run may change."""

OTHER_RUN_VALUES = {
    "env": "pong", "algorithm": "a2c", "env_options": EnvironmentOptions(clip_rewards=True), "model": "mine:Mine",
    "lstm": True, "seed": 2, "unroll_length": 7, "batch_size": 64, "optimizer": "adam", "learning_rate": 0.1,
    "anneal_learning_rate": True, "final_learning_rate": 0.1, "rms_epsilon": 0.5, "entropy_cost": 0.5,
    "final_entropy_cost": 0.5, "value_cost": 0.1, "discount": 0.5, "lambda_": 0.5, "max_grad_norm": 1.0,
    "normalise_advantages": True, "log_epsilon": 0.1, "num_epochs": 1, "num_minibatches": 2, "clip_range": 0.3,
}  # fmt: skip
"""The same for each setting that would make it another run."""


@pytest.mark.parametrize("name", TrainingConfig.__dataclass_fields__)
def test_what_does_not_change_what_is_learned_can_be_changed_when_a_run_is_resumed(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(config, "usable_cpus", lambda: 4)
    before = TrainingConfig(env="CartPole-v1", algorithm="ga3c" if concerns(name, "ga3c") else "ppo", num_actors=4)
    if name in CHANGEABLE_VALUES:
        assert getattr(change_config(before, {name: CHANGEABLE_VALUES[name]}), name) == CHANGEABLE_VALUES[name]
    else:
        with pytest.raises(ConfigError, match=f"^{name}.* cannot be changed when a run is resumed: that would be"):
            change_config(before, {name: OTHER_RUN_VALUES[name]})


def test_threads_of_the_emulator_can_be_changed_and_nothing_else_of_the_environment() -> None:
    before = TrainingConfig(env="pong", env_options=EnvironmentOptions(frame_skip=3))
    more_threads = EnvironmentOptions(frame_skip=3, num_threads=4)
    assert change_config(before, {"env_options": more_threads}).env_options == more_threads
    with pytest.raises(ConfigError, match=r"^env_options.frame_skip cannot be changed when a run is resumed"):
        change_config(before, {"env_options": EnvironmentOptions(num_threads=4)})


def test_in_a2c_the_environments_may_be_shared_otherwise_among_actors_but_the_batch_stays() -> None:
    before = TrainingConfig(env="pong", algorithm="a2c", num_actors=2, envs_per_actor=8)
    after = change_config(before, {"num_actors": 4, "envs_per_actor": 4})
    assert (after.num_actors, after.envs_per_actor, after.batch_size) == (4, 4, 16)
    line = r"^num_actors \(4\) times envs_per_actor \(8\) must stay 16 when a run is resumed: in a2c that is the batch$"
    with pytest.raises(ConfigError, match=line):
        change_config(before, {"num_actors": 4})


def test_the_documentation_lists_what_can_be_changed_when_a_run_is_resumed() -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    section = text.partition("## Resuming a run")[2].partition("\n## ")[0]
    listed = set(re.findall(r"`(\w+)`", section.partition("|---|")[2].partition("\n\n")[0]))
    assert listed == CHANGEABLE | CHANGEABLE_ENV_OPTIONS


@pytest.mark.parametrize(
    ("given", "envs_per_actor", "batch_size"),
    [
        ({}, 16, 16),
        ({"envs_per_actor": 32}, 32, 32),
        ({"num_learners": 2}, 16, 32),
        ({"envs_per_actor": 4, "num_learners": 2}, 4, 16),
        ({"batch_size": 8}, 8, 8),
        ({"batch_size": 24, "num_learners": 2}, 12, 24),
        ({"algorithm": "ga3c"}, 64, 128),
        ({"algorithm": "ga3c", "batch_size": 32}, 32, 32),
        ({"algorithm": "a2c", "envs_per_actor": 3}, 3, 6),
    ],
    ids=str,
)
def test_a_default_fits_to_what_is_given(given: dict[str, Any], envs_per_actor: int, batch_size: int) -> None:
    config = TrainingConfig(env="pong", num_actors=2, **given)
    assert (config.envs_per_actor, config.batch_size) == (envs_per_actor, batch_size)
