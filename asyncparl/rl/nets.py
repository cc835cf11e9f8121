"""Ready actor-critic models: `forward(obs [N, ...])` gives `(logits [N, num_actions], values [N])`, both float32."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from typing import TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from asyncparl.rl.model import Model
from asyncparl.rl.pixels import PixelConv2d

SHALLOW_MIN_SIDE = 20  # pixels: less are hardly worth a convolution, and are for an MLP
_FINE_BELOW_SIDE = 60  # pixels: what matters in smaller images is too small for the coarse convolution

LayerT = TypeVar("LayerT", bound=nn.Conv2d | nn.Linear)


class ActorCriticHead(nn.Module):
    """Policy and value from shared features, in float32 even where the rest of the model runs in bfloat16."""

    def __init__(self, num_features: int, num_actions: int) -> None:
        super().__init__()
        self.policy = orthogonal(nn.Linear(num_features, num_actions), gain=0.01)
        self.value = orthogonal(nn.Linear(num_features, 1), gain=1.0)

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        with torch.autocast(features.device.type, enabled=False):
            features = features.float()
            return self.policy(features), self.value(features).squeeze(-1)


class ShallowTorso(nn.Module):
    """What `AtariShallow` sees with: two convolutions and a layer of 256 features.

    The first convolution is the paper's, of 8 x 8 pixels and stride 4. For images of less than 60 pixels a side it is
    of 4 x 4 and stride 2: those of 42 x 42 become as many features as others of 84 x 84.

    Args:
        obs_shape: [C, H, W]; uint8 pixels are scaled to [0, 1] inside.
    """

    num_features = 256

    def __init__(self, obs_shape: Sequence[int] = (4, 84, 84)) -> None:
        super().__init__()
        channels, height, width = _image_shape(obs_shape)
        if min(height, width) < SHALLOW_MIN_SIDE:
            raise ValueError(f"images are {height} x {width}, expected at least {SHALLOW_MIN_SIDE} pixels a side")
        kernel, stride = (4, 2) if min(height, width) < _FINE_BELOW_SIDE else (8, 4)
        self.conv1 = orthogonal(PixelConv2d(channels, 16, kernel_size=kernel, stride=stride))
        self.conv2 = orthogonal(nn.Conv2d(16, 32, kernel_size=4, stride=2))
        rows, columns = (((side - kernel) // stride + 1 - 4) // 2 + 1 for side in (height, width))
        self.fc = orthogonal(nn.Linear(32 * rows * columns, self.num_features))

    def features(self, obs: Tensor) -> Tensor:
        """[N, num_features] of images [N, C, H, W]."""
        x = functional.relu(self.conv1(obs), inplace=True)
        x = functional.relu(self.conv2(x), inplace=True)
        return functional.relu(self.fc(_flatten_channels_last(x)), inplace=True)


class AtariShallow(ShallowTorso, Model):
    """The small network of the IMPALA paper for stacked grey frames: two convolutions and 256 features.

    Args:
        num_actions: number of discrete actions.
        obs_shape: [C, H, W]; uint8 pixels are scaled to [0, 1] inside.
    """

    def __init__(self, num_actions: int, obs_shape: Sequence[int] = (4, 84, 84)) -> None:
        super().__init__(obs_shape)
        self.head = ActorCriticHead(self.num_features, num_actions)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        logits, values = self.head(self.features(obs))
        return logits, values


class DeepTorso(nn.Module):
    """What `AtariDeep` sees with: 15 convolutions and a layer of 256 features.

    Args:
        obs_shape: [C, H, W]; uint8 pixels are scaled to [0, 1] inside.
    """

    num_features = 256

    def __init__(self, obs_shape: Sequence[int] = (4, 84, 84)) -> None:
        super().__init__()
        channels, height, width = _image_shape(obs_shape)
        self.blocks = nn.Sequential(
            _DownBlock(PixelConv2d(channels, 16, kernel_size=3, padding=1)),
            _DownBlock(nn.Conv2d(16, 32, kernel_size=3, padding=1)),
            _DownBlock(nn.Conv2d(32, 32, kernel_size=3, padding=1)),
        )
        rows, columns = (math.ceil(side / 8) for side in (height, width))  # each block halves, rounding up
        self.fc = orthogonal(nn.Linear(32 * rows * columns, self.num_features))

    def features(self, obs: Tensor) -> Tensor:
        """[N, num_features] of images [N, C, H, W]."""
        x = functional.relu(self.blocks(obs), inplace=True)
        return functional.relu(self.fc(_flatten_channels_last(x)), inplace=True)


class AtariDeep(DeepTorso, Model):
    """The deep residual network of the IMPALA paper, without its LSTM: 15 convolutions and 256 features.

    Args:
        num_actions: number of discrete actions.
        obs_shape: [C, H, W]; uint8 pixels are scaled to [0, 1] inside.
    """

    def __init__(self, num_actions: int, obs_shape: Sequence[int] = (4, 84, 84)) -> None:
        super().__init__(obs_shape)
        self.head = ActorCriticHead(self.num_features, num_actions)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        logits, values = self.head(self.features(obs))
        return logits, values


class MLP(Model):
    """Two fully connected towers, one for the policy and one for the value, for vectors of observations.

    They share no layer, so that large value errors do not move the policy. Observations of any shape are flattened
    and taken as float32, not scaled.

    Args:
        obs_size: numbers in one observation.
        num_actions: number of discrete actions.
        hidden: sizes of the hidden layers of each tower.
    """

    def __init__(self, obs_size: int, num_actions: int, hidden: Sequence[int] = (64, 64)) -> None:
        super().__init__()
        self.policy = _tower(obs_size, hidden, num_actions, gain=0.01)
        self.value = _tower(obs_size, hidden, 1, gain=1.0)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        x = obs.reshape(len(obs), -1).float()
        return self.policy(x).float(), self.value(x).float().squeeze(-1)


def orthogonal(layer: LayerT, gain: float = math.sqrt(2.0)) -> LayerT:
    """Give the layer an orthogonal weight and a zero bias; the default gain is that for layers before a ReLU."""
    nn.init.orthogonal_(layer.weight, gain)
    if layer.bias is not None:
        nn.init.zeros_(layer.bias)
    return layer


def _tower(num_inputs: int, hidden: Sequence[int], num_outputs: int, gain: float) -> nn.Sequential:
    sizes = [num_inputs, *hidden]
    layers: list[nn.Module] = []
    for before, after in itertools.pairwise(sizes):
        layers += [orthogonal(nn.Linear(before, after)), nn.Tanh()]
    return nn.Sequential(*layers, orthogonal(nn.Linear(sizes[-1], num_outputs), gain))


class _DownBlock(nn.Module):
    """A convolution, a pooling that halves each side (rounding up), two residual blocks."""

    def __init__(self, conv: nn.Conv2d) -> None:
        super().__init__()
        self.conv = orthogonal(conv)
        self.residual1 = _ResidualBlock(conv.out_channels)
        self.residual2 = _ResidualBlock(conv.out_channels)

    def forward(self, x: Tensor) -> Tensor:
        pooled = functional.max_pool2d(self.conv(x), kernel_size=3, stride=2, padding=1)
        result: Tensor = self.residual2(self.residual1(pooled))
        return result


class _ResidualBlock(nn.Module):
    def __init__(self, channels: int) -> None:
        super().__init__()
        self.conv1 = orthogonal(nn.Conv2d(channels, channels, kernel_size=3, padding=1))
        self.conv2 = orthogonal(nn.Conv2d(channels, channels, kernel_size=3, padding=1))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.conv2(functional.relu(self.conv1(functional.relu(x)), inplace=True))
        return out + x


def _flatten_channels_last(x: Tensor) -> Tensor:
    """[N, C, H, W] to [N, H * W * C]: in channels-last memory, which the convolutions leave, that is no copy."""
    return x.permute(0, 2, 3, 1).flatten(1)


def _image_shape(obs_shape: Sequence[int]) -> tuple[int, int, int]:
    if len(obs_shape) != 3:
        raise ValueError(f"obs_shape is {list(obs_shape)}, expected [C, H, W]")
    channels, height, width = obs_shape
    return channels, height, width
