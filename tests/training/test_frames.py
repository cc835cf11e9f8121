"""Single frames on the way: the batch is bit for bit the one that whole stacks make, whatever ends in a rollout."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, cast

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from gymnasium.wrappers import FrameStackObservation, TransformObservation
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from asyncparl.algorithms.rollout import Rollout
from asyncparl.rl import WeightLayout
from asyncparl.training import TrainingConfig
from asyncparl.training.actor import ActorSetup, RolloutActor
from asyncparl.training.batching import Batch, BatchAssembler
from asyncparl.training.build import find_interface, make_model
from asyncparl.training.compression import CompressedRollout
from asyncparl.training.environments import EnvironmentOptions, VectorEnvironment, make_environment
from asyncparl.training.frames import FrameRollout, pack_frames
from asyncparl.training.sampler import Sampler
from asyncparl.training.sending import pack_sample

FRAME_SHAPE = (2, 3)
GOES_ON, TERMINATED, TRUNCATED = range(3)


def make_rollout(flags: NDArray[Any], frame_stack: int, rng: np.random.Generator) -> Rollout[NDArray[Any]]:
    """Stacks that go on from one step to the next, and begin with anything after an end; flags [T, B] say where."""
    num_steps, num_envs = flags.shape

    def noise(*shape: int) -> NDArray[np.uint8]:
        return rng.integers(256, size=(*shape, *FRAME_SHAPE), dtype=np.uint8)

    stacks = [noise(num_envs, frame_stack)]
    for t in range(num_steps):
        shifted = np.concatenate([stacks[-1][:, 1:], noise(num_envs, 1)], axis=1)
        begun = noise(num_envs, frame_stack)
        stacks.append(np.where((flags[t] == GOES_ON)[:, None, None, None], shifted, begun))
    obs = np.stack(stacks)
    final_steps = np.argwhere(flags == TRUNCATED)
    return Rollout(
        obs=obs[:-1],
        actions=rng.integers(6, size=flags.shape),
        behaviour_log_probs=rng.random(flags.shape, np.float32),
        rewards=rng.random(flags.shape, np.float32),
        terminated=flags == TERMINATED,
        truncated=flags == TRUNCATED,
        bootstrap_obs=obs[-1],
        final_obs=noise(len(final_steps), frame_stack),
        final_steps=final_steps,
    )


def assemble(rollouts: list[Any], num_columns: int, like: Rollout[NDArray[Any]]) -> list[Batch]:
    """The batches of so many columns that they make."""
    num_steps, width, *obs_shape = like.obs.shape
    assembler = BatchAssembler(
        num_steps=num_steps,
        num_columns=num_columns,
        obs_shape=tuple(obs_shape),
        obs_dtype=like.obs.dtype,
        num_batches=1 + len(rollouts) * width // num_columns,
    )
    added = [assembler.add(rollout, version) for version, rollout in enumerate(rollouts)]
    return [batch for batch in added if batch is not None]


def check_equal(packed: list[Batch], whole: list[Batch]) -> None:
    assert len(packed) == len(whole) > 0
    for one, other in zip(packed, whole, strict=True):
        for name, tensor in other.rollout._asdict().items():
            same = getattr(one.rollout, name)
            assert (tensor is None and same is None) or (same.dtype == tensor.dtype and torch.equal(same, tensor)), name
        assert np.array_equal(one.versions, other.versions)


@given(data=st.data(), num_steps=st.integers(1, 7), width=st.integers(1, 3), frame_stack=st.integers(2, 5))
def test_batches_of_packed_rollouts_are_those_of_whole_ones(
    data: st.DataObject, num_steps: int, width: int, frame_stack: int
) -> None:
    num_columns = data.draw(st.integers(width, 2 * width))  # so that rollouts are split over two batches
    flags = st.lists(
        st.sampled_from((GOES_ON, TERMINATED, TRUNCATED)), min_size=num_steps * width, max_size=num_steps * width
    )
    rng = np.random.default_rng(data.draw(st.integers(0, 2**32)))
    rollouts = [make_rollout(np.reshape(data.draw(flags), (num_steps, width)), frame_stack, rng) for _ in range(3)]
    packed = [pack_frames(rollout) for rollout in rollouts]
    check_equal(assemble(packed, num_columns, rollouts[0]), assemble(rollouts, num_columns, rollouts[0]))


def test_every_frame_travels_once() -> None:
    flags = np.full((20, 16), GOES_ON)
    flags[3, 5], flags[19, 0] = TERMINATED, TRUNCATED
    packed = pack_frames(make_rollout(flags, 4, np.random.default_rng(0)))
    assert packed.frames.shape == (16, 4 + 20, *FRAME_SHAPE)
    assert packed.older_frames.shape == (2, 3, *FRAME_SHAPE)
    assert packed.final_obs.shape == (1, 4, *FRAME_SHAPE)


def test_a_packed_rollout_shares_no_memory_with_what_was_played() -> None:
    rollout = make_rollout(np.full((3, 2), TERMINATED), 3, np.random.default_rng(0))
    packed = pack_frames(rollout)
    for array in (packed.frames, packed.older_frames):
        assert not np.shares_memory(array, rollout.obs) and not np.shares_memory(array, rollout.bootstrap_obs)


@pytest.mark.parametrize(
    ("change", "given"),
    [
        ({"frames": np.zeros((2, 4, 2, 3), np.uint8)}, r"uint8\[2, 4, 2, 3\] and uint8\[2, 2, 2, 3\]"),
        ({"older_frames": np.zeros((1, 2, 2, 3), np.uint8)}, r"uint8\[2, 6, 2, 3\] and uint8\[1, 2, 2, 3\]"),
        ({"older_frames": np.zeros((2, 2, 2, 3), np.int8)}, r"uint8\[2, 6, 2, 3\] and int8\[2, 2, 2, 3\]"),
        ({"terminated": np.zeros((3, 2), bool)}, r"uint8\[2, 6, 2, 3\] and uint8\[2, 2, 2, 3\]"),
    ],
)
def test_frames_that_do_not_fit_their_steps_are_refused(change: dict[str, Any], given: str) -> None:
    flags = np.full((3, 2), GOES_ON)
    flags[1] = TERMINATED
    rollout = make_rollout(flags, 3, np.random.default_rng(0))
    with pytest.raises(ValueError, match=rf"^frames and older_frames cannot be {given} in 3 steps with \d ends$"):
        assemble([pack_frames(rollout)._replace(**change)], 2, rollout)


def test_packed_rollouts_of_other_shapes_are_refused_as_whole_ones_are() -> None:
    one, other = (make_rollout(np.full((3, 2), GOES_ON), size, np.random.default_rng(0)) for size in (3, 4))
    with pytest.raises(
        ValueError, match=r"^rollout.obs is uint8 \[3, 2, 4, 2, 3\], expected uint8 \[3, 1 to 2, 3, 2, 3\]$"
    ):
        assemble([pack_frames(other)], 2, one)


@pytest.mark.parametrize("is_packed", [False, True])
def test_a_compressed_rollout_is_the_same_again_in_fewer_bytes(is_packed: bool) -> None:
    flags = np.full((20, 16), GOES_ON)
    flags[3], flags[7] = TERMINATED, TRUNCATED
    whole = make_rollout(flags, 3, np.random.default_rng(0))
    whole.obs[:], whole.bootstrap_obs[:] = 7, 7
    rollout = pack_frames(whole) if is_packed else whole
    compressed = CompressedRollout.of(rollout)
    num_bytes = sum(array.nbytes for array in rollout if array is not None)
    assert len(compressed.data) < num_bytes / 2
    check_equal(assemble([compressed.expand()], 16, whole), assemble([whole], 16, whole))


# --- real environments --------------------------------------------------------------------------------------------


def play(environment: VectorEnvironment, num_steps: int, num_rollouts: int) -> tuple[list[Any], list[Any]]:
    """Rollouts of random actions, as they were sampled and as they are sent. Closes the environment."""
    rng = np.random.default_rng(0)
    num_envs, num_actions = environment.num_envs, environment.num_actions

    def act(_obs: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        return rng.integers(num_actions, size=num_envs), np.zeros(num_envs, np.float32)

    sampler = Sampler(environment, act, num_steps=num_steps)
    samples = [sampler.collect() for _ in range(num_rollouts)]
    sent = [pack_sample(sample, environment).rollout for sample in samples]
    sampler.close()
    return [sample.rollout for sample in samples], sent


@pytest.mark.slow
@pytest.mark.parametrize("num_steps", [2, 20])
@pytest.mark.parametrize(
    ("game", "num_envs", "options", "lost_lives"),
    [
        ("pong", 2, {"max_frames": 200}, False),
        ("breakout", 3, {"max_frames": 600, "episodic_life": True}, True),
        ("breakout", 3, {"max_frames": 600, "frame_stack": 2, "noop_max": 0, "fire_on_reset": False}, False),
    ],
)
def test_real_games_with_ends_of_all_kinds(
    game: str, num_envs: int, options: dict[str, Any], lost_lives: bool, num_steps: int
) -> None:
    environment = make_environment(game, num_envs=num_envs, seed=3, options=EnvironmentOptions(**options))
    whole, sent = play(environment, num_steps, 400 // num_steps)
    assert all(isinstance(rollout, FrameRollout) for rollout in sent)
    check_equal(assemble(sent, num_envs + 1, whole[0]), assemble(whole, num_envs + 1, whole[0]))
    terminated, truncated = (
        np.concatenate([getattr(each, name) for each in whole]) for name in ("terminated", "truncated")
    )
    assert truncated.any() and terminated.any() == (game == "breakout")
    assert len(environment.take_episodes()) < (terminated | truncated).sum() or not lost_lives


def test_one_frame_is_no_stack() -> None:
    environment = make_environment("pong", num_envs=1, options=EnvironmentOptions(frame_stack=1))
    whole, sent = play(environment, 2, 1)
    assert sent[0] is whole[0]


class Camera(gymnasium.Env[Any, Any]):
    """Shows numbers that never come again. `reuses`: in one and the same array, as some simulators do."""

    observation_space = spaces.Box(-np.inf, np.inf, (2,), np.float64)
    action_space = spaces.Discrete(2)

    def __init__(self, reuses: bool = False) -> None:
        self._reuses = reuses
        self._shown = np.zeros(2)
        self._rng = np.random.default_rng(0)

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        self._rng = np.random.default_rng(seed) if seed is not None else self._rng
        return self._show(), {}

    def step(self, action: Any) -> Any:
        return self._show(), 0.0, self._rng.random() < 0.1, self._rng.random() < 0.1, {}

    def _show(self) -> NDArray[Any]:
        if not self._reuses:
            self._shown = np.zeros(2)
        self._shown[:] = self._rng.random(2)
        return self._shown


def stacked(wrap: Callable[[Any], Any] = lambda env: env, *, padding: str = "reset", reuses: bool = False) -> Any:
    return wrap(FrameStackObservation(Camera(reuses), 3, padding_type=padding))


@pytest.fixture
def register() -> Iterator[Callable[..., str]]:
    """The id of a new environment that `stacked` makes with these arguments."""
    names: list[str] = []

    def add(**arguments: Any) -> str:
        names.append(f"Stacked{len(names)}-v0")
        gymnasium.register(names[-1], lambda: stacked(**arguments), max_episode_steps=7)
        return names[-1]

    yield add
    for name in names:
        del gymnasium.registry[name]


@pytest.mark.parametrize("padding", ["reset", "zero"])
@pytest.mark.parametrize("num_steps", [1, 10])
def test_stacks_of_gymnasium_are_known(register: Callable[..., str], padding: str, num_steps: int) -> None:
    environment = make_environment(register(padding=padding), num_envs=3)
    assert environment.frame_stack == 3 and environment.obs_shape == (3, 2)
    whole, sent = play(environment, num_steps, 40)
    assert all(isinstance(rollout, FrameRollout) for rollout in sent)
    assert sum(each.truncated.sum() for each in whole) > 0 < sum(each.terminated.sum() for each in whole)
    check_equal(assemble(sent, 4, whole[0]), assemble(whole, 4, whole[0]))


def test_stacks_that_another_wrapper_may_have_changed_are_sent_whole(register: Callable[..., str]) -> None:
    def turn_round(env: Any) -> Any:
        return TransformObservation(env, lambda obs: obs[::-1], env.observation_space)

    environment = make_environment(register(wrap=turn_round), num_envs=2)
    assert environment.frame_stack == 1
    environment.close()


def test_an_environment_that_reuses_its_array_is_sent_whole(register: Callable[..., str]) -> None:
    environment = make_environment(register(reuses=True), num_envs=2)
    assert environment.frame_stack == 3
    _, sent = play(environment, 5, 1)
    assert environment.frame_stack == 1 and isinstance(sent[0], Rollout)


def test_an_actor_sends_single_frames_of_an_atari_game() -> None:
    config = TrainingConfig(env="pong", envs_per_actor=2, unroll_length=3, batch_size=2)
    setup = ActorSetup(config, None, first_environment=0)
    num_threads = torch.get_num_threads()
    actor = cast("Any", RolloutActor).__wrapped__(setup)  # mypy ignores what class decorators return
    model = make_model(find_interface(config), None)
    actor.set_weights(1, WeightLayout.of(model).pack(model))
    rollouts = [actor.rollout().rollout for _ in range(2)]
    torch.set_num_threads(num_threads)
    assert all(isinstance(rollout, FrameRollout) for rollout in rollouts)
    assert np.array_equal(rollouts[0].frames[:, -4:], rollouts[1].frames[:, :4])
    assert rollouts[1].frames.shape == (2, 4 + 3, 84, 84)
