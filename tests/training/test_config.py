"""Settings: what is wrong is said at once, in one line each; what was saved comes back."""

from __future__ import annotations

import json
import os
from typing import Any

import pytest

from asyncparl import machine
from asyncparl.training import ConfigError, TrainingConfig, config
from asyncparl.training.environments import EnvironmentOptions

WRONG = [
    ({"env": ""}, "env must be the name of an environment"),
    ({"steps": 0}, "steps must be at least 1, not 0"),
    ({"steps": 1.5}, "steps must be a whole number, not 1.5"),
    ({"steps": True}, "steps must be a whole number, not True"),
    ({"seed": -1}, "seed must be 0 or more, not -1"),
    ({"num_actors": 0}, "num_actors must be at least 1"),
    ({"num_actors": 100_000}, "100000 actors are too many"),
    ({"envs_per_actor": 33}, r"envs_per_actor \(33\) must not be more than batch_size \(32\)"),
    ({"unroll_length": -20}, "unroll_length must be at least 1"),
    ({"batch_size": 0, "envs_per_actor": 1}, "batch_size must be at least 1"),
    ({"num_batches": 1}, "num_batches must be at least 2"),
    ({"learning_rate": 0.0}, "learning_rate must be more than 0"),
    ({"learning_rate": float("nan")}, "learning_rate must be more than 0, not nan"),
    ({"learning_rate": float("inf")}, "learning_rate must be more than 0, not inf"),
    ({"learning_rate": "fast"}, "learning_rate must be a number, not 'fast'"),
    ({"anneal_learning_rate": 1}, "anneal_learning_rate must be true or false, not 1"),
    ({"entropy_cost": -0.01}, "entropy_cost must be 0 or more"),
    ({"discount": 1.01}, "discount must be between 0 and 1"),
    ({"max_grad_norm": 0}, "max_grad_norm must be more than 0"),
    ({"precision": "fp16"}, "precision must be fp32 or bf16, not 'fp16'"),
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
