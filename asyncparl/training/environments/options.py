"""What may be chosen when an environment is made. Plain values, so that they can be sent to an actor."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, fields
from typing import Any

from asyncparl.training.protocols import PROTOCOLS, ProtocolName

_ATARI = {"only_for": "Atari games"}
_GYMNASIUM = {"only_for": "gymnasium environments"}


@dataclass(frozen=True, slots=True, kw_only=True)
class EnvironmentOptions:
    """The preprocessing of an environment. An option that does not concern the environment at hand is an error.

    `for_protocol` gives those of Mnih et al. 2015 or of Machado et al. 2018; see `asyncparl.training.protocols`.

    Attributes:
        clip_rewards: clip what the learner sees to [-1, 1]. None: for Atari games yes, else no. Statistics stay raw.
        frame_skip: emulator frames that an action lasts; the last two are max-pooled.
        frame_stack: observations are this many last frames, oldest first.
        screen_size: height and width of a frame, grey.
        noop_max: an episode starts after 0 to noop_max - 1 frames in which nothing is done.
        sticky_action_probability: that the emulator repeats the previous action in a frame (0.25 in Machado et al.).
        episodic_life: the learner sees `terminated` when a life is lost. The game goes on.
        fire_on_reset: press FIRE once at the start of an episode, in games that have it.
        full_action_set: all 18 actions instead of those that the game uses.
        max_frames: emulator frames after which an episode is truncated.
        num_threads: emulator threads; 1 suits many actor processes on one machine.
        max_episode_steps: steps after which an episode is truncated, instead of the id's own limit.
        arguments: passed on to `gymnasium.make`.
    """

    clip_rewards: bool | None = None

    frame_skip: int = field(default=4, metadata=_ATARI)
    frame_stack: int = field(default=4, metadata=_ATARI)
    screen_size: tuple[int, int] = field(default=(84, 84), metadata=_ATARI)
    noop_max: int = field(default=30, metadata=_ATARI)
    sticky_action_probability: float = field(default=0.0, metadata=_ATARI)
    episodic_life: bool = field(default=False, metadata=_ATARI)
    fire_on_reset: bool = field(default=True, metadata=_ATARI)
    full_action_set: bool = field(default=False, metadata=_ATARI)
    max_frames: int = field(default=108_000, metadata=_ATARI)
    num_threads: int = field(default=1, metadata=_ATARI)

    max_episode_steps: int | None = field(default=None, metadata=_GYMNASIUM)
    arguments: Mapping[str, Any] = field(default_factory=dict, metadata=_GYMNASIUM)

    def __post_init__(self) -> None:
        for name in ("frame_skip", "frame_stack", "max_frames", "num_threads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1, got {getattr(self, name)}")
        if self.noop_max < 0:
            raise ValueError(f"noop_max must be at least 0, got {self.noop_max}")
        if not 0 <= self.sticky_action_probability < 1:
            raise ValueError(f"sticky_action_probability must be in [0, 1), got {self.sticky_action_probability}")

    @classmethod
    def for_protocol(cls, protocol: ProtocolName, **others: Any) -> EnvironmentOptions:
        """Those of an Atari protocol, "mnih2015" or "machado2018", but for others that are given.

        Raises:
            ValueError: there is no such protocol, or a value is wrong.
        """
        if protocol not in PROTOCOLS:
            raise ValueError(f"protocol must be one of {', '.join(PROTOCOLS)}, got {protocol!r}")
        return cls(**{**PROTOCOLS[protocol], **others})

    def check_unused(self, env_id: str, *, is_atari: bool) -> None:
        """Raise ValueError if an option was set that means nothing to this environment."""
        default = EnvironmentOptions()
        names = [each.name for each in fields(self) if getattr(self, each.name) != getattr(default, each.name)]
        check_option_names(names, env_id, is_atari=is_atari)


def check_option_names(names: Collection[str], env_id: str, *, is_atari: bool) -> None:
    """Raise ValueError if one of these options means nothing to this environment, whatever its value."""
    foreign = _GYMNASIUM if is_atari else _ATARI
    for option in fields(EnvironmentOptions):
        if option.metadata == foreign and option.name in names:
            raise ValueError(f"option {option.name} is only for {foreign['only_for']}, which {env_id!r} is not")
