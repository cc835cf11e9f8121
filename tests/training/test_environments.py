"""Environments: whatever the simulator does, the same stream of observations, flags and statistics comes out."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Box, Dict, Discrete
from numpy.typing import NDArray

from asyncparl.training.environments import (
    CATCH_ID,
    COUNTER_ID,
    RECALL_ID,
    EnvironmentOptions,
    Episode,
    Transition,
    VectorEnvironment,
    environment_seed,
    find_atari_game,
    make_environment,
)

Make = Callable[..., VectorEnvironment]


@pytest.fixture
def make() -> Iterator[Make]:
    """`make_environment` with options as keywords; closes what was made."""
    made: list[VectorEnvironment] = []

    def make(env_id: str, num_envs: int = 2, seed: int = 0, **options: object) -> VectorEnvironment:
        made.append(
            make_environment(env_id, num_envs=num_envs, seed=seed, options=EnvironmentOptions(**options))  # type: ignore[arg-type]
        )
        return made[-1]

    yield make
    for environment in made:
        environment.close()


def play(environment: VectorEnvironment, num_steps: int, seed: int = 0) -> tuple[NDArray[np.generic], list[Transition]]:
    """Reset, then random actions: the first observations and every transition."""
    rng = np.random.default_rng(seed)
    first = environment.reset()
    actions = rng.integers(environment.num_actions, size=(num_steps, environment.num_envs))
    return first, [environment.step(a) for a in actions]


def test_recall_shows_its_cue_once_and_pays_for_the_answer_alone(make: Make) -> None:
    environment = make(RECALL_ID, num_envs=5, arguments={"num_cues": 4, "delay": 2})
    cues = set()
    first = environment.reset()
    for _ in range(20):
        cue = first.argmax(1)
        cues |= set(cue.tolist())
        answers = np.array([cue[0], (cue[1] + 1) % 4, cue[2], cue[3], cue[4]])
        waiting = [environment.step(cue) for _ in range(3)]
        last = environment.step(answers)
        assert np.array_equal(first, np.eye(5)[cue])
        assert [t.next_obs.tolist() for t in waiting[:2]] == [[[0.0] * 5] * 5] * 2
        assert waiting[2].next_obs.tolist() == [[0.0, 0.0, 0.0, 0.0, 1.0]] * 5
        assert not any(t.rewards.any() or t.terminated.any() or t.truncated.any() for t in waiting)
        assert last.rewards.tolist() == [1.0, 0.0, 1.0, 1.0, 1.0]
        assert last.terminated.all()
        first = last.next_obs
    assert cues == {0, 1, 2, 3}


# --- the interface, on gymnasium environments


def test_an_episode_that_ends_is_followed_in_the_same_step_by_the_next_one(make: Make) -> None:
    environment = make(COUNTER_ID, num_envs=1, seed=0)  # lengths 3, 4, 5, 6, 7, and the time limit is 5
    assert environment.reset().tolist() == [[0, 0, 0]]
    steps = [environment.step(np.array([0])) for _ in range(3)]
    assert [s.next_obs.tolist() for s in steps] == [[[0, 0, 1]], [[0, 0, 2]], [[0, 1, 0]]]
    assert [s.terminated.tolist() for s in steps] == [[False], [False], [True]]
    assert not any(s.truncated.any() or len(s.final_obs) for s in steps)


def test_a_truncated_episode_hands_out_its_true_last_observation(make: Make) -> None:
    environment = make(COUNTER_ID, num_envs=2, seed=3)  # the first episodes would take 6 and 7 steps
    environment.reset()
    last = [environment.step(np.zeros(2, np.int64)) for _ in range(5)][-1]
    assert last.truncated.all() and not last.terminated.any()
    assert last.final_obs.tolist() == [[3, 0, 5], [4, 0, 5]]
    assert last.final_indices.tolist() == [0, 1]
    assert last.next_obs.tolist() == [[3, 1, 0], [4, 1, 0]]

    # and Counter overwrites its only array at every step, which must not show
    environment.step(np.zeros(2, np.int64))
    assert last.final_obs.tolist() == [[3, 0, 5], [4, 0, 5]]
    assert last.next_obs.tolist() == [[3, 1, 0], [4, 1, 0]]


def test_an_episode_that_ends_at_its_time_limit_is_terminated_and_not_truncated(make: Make) -> None:
    environment = make(COUNTER_ID, num_envs=1, seed=2)  # 5 steps long
    environment.reset()
    last = [environment.step(np.array([0])) for _ in range(5)][-1]
    assert last.terminated.all() and not last.truncated.any() and len(last.final_obs) == 0


def test_observations_are_written_where_the_caller_wants_them(make: Make) -> None:
    environment = make(COUNTER_ID)
    rows = np.full((2, 2, 3), -7, np.float32)
    assert environment.reset(out=rows[0]).base is rows
    assert environment.step(np.zeros(2, np.int64), out=rows[1]).next_obs.base is rows
    assert rows.tolist() == [[[0, 0, 0], [1, 0, 0]], [[0, 0, 1], [1, 0, 1]]]


@pytest.mark.parametrize("out", [np.zeros((1, 3), np.float32), np.zeros((2, 3), np.float64)])
def test_a_destination_that_would_broadcast_or_cast_is_refused(make: Make, out: NDArray[np.generic]) -> None:
    with pytest.raises(ValueError, match=r"^out must be float32\[2, 3\], got "):
        make(COUNTER_ID).reset(out=out)


def test_statistics_are_of_whole_episodes_with_raw_rewards(make: Make) -> None:
    environment = make(COUNTER_ID, num_envs=1, clip_rewards=True)  # 3 steps, then 4
    environment.reset()
    rewards = [environment.step(np.array([3])).rewards.item() for _ in range(7)]
    assert rewards == [1.0] * 7
    assert environment.take_episodes() == [Episode(9.5 * 3, 3), Episode(9.5 * 4, 4)]
    assert environment.take_episodes() == []


def test_reset_starts_statistics_anew(make: Make) -> None:
    environment = make(COUNTER_ID, num_envs=1)
    play(environment, 2)
    play(environment, 3)
    assert [e.length for e in environment.take_episodes()] == [3]


def test_cartpole_at_500_steps_is_truncated_with_its_final_observation(make: Make) -> None:
    environment = make("CartPole-v1", num_envs=1)
    obs, steps = environment.reset(), 0
    while True:
        push_right = obs[0] @ (0.1, 0.3, 1.5, 1.0) > 0  # balances for as long as it is let
        transition = environment.step(np.array([int(push_right)]))
        steps += 1
        if transition.terminated.any() or transition.truncated.any():
            break
        obs = transition.next_obs
    assert steps == 500 and transition.truncated.all()
    assert np.abs(transition.final_obs[0] - obs[0]).max() < 1  # a step away from the last but one ...
    assert np.abs(transition.final_obs - transition.next_obs).max() > 0.01  # ... and not the new episode's first
    assert environment.take_episodes() == [Episode(500.0, 500)]


def test_an_episode_limit_of_ones_own_truncates(make: Make) -> None:
    _, steps = play(make("CartPole-v1", num_envs=1, max_episode_steps=5), 5)
    assert [s.truncated.item() for s in steps] == [False] * 4 + [True]


@pytest.mark.parametrize("actions", [[0, 4], [-1, 0], [0], [0.0, 0.0]])
@pytest.mark.parametrize("env_id", [COUNTER_ID, "pong"])
def test_wrong_actions_are_refused_before_the_simulator_sees_them(
    make: Make, env_id: str, actions: list[float]
) -> None:
    environment = make(env_id)
    environment.reset()
    wrong = np.array(actions) + (np.array(actions) == 4) * 2  # Pong has 6 actions
    with pytest.raises(ValueError, match=r"^actions must be "):
        environment.step(wrong)
    environment.step(np.zeros(2, np.int64))


@pytest.mark.parametrize("env_id", [COUNTER_ID, "pong"])
def test_a_closed_environment_cannot_be_stepped(make: Make, env_id: str) -> None:
    environment = make(env_id)
    environment.reset()
    environment.close()
    with pytest.raises(RuntimeError, match=r"^step\(\) needs reset"):
        environment.step(np.zeros(2, np.int64))
    environment.close()


class Strange(gymnasium.Env[NDArray[np.float64], np.int64]):
    """Actions from 5 to 7, float64 observations that tell the last action."""

    observation_space = Box(-np.inf, np.inf, (1,), np.float64)
    action_space = Discrete(3, start=5)

    def reset(self, **_: Any) -> tuple[NDArray[np.float64], dict[str, Any]]:
        return np.zeros(1), {}

    def step(self, action: int | np.int64) -> tuple[NDArray[np.float64], float, bool, bool, dict[str, Any]]:
        return np.array([action / 3]), 0.0, False, False, {}


class WronglyDeclared(Strange):
    observation_space = Box(-1, 1, (4,), np.float64)


class Composite(Strange):
    observation_space = Dict({"a": Box(0, 1)})  # type: ignore[assignment]


@pytest.fixture(autouse=True)
def _registered_strangers() -> Iterator[None]:
    strangers = (Strange, WronglyDeclared, Composite)
    for stranger in strangers:
        gymnasium.register(f"test/{stranger.__name__}-v0", entry_point=cast(Any, stranger))
    yield
    for stranger in strangers:
        del gymnasium.registry[f"test/{stranger.__name__}-v0"]


def test_actions_start_at_zero_and_observations_are_float32(make: Make) -> None:
    environment = make("test/Strange-v0")
    environment.reset()
    obs = environment.step(np.array([0, 2])).next_obs
    assert environment.num_actions == 3
    assert obs.dtype == np.float32
    assert obs.tolist() == np.array([[5 / 3], [7 / 3]], np.float32).tolist()


def test_an_environment_that_breaks_its_own_declaration_is_named(make: Make) -> None:
    with pytest.raises(ValueError, match=r"WronglyDeclared.*float64\[4\], but what it gives is float64\[1\]"):
        make("test/WronglyDeclared-v0").reset()


@pytest.mark.parametrize(
    ("env_id", "message"),
    [
        ("test/Composite-v0", r"^'test/Composite-v0' observes Dict.*only arrays"),
        ("Pendulum-v1", r"^'Pendulum-v1' acts in Box.*only Discrete actions are supported: register it"),
        ("pnog", r"^no environment is called 'pnog'; did you mean pong\?$"),
        ("CartPol-v1", r"did you mean CartPole-v1\?$"),
        ("catch", r"did you mean asyncparl/Catch-v0\?$"),
        ("CartPole-v9", r"did you mean CartPole-v1\?$"),
        ("no_such_module:Foo-v0", r"^'no_such_module:Foo-v0' cannot be made: No module named 'no_such_module'"),
        ("a:b:c", r"^an environment id is EnvId or module:EnvId"),
        ("", r"^'' cannot be made: Malformed environment ID"),
    ],
)
def test_an_environment_that_cannot_be_had_is_one_clear_line(make: Make, env_id: str, message: str) -> None:
    with pytest.raises(ValueError, match=message) as caught:
        make(env_id)
    assert "\n" not in str(caught.value)


def test_a_module_may_stand_before_the_id(make: Make) -> None:
    assert make(f"asyncparl.training.environments:{CATCH_ID}").obs_shape == (10, 5)


def test_an_option_that_does_not_concern_the_environment_is_refused(make: Make) -> None:
    with pytest.raises(ValueError, match=r"^option frame_skip is only for Atari games"):
        make("CartPole-v1", frame_skip=2)
    with pytest.raises(ValueError, match=r"^option arguments is only for gymnasium environments"):
        make("pong", arguments={"game": "breakout"})


def test_every_sub_environment_of_every_actor_has_its_own_seed() -> None:
    num_envs = 16
    for base_seed in (0, 1, 2_000, 2**31 // 1_000_000, 123_456_789):
        firsts = [environment_seed(base_seed, actor * num_envs) for actor in range(100)]
        seeds = [first + i for first in firsts for i in range(num_envs)]
        assert len(set(seeds)) == len(seeds) and max(seeds) < 2**31
    assert environment_seed(1) - environment_seed(0) == 1_000_000


# --- Catch


def test_catch_pays_on_the_ninth_step_only(make: Make) -> None:
    _, steps = play(make(CATCH_ID, num_envs=5, seed=1), 45)
    rewards = np.array([s.rewards for s in steps]).reshape(5, 9, 5)
    ends = np.array([s.terminated for s in steps]).reshape(5, 9, 5)
    assert ends[:, 8].all() and not ends[:, :8].any()
    assert (np.abs(rewards[:, 8]) == 1).all() and not rewards[:, :8].any()


def test_catch_rewards_who_follows_the_ball(make: Make) -> None:
    environment = make(CATCH_ID, num_envs=8)
    obs = environment.reset()
    for _ in range(9 * 10):
        ball, paddle = obs[:, :9].sum(1).argmax(1), obs[:, 9].argmax(1)
        obs = environment.step(np.sign(ball - paddle) + 1).next_obs
    episodes = environment.take_episodes()
    assert episodes == [Episode(1.0, 9)] * 80


# --- Atari


@pytest.mark.parametrize(
    ("name", "rom_id"),
    [
        ("pong", "pong"),
        ("Pong", "pong"),
        ("PongNoFrameskip-v4", "pong"),
        ("ALE/Pong-v5", "pong"),
        ("MsPacmanDeterministic-v0", "ms_pacman"),
        ("ms_pacman", "ms_pacman"),
        ("ALE/UpNDown-v5", "up_n_down"),
        ("TicTacToe3D", "tic_tac_toe_3d"),
        ("CartPole-v1", None),
        ("Blackjack-v1", None),
        ("ALE/Blackjack-v5", "blackjack"),
        ("Pong-ram-v4", None),
        ("gymnasium:ALE/Pong-v5", None),
    ],
)
def test_an_atari_game_is_found_by_any_of_its_names(name: str, rom_id: str | None) -> None:
    assert find_atari_game(name) == rom_id


def play_ale(num_envs: int, seed: int, num_steps: int, game: str = "pong") -> tuple[NDArray[np.uint8], ...]:
    """The streams of ALE itself: obs [T+1, N, ...], raw rewards and ends [T, N], for the actions of `play`."""
    simulator = AtariVectorEnv(game, num_envs, num_threads=1, autoreset_mode="SameStep", reward_clipping=False)
    obs = [simulator.reset(seed=seed)[0]]
    num_actions = int(cast(Discrete, simulator.single_action_space).n)
    actions = np.random.default_rng(0).integers(num_actions, size=(num_steps, num_envs))
    steps = [simulator.step(a) for a in actions]
    return np.array(obs + [s[0] for s in steps]), np.array([s[1] for s in steps]), np.array([s[2] for s in steps])


def test_an_atari_stream_is_that_of_ale(make: Make) -> None:
    first, steps = play(make("pong", num_envs=2, seed=5), 100)
    obs, rewards, _ = play_ale(2, 5, 100)
    assert first.shape == (2, 4, 84, 84) and first.dtype == np.uint8
    assert np.array_equal(np.array([first] + [s.next_obs for s in steps]), obs)
    assert np.array_equal(np.array([s.rewards for s in steps]), rewards)
    assert np.abs(rewards).sum() > 0


def test_a_whole_game_of_pong_is_counted_as_it_was_paid(make: Make) -> None:
    environment = make("pong", num_envs=1, seed=1)
    paid, steps, rng = 0.0, 0, np.random.default_rng(1)
    environment.reset()
    while True:
        transition = environment.step(rng.integers(6, size=1))
        paid, steps = paid + transition.rewards.item(), steps + 1
        if transition.terminated.any():
            break
    assert environment.take_episodes() == [Episode(paid, steps)]
    assert -21 <= paid < 0 and steps > 500 and not transition.truncated.any()


def test_statistics_stay_raw_where_rewards_are_clipped(make: Make) -> None:
    environment = make("space_invaders", max_frames=600)
    _, steps = play(environment, 150)
    _, raw_rewards, raw_ends = play_ale(2, 0, 150, "space_invaders")
    rewards = np.array([s.rewards for s in steps])
    assert np.array_equal(rewards, np.clip(raw_rewards, -1, 1)) and raw_rewards.max() > 1
    assert not raw_ends.any()  # so both are cut at the same step
    assert environment.take_episodes() == [Episode(float(total), 150) for total in raw_rewards.sum(0)]


def test_sub_environments_differ_and_the_same_seed_gives_the_same_stream(make: Make) -> None:
    first, steps = play(make("breakout", seed=7), 30)
    again, same = play(make("breakout", seed=7), 30)
    other = make("breakout", seed=70).reset()
    assert np.array_equal(first, again)
    assert all(np.array_equal(a.next_obs, b.next_obs) for a, b in zip(steps, same, strict=True))
    last = steps[-1].next_obs
    assert not np.array_equal(last[0], last[1])
    assert not np.array_equal(first, other)


def test_reset_without_a_seed_starts_the_same_stream_again(make: Make) -> None:
    environment = make("pong", seed=3)
    first, steps = play(environment, 20)
    again, same = play(environment, 20)
    assert np.array_equal(first, again) and np.array_equal(steps[-1].next_obs, same[-1].next_obs)


def test_sticky_actions_change_the_stream(make: Make) -> None:
    _, steps = play(make("pong", seed=3), 60)
    _, sticky = play(make("pong", seed=3, sticky_action_probability=0.25), 60)
    assert not np.array_equal(steps[-1].next_obs, sticky[-1].next_obs)


def test_each_observation_shifts_the_stack_by_one_frame(make: Make) -> None:
    first, steps = play(make("pong"), 50)
    for before, after in pairwise([first] + [s.next_obs for s in steps]):
        assert np.array_equal(before[:, 1:], after[:, :-1])
    assert first[:, -1].any() and not first[:, :-1].any()  # ALE fills the stack up with zeros


def test_a_game_is_truncated_at_its_frame_limit_with_the_exact_last_observation(make: Make) -> None:
    environment = make("pong", num_envs=3, seed=3, max_frames=200)
    _, steps = play(environment, 100)
    assert [t for t, s in enumerate(steps) if s.truncated.any()] == [49, 99]
    cut = steps[49]
    assert cut.truncated.all() and not cut.terminated.any() and cut.final_indices.tolist() == [0, 1, 2]
    untruncated, _, _ = play_ale(3, 3, 50)
    assert np.array_equal(cut.final_obs, untruncated[50])
    assert not cut.next_obs[:, :-1].any() and cut.next_obs[:, -1].any()  # a new game
    assert [e.length for e in environment.take_episodes()] == [50] * 6
    assert not any(len(s.final_obs) for t, s in enumerate(steps) if t not in (49, 99))


def test_a_game_that_is_over_at_its_frame_limit_is_terminated_and_started_once(make: Make) -> None:
    _, free = play(make("breakout", num_envs=1), 400)
    length = next(t for t, s in enumerate(free) if s.terminated.any()) + 1
    _, limited = play(make("breakout", num_envs=1, max_frames=4 * length), length)
    assert limited[-1].terminated.all() and not limited[-1].truncated.any()
    assert np.array_equal(limited[-1].next_obs, free[length - 1].next_obs)


def test_only_the_games_at_their_limit_are_cut(make: Make) -> None:
    environment = make("breakout", num_envs=2, max_frames=600)
    since_start, truncations = np.zeros(2, int), 0
    rng = np.random.default_rng(0)
    obs = environment.reset()
    for _ in range(400):
        transition = environment.step(rng.integers(4, size=2))
        since_start += 1
        assert np.array_equal(transition.truncated, since_start == 150)
        ended = transition.terminated | transition.truncated
        assert np.array_equal(transition.next_obs[~ended, :-1], obs[~ended, 1:])
        assert np.array_equal(transition.final_obs[:, :-1], obs[transition.truncated, 1:])
        truncations += int(transition.truncated.sum())
        since_start[ended] = 0
        obs = transition.next_obs
    assert 0 < truncations < len(environment.take_episodes())


def test_a_lost_life_is_an_end_to_the_learner_and_not_to_the_game(make: Make) -> None:
    environment = make("breakout", num_envs=1, episodic_life=True)
    obs, rng = environment.reset(), np.random.default_rng(0)
    ends: list[bool] = []  # of each life: whether the next observation is of a new game
    paid, steps = 0.0, 0
    episodes: list[Episode] = []
    while not episodes:
        transition = environment.step(rng.integers(4, size=1))
        paid, steps = paid + transition.rewards.item(), steps + 1
        if transition.terminated.any():
            ends.append(not np.array_equal(transition.next_obs[:, :-1], obs[:, 1:]))
        obs, episodes = transition.next_obs, environment.take_episodes()
    assert ends == [False] * 4 + [True]
    assert episodes == [Episode(paid, steps)]  # Breakout's first rows pay 1, so nothing was clipped


def test_all_actions_can_be_asked_for(make: Make) -> None:
    assert make("pong").num_actions == 6
    assert make("pong", full_action_set=True).num_actions == 18


def test_closing_ends_the_emulator_threads(make: Make) -> None:
    def threads() -> set[str]:
        return set(os.listdir("/proc/self/task"))

    before = threads()  # of which some may end meanwhile
    environment = make("pong")
    (emulator,) = threads() - before
    environment.close()
    assert emulator not in threads()
