"""Atari games by ALE's own vector environment, emulated, preprocessed and stacked in C++.

How `ale_py.vector_env.AtariVectorEnv` 0.12 behaves, where one would not expect it, and what is done about it here:

| what it does                                                      | here                                        |
|-------------------------------------------------------------------|---------------------------------------------|
| `episodic_life=True` restarts the whole game at every life        | `life_loss_info`, which lets the game go on |
| at its own frame limit it stops before it captures the screen, so | no limit there; counted here, and reset by  |
| the newest frame of `final_obs` is a mix of older ones            | `reset_mask`, so that `final_obs` is exact  |
| `max_num_frames_per_episode` counts emulator frames, not steps    | `max_frames` says so                        |
| with `reward_clipping=True` raw rewards are lost                  | off; clipped here, statistics stay raw      |
| an action out of range kills its step: `recv` then waits for ever | actions are checked before every step       |
| `close()` does nothing; the threads end with the C++ object       | the object is dropped                       |
| `info` at an end is that of the new game                          | only its frame counters are used            |
| its threads do not survive a fork                                 | make it in the process that uses it         |
| seeding loads the ROM again, 0.1 s a copy, as making it does      | seeded by `reset` only, never in between    |

Left as they are: after a reset the stack is filled up with zeros (baselines repeats the first frame); FIRE is pressed
before the no-ops (baselines: after); pixels are max-pooled in grey and resized by area; a game takes one of
`noop_max` starts, so without sticky actions some sub-environments begin alike; `num_threads` is at most the number of
cores; the last observation before a game over repeats older frames, but no learner uses it.
"""

from __future__ import annotations

import re
from typing import Any, cast

import numpy as np
from ale_py import roms
from ale_py.vector_env import AtariVectorEnv
from gymnasium.spaces import Discrete
from gymnasium.vector import AutoresetMode
from numpy.typing import NDArray

from asyncparl.training.environments.base import RawStep, VectorEnvironment
from asyncparl.training.environments.options import EnvironmentOptions

_NO_FRAME_LIMIT = 2**30
SCREEN_SIZE = (210, 160)
"""Height and width of the console's picture."""
_GYMNASIUM_NAME = re.compile(r"(?:ALE/)?(?P<game>\w+?)(?:NoFrameskip|Deterministic)?(?:-v\d+)?")


class AtariEnvironment(VectorEnvironment):
    """N copies of one game; observations are uint8[frame_stack, height, width], oldest frame first."""

    def __init__(
        self, rom_id: str, *, num_envs: int, seed: int, options: EnvironmentOptions, filmed: bool = False
    ) -> None:
        self._simulator: AtariVectorEnv | None = _make(rom_id, num_envs, options)
        # The same game again, in colour: with the same seed and the same actions it goes the same way.
        self._camera: AtariVectorEnv | None = _make_camera(rom_id, options) if filmed else None
        self._frame = np.zeros((1, 1, 3), np.uint8)
        self.frames_per_s = 60 / options.frame_skip
        self._steps = np.zeros(num_envs, np.int64)  # since the start of the game
        self._max_steps = -(-options.max_frames // options.frame_skip)
        self._game_starts = np.zeros(num_envs, np.int32)
        super().__init__(
            num_envs=num_envs,
            obs_shape=(options.frame_stack, *options.screen_size),
            obs_dtype=np.dtype(np.uint8),
            num_actions=int(cast(Discrete, self._simulator.single_action_space).n),
            seed=seed,
            clip_rewards=options.clip_rewards is not False,
            frame_stack=options.frame_stack,
        )

    def _reset(self, seed: int, out: NDArray[Any]) -> None:
        obs, info = self._running_simulator().reset(seed=seed)
        if self._camera is not None:
            self._frame = self._camera.reset(seed=seed)[0][0, -1].copy()
        out[:] = obs
        self._game_starts = _game_starts(info)
        self._steps[:] = 0

    def _step(self, actions: NDArray[np.integer[Any]], out: NDArray[Any]) -> RawStep:
        simulator = self._running_simulator()
        actions = actions.astype(np.int64, copy=False)
        obs, rewards, terminated, _, info = simulator.step(actions)
        if self._camera is not None:
            self._frame = self._camera.step(actions[:1])[0][0, -1].copy()
        game_starts = _game_starts(info)
        game_ended = game_starts != self._game_starts
        self._steps += 1
        cut = (self._steps >= self._max_steps) & ~game_ended
        truncated = cut & ~terminated  # a life lost at the limit is an end to the learner
        final_obs = obs[truncated]
        if cut.any():
            obs, info = simulator.reset(options={"reset_mask": cut})
            if self._camera is not None and cut[0]:
                self._frame = self._camera.reset(options={"reset_mask": cut[:1]})[0][0, -1].copy()
            game_starts = _game_starts(info)
            game_ended |= cut
        out[:] = obs
        self._game_starts = game_starts
        self._steps[game_ended] = 0
        return RawStep(rewards, terminated.copy(), truncated, game_ended, final_obs)

    def frame(self) -> NDArray[np.uint8]:
        return super().frame() if self._camera is None else self._frame.copy()

    def _close(self) -> None:
        self._simulator = self._camera = None

    def _running_simulator(self) -> AtariVectorEnv:
        if self._simulator is None:
            raise RuntimeError("the environment is closed")
        return self._simulator


def find_rom(name: str) -> str | None:
    """The ROM of a game, by any of its usual names: pong, Pong, PongNoFrameskip-v4, ALE/Pong-v5. None: no such game.

    The version in a name selects no protocol: `EnvironmentOptions` alone says what is done to the game.
    """
    match = _GYMNASIUM_NAME.fullmatch(name)
    if match is None:
        return None
    by_plain_name = {_plain(rom_id): rom_id for rom_id in rom_ids()}
    return by_plain_name.get(_plain(match["game"]))


def rom_ids() -> list[str]:
    """Every game that ALE brings, in its own spelling (`ms_pacman`)."""
    return sorted(roms.get_all_rom_ids())


def _plain(name: str) -> str:
    return name.replace("_", "").lower()


def _make(rom_id: str, num_envs: int, options: EnvironmentOptions) -> AtariVectorEnv:
    height, width = options.screen_size
    looks = {"img_height": height, "img_width": width, "stack_num": options.frame_stack}
    return _make_simulator(rom_id, num_envs, options, looks)


def _make_camera(rom_id: str, options: EnvironmentOptions) -> AtariVectorEnv:
    """One copy that observes the screen as it is."""
    height, width = SCREEN_SIZE
    looks = {"img_height": height, "img_width": width, "stack_num": 1, "grayscale": False}
    return _make_simulator(rom_id, 1, options, looks)


def _make_simulator(rom_id: str, num_envs: int, options: EnvironmentOptions, looks: dict[str, Any]) -> AtariVectorEnv:
    return AtariVectorEnv(
        rom_id,
        num_envs,
        num_threads=options.num_threads,
        max_num_frames_per_episode=_NO_FRAME_LIMIT,
        repeat_action_probability=options.sticky_action_probability,
        full_action_space=options.full_action_set,
        autoreset_mode=AutoresetMode.SAME_STEP,
        frameskip=options.frame_skip,
        noop_max=options.noop_max,
        life_loss_info=options.episodic_life,
        reward_clipping=False,
        use_fire_reset=options.fire_on_reset,
        **looks,
    )


def _game_starts(info: dict[str, NDArray[np.int32]]) -> NDArray[np.int32]:
    """[N] the emulator's frame count when the running game began: it changes exactly when a game is started."""
    return info["frame_number"] - info["episode_frame_number"]
