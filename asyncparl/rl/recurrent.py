"""Ready models with a memory: an LSTM between what a network sees and what it says."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from asyncparl.rl.model import Model
from asyncparl.rl.nets import ActorCriticHead, DeepTorso, ShallowTorso, orthogonal

NUM_UNITS = 256

LSTMState = tuple[Tensor, Tensor]
"""h and c, [N, num_units] each."""


class LSTMModel(Model):
    """An actor-critic with an LSTM. Subclass it, and write `features`:

        class Net(LSTMModel):
            def __init__(self, obs_shape, num_actions):
                super().__init__(num_features=64, num_actions=num_actions)
                self.layer = nn.Linear(obs_shape[0], 64)

            def features(self, obs):                 # [N, *obs_shape] -> [N, num_features]
                return torch.relu(self.layer(obs))

    The LSTM, like the heads, is float32 even where the rest of the model runs in bfloat16.

    Args:
        num_features: numbers that `features` gives of an observation.
        num_actions: number of discrete actions.
        num_units: of the LSTM.
    """

    def __init__(self, num_features: int, num_actions: int, num_units: int = NUM_UNITS) -> None:
        super().__init__()
        self.lstm = _recurrent_init(nn.LSTMCell(num_features, num_units))
        self.head = ActorCriticHead(num_units, num_actions)

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "forward" in cls.__dict__:  # actors would call it, and the learner would not
            raise TypeError(
                f"{cls.__name__}: write features(obs), not forward, in a subclass of LSTMModel; "
                "a model with a memory of its own is a subclass of asyncparl.Model"
            )

    def initial_state(self, num_envs: int) -> LSTMState:
        """Zeros."""
        zeros = torch.zeros(num_envs, self.lstm.hidden_size)
        return zeros, zeros

    def forward(self, obs: Tensor, state: LSTMState) -> tuple[Tensor, Tensor, LSTMState]:
        """Logits [N, A], values [N] and the next state."""
        outputs, state = self.remember(self.features(obs), state)
        logits, values = self.decide(outputs)
        return logits, values, state

    def features(self, obs: Tensor) -> Tensor:
        """[N, num_features] of observations [N, ...]."""
        raise NotImplementedError(f"{type(self).__name__} must have a method features(obs)")

    def remember(self, features: Tensor, state: LSTMState) -> tuple[Tensor, LSTMState]:
        """One step of the memory: what it makes of the features, [N, num_units], and the next state."""
        with torch.autocast(features.device.type, enabled=False):
            h, c = self.lstm(features.float(), state)
        return h, (h, c)

    def decide(self, outputs: Tensor) -> tuple[Tensor, Tensor]:
        """Logits [N, A] and values [N]."""
        logits, values = self.head(outputs)
        return logits, values


class AtariShallowLSTM(LSTMModel):
    """`AtariShallow` with an LSTM before its heads. The arguments are the same."""

    def __init__(self, num_actions: int, obs_shape: Sequence[int] = (4, 84, 84)) -> None:
        super().__init__(ShallowTorso.num_features, num_actions)
        self.torso = ShallowTorso(obs_shape)

    def features(self, obs: Tensor) -> Tensor:
        return self.torso.features(obs)


class AtariDeepLSTM(LSTMModel):
    """`AtariDeep` with the LSTM that the paper's network has. The arguments are the same."""

    def __init__(self, num_actions: int, obs_shape: Sequence[int] = (4, 84, 84)) -> None:
        super().__init__(DeepTorso.num_features, num_actions)
        self.torso = DeepTorso(obs_shape)

    def features(self, obs: Tensor) -> Tensor:
        return self.torso.features(obs)


class MLPLSTM(LSTMModel):
    """A fully connected layer and an LSTM, for vectors of observations. Unlike in `MLP`, policy and value share both.

    Args:
        obs_size: numbers in one observation; observations of any shape are flattened and taken as float32.
        num_actions: number of discrete actions.
        hidden: size of the layer.
        num_units: of the LSTM.
    """

    def __init__(self, obs_size: int, num_actions: int, hidden: int = 64, num_units: int = NUM_UNITS) -> None:
        super().__init__(hidden, num_actions, num_units)
        self.layer = orthogonal(nn.Linear(obs_size, hidden))

    def features(self, obs: Tensor) -> Tensor:
        return torch.tanh(self.layer(obs.reshape(len(obs), -1).float()))


def _recurrent_init(cell: nn.LSTMCell) -> nn.LSTMCell:
    """Orthogonal weights, and biases of 0 but for the forget gate's, which is 1: at first it forgets little."""
    size = cell.hidden_size
    for weight in (cell.weight_ih, cell.weight_hh):
        for gate in torch.split(weight.data, size):
            nn.init.orthogonal_(gate)
    with torch.no_grad():
        cell.bias_ih.zero_()
        cell.bias_hh.zero_()
        cell.bias_ih[size : 2 * size] = 1.0  # torch's order is: input, forget, cell, output
    return cell
