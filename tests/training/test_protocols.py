"""The Atari protocols: what they say is what is played, and what the documentation shows."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from asyncparl.cli.env_options import make_env_options
from asyncparl.training import TrainingConfig
from asyncparl.training.environments import EnvironmentOptions, make_environment
from asyncparl.training.evaluation import EvaluationSetup
from asyncparl.training.protocols import PROTOCOL_NAMES, PROTOCOLS


def test_mnih_2015_and_machado_2018_differ_where_the_papers_do() -> None:
    mnih, machado = (EnvironmentOptions.for_protocol(name) for name in PROTOCOL_NAMES)
    assert (mnih.sticky_action_probability, mnih.noop_max, mnih.episodic_life) == (0.0, 30, True)
    assert (machado.sticky_action_probability, machado.noop_max, machado.episodic_life) == (0.25, 0, False)
    assert (mnih.full_action_set, machado.full_action_set) == (False, True)
    assert (mnih.max_frames, machado.max_frames) == (18_000, 18_000)


def test_the_defaults_are_as_they_were() -> None:
    ours = EnvironmentOptions()
    assert (ours.sticky_action_probability, ours.noop_max, ours.episodic_life) == (0.0, 30, False)
    assert (ours.full_action_set, ours.max_frames, ours.fire_on_reset) == (False, 108_000, True)


@pytest.mark.parametrize("protocol", PROTOCOL_NAMES)
def test_a_protocol_is_played(protocol: Any) -> None:
    options = EnvironmentOptions.for_protocol(protocol, max_frames=2_000)
    environment = make_environment("breakout", num_envs=2, seed=1, options=options)
    assert environment.num_actions == (18 if protocol == "machado2018" else 4)
    environment.reset()
    streams = []
    lives = 0
    for step in range(500):
        transition = environment.step(np.full(2, 1 if step % 20 == 0 else 2))
        lives += int(transition.terminated[0])
        streams.append(transition.next_obs.copy())
    games = environment.take_episodes()
    environment.close()
    assert games and all(game.length <= 500 for game in games)
    if protocol == "mnih2015":
        assert lives > len(games) / 2  # a game has five of them
    else:
        # No no-ops: what differs between two copies that do the same is what stuck.
        assert any((obs[0] != obs[1]).any() for obs in streams)


def test_options_win_over_the_protocol_and_evaluations_are_of_whole_games() -> None:
    options = make_env_options("pong", "mnih2015", {"noop_max": 5}, ["max_frames=108000", "noop_max=30"])
    assert options == EnvironmentOptions.for_protocol("mnih2015", max_frames=108_000)
    config = TrainingConfig(env="pong", env_options=options)
    assert TrainingConfig.from_json(config.to_json()) == config
    evaluated = EvaluationSetup(config, None).options()
    assert (evaluated.episodic_life, evaluated.clip_rewards, evaluated.max_frames) == (False, False, 108_000)
    with pytest.raises(ValueError, match=r"^protocol must be one of mnih2015, machado2018, got 'mine'$"):
        EnvironmentOptions.for_protocol("mine")  # type: ignore[arg-type]


def test_the_documentation_shows_the_protocols_as_they_are() -> None:
    text = (Path(__file__).parents[2] / "docs" / "training.md").read_text()
    rows = re.findall(
        r"^\| `(\w+)` \| (\S+) \| (\S+) \| (\S+) \| ", text.partition("\n## Atari protocols")[2], re.MULTILINE
    )
    ours = EnvironmentOptions(clip_rewards=True)
    shown = {row[0]: row[1:] for row in rows}
    assert shown.keys() == PROTOCOLS["mnih2015"].keys() == PROTOCOLS["machado2018"].keys()
    for name, values in shown.items():
        actual = [*(PROTOCOLS[protocol][name] for protocol in PROTOCOL_NAMES), getattr(ours, name)]
        assert list(values) == [str(value).lower().removesuffix(".0") for value in actual], name
