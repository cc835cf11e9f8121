"""The two protocols by which Atari results are mostly reported, as options of the environment.

| option                      | mnih2015 | machado2018 | ours    |                                                 |
|-----------------------------|----------|-------------|---------|-------------------------------------------------|
| `clip_rewards`              | true     | true        | true    | to [-1, 1], for the learner alone               |
| `sticky_action_probability` | 0        | 0.25        | 0       | that a frame repeats the last action            |
| `noop_max`                  | 30       | 0           | 30      | where chance comes from, else                   |
| `episodic_life`             | true     | false       | false   | a lost life is an end to the learner            |
| `full_action_set`           | false    | true        | false   | all 18 actions, or those of the game            |
| `max_frames`                | 18,000   | 18,000      | 108,000 | 5 minutes of play, or 30                        |
| `fire_on_reset`             | false    | false       | true    | whether the game is begun for the agent         |

mnih2015: Mnih et al. 2015, "Human-level control through deep reinforcement learning", doi:10.1038/nature14236. Its
limit of 5 minutes is that of its evaluations.

machado2018: Machado et al. 2018, "Revisiting the Arcade Learning Environment", arXiv:1709.06009: sticky actions, the
end of a game as the only end of an episode, and all actions. Learners that need it clip rewards; what is reported is
raw.

Neither is a choice of network or learning rate, and `frame_skip` (4), `frame_stack` (4) and `screen_size` (84 x 84) are
as in Mnih et al. in all three. Imports nothing, so that `--help` can show the names.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

ProtocolName = Literal["mnih2015", "machado2018"]
PROTOCOL_NAMES: tuple[ProtocolName, ...] = get_args(ProtocolName)

PROTOCOLS: Mapping[ProtocolName, Mapping[str, Any]] = {
    "mnih2015": {
        "clip_rewards": True,
        "sticky_action_probability": 0.0,
        "noop_max": 30,
        "episodic_life": True,
        "full_action_set": False,
        "max_frames": 18_000,
        "fire_on_reset": False,
    },
    "machado2018": {
        "clip_rewards": True,
        "sticky_action_probability": 0.25,
        "noop_max": 0,
        "episodic_life": False,
        "full_action_set": True,
        "max_frames": 18_000,
        "fire_on_reset": False,
    },
}
