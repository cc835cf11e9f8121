from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncparl.rl import MLP, MLPLSTM, AtariDeep, AtariDeepLSTM, AtariShallow, AtariShallowLSTM, Model, default_model
from asyncparl.rl.pixels import PixelConv2d


def pixels(*shape: int) -> Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


def num_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


SHALLOW = 16 * (4 * 64 + 1) + 32 * (16 * 16 + 1) + 256 * (32 * 9 * 9 + 1) + 7 * 257
DEEP_CONVS = 16 * (4 * 9 + 1) + 32 * (16 * 9 + 1) + 32 * (32 * 9 + 1)
DEEP = DEEP_CONVS + 4 * 16 * (16 * 9 + 1) + 8 * 32 * (32 * 9 + 1) + 256 * (32 * 11 * 11 + 1) + 7 * 257


@pytest.mark.parametrize(
    ("model", "obs", "parameters"),
    [
        (AtariShallow(6), pixels(3, 4, 84, 84), SHALLOW),
        (AtariShallow(6, (4, 60, 84)), pixels(3, 4, 60, 84), SHALLOW - 256 * 32 * (9 * 9 - 6 * 9)),
        (AtariShallow(6, (4, 42, 42)), pixels(3, 4, 42, 42), SHALLOW - 16 * 4 * (64 - 16)),  # as many features
        (AtariShallow(2, (1, 42, 50)), pixels(3, 1, 42, 50), 16 * 17 + 32 * 257 + 256 * (32 * 9 * 11 + 1) + 3 * 257),
        (AtariShallow(6, (4, 20, 20)), pixels(3, 4, 20, 20), 16 * 65 + 32 * 257 + 256 * (32 * 3 * 3 + 1) + 7 * 257),
        (AtariDeep(6), pixels(3, 4, 84, 84), DEEP),
        (AtariDeep(6, (4, 9, 17)), pixels(3, 4, 9, 17), DEEP - 256 * 32 * (11 * 11 - 2 * 3)),
        (MLP(5, 3), torch.randn(3, 5), 2 * (64 * 6 + 64 * 65) + 3 * 65 + 65),
        (MLP(5, 3, hidden=()), torch.randn(3, 5), 4 * 6),
        (MLP(50, 3), pixels(3, 10, 5), 2 * (64 * 51 + 64 * 65) + 3 * 65 + 65),
        (MLP(1, 3), torch.randint(9, (3,)), 2 * (64 * 2 + 64 * 65) + 3 * 65 + 65),
    ],
)
def test_shapes_dtypes_and_numbers_of_parameters(model: Model, obs: Tensor, parameters: int) -> None:
    logits, values = model(obs)
    assert logits.shape[0] == 3 and logits.ndim == 2
    assert values.shape == (3,)
    assert logits.dtype == values.dtype == torch.float32
    assert num_parameters(model) == parameters


def test_the_paper_sizes_are_as_published() -> None:
    assert round(num_parameters(AtariShallow(6)) / 1e6, 2) == 0.68
    assert round(num_parameters(AtariDeep(6)) / 1e6, 2) == 1.09


@pytest.mark.parametrize("net", [AtariShallow, AtariDeep])
def test_uint8_pixels_count_as_numbers_from_zero_to_one(net: Callable[[int], Model]) -> None:
    model = net(6)
    obs = pixels(5, 4, 84, 84)
    torch.testing.assert_close(model(obs), model(obs.float() / 255.0), rtol=1e-4, atol=1e-5)
    assert not torch.allclose(model(obs)[1], model(obs.float())[1], rtol=1e-2)


@pytest.mark.parametrize("net", [AtariShallow, AtariDeep])
def test_memory_format_changes_no_result(net: Callable[[int], Model]) -> None:
    model = net(6)
    obs = pixels(5, 4, 84, 84)
    expected = model(obs)
    torch.testing.assert_close(model(obs.contiguous(memory_format=torch.channels_last)), expected, rtol=1e-4, atol=1e-5)
    model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]
    torch.testing.assert_close(model(obs), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("net", [AtariShallow, AtariDeep])
def test_a_new_policy_is_nearly_uniform_and_every_parameter_learns(net: Callable[[int], Model]) -> None:
    torch.manual_seed(0)
    model = net(6)
    logits, values = model(pixels(5, 4, 84, 84))
    assert (logits.softmax(-1) - 1.0 / 6.0).abs().max() < 0.05
    assert values.std() > 0.01
    (logits.square().sum() + values.sum()).backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None and parameter.grad.abs().max() > 0.0, name


def test_layers_start_orthogonal_with_zero_bias() -> None:
    model = AtariShallow(6)
    for layer, gain in ((model.conv1, 2**0.5), (model.fc, 2**0.5), (model.head.policy, 0.01), (model.head.value, 1.0)):
        flat = layer.weight.detach().flatten(1)
        torch.testing.assert_close(flat @ flat.T, gain**2 * torch.eye(len(flat)), rtol=1e-4, atol=1e-4)
        assert layer.bias is not None
        assert not layer.bias.any()


def test_policy_and_value_of_an_mlp_share_nothing() -> None:
    model = MLP(5, 3)
    model(torch.randn(2, 5))[1].sum().backward()
    assert all(parameter.grad is None for parameter in model.policy.parameters())
    assert all(parameter.grad is not None for parameter in model.value.parameters())


@pytest.mark.parametrize(
    ("arguments", "shape"),
    [
        ({"kernel_size": 8, "stride": 4}, (3, 4, 84, 84)),  # in blocks
        ({"kernel_size": (4, 8), "stride": 4}, (2, 1, 12, 20)),  # in blocks, not square
        ({"kernel_size": 8, "stride": 4}, (3, 4, 84, 85)),  # the rest is not
        ({"kernel_size": 7, "stride": 4}, (3, 4, 84, 84)),
        ({"kernel_size": 8, "stride": 4, "padding": 2}, (3, 4, 84, 84)),
        ({"kernel_size": 8, "stride": 4, "dilation": 2}, (3, 4, 84, 84)),
        ({"kernel_size": 8, "stride": 4, "groups": 2}, (3, 4, 84, 84)),
        ({"kernel_size": 8, "stride": 4, "bias": False}, (3, 4, 84, 84)),
        ({"kernel_size": 4, "stride": 2}, (3, 4, 84, 84)),
        ({"kernel_size": 3, "stride": 1, "padding": 1}, (3, 4, 10, 10)),
    ],
)
def test_a_pixel_convolution_is_a_plain_one_of_scaled_pixels(arguments: dict[str, Any], shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    fast = PixelConv2d(shape[1], 6, **arguments)
    plain = nn.Conv2d(shape[1], 6, **arguments)
    plain.load_state_dict(fast.state_dict())
    obs = pixels(*shape)
    result, expected = fast(obs), plain(obs.float() / 255.0)
    torch.testing.assert_close(result, expected, rtol=1e-4, atol=1e-5)

    direction = torch.randn(result.shape)
    (result * direction).sum().backward()
    (expected * direction).sum().backward()
    for one, other in zip(fast.parameters(), plain.parameters(), strict=True):
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize(
    "obs",
    [
        pixels(6, 4, 84, 84)[::2],
        pixels(3, 4, 84, 100)[..., 8:92],
        pixels(3 * 4 * 84 * 84 + 1)[1:].view(3, 4, 84, 84),
        pixels(3, 84, 84, 4).permute(0, 3, 1, 2),
    ],
    ids=["every other image", "cropped", "at an odd address", "colours last"],
)
def test_a_pixel_convolution_takes_views_of_larger_arrays(obs: Tensor) -> None:
    conv = PixelConv2d(4, 6, kernel_size=8, stride=4)
    torch.testing.assert_close(conv(obs), conv(obs.clone().contiguous()), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("obs_shape", "dtype", "kind"),
    [
        ((4, 84, 84), np.uint8, AtariShallow),
        ((1, 20, 20), "uint8", AtariShallow),
        ((4, 19, 84), np.uint8, MLP),
        ((10, 10, 4), np.bool_, MLP),
        ((84, 84, 4), np.float32, MLP),
        ((4,), np.float32, MLP),
        ((128,), np.uint8, MLP),
        ((), np.int64, MLP),
    ],
)
def test_the_default_model_follows_from_the_observation(obs_shape: tuple[int, ...], dtype: str, kind: type) -> None:
    model = default_model(obs_shape, dtype, num_actions=5)
    assert type(model) is kind
    obs = torch.from_numpy(np.zeros((2, *obs_shape), dtype))
    assert model(obs)[0].shape == (2, 5)


@pytest.mark.parametrize(
    ("obs_shape", "dtype", "kind"),
    [((4, 84, 84), np.uint8, AtariShallowLSTM), ((10, 5), np.float32, MLPLSTM), ((), np.int64, MLPLSTM)],
)
def test_the_default_model_may_have_an_lstm_of_256(obs_shape: tuple[int, ...], dtype: Any, kind: type) -> None:
    model = default_model(obs_shape, dtype, num_actions=5, lstm=True)
    assert type(model) is kind
    state = model.initial_state(2)  # type: ignore[operator]
    assert [part.shape for part in state] == [(2, 256), (2, 256)]
    obs = torch.from_numpy(np.zeros((2, *obs_shape), dtype))
    logits, values, (h, c) = model(obs, state)
    assert (logits.shape, values.shape, h.shape, c.shape) == ((2, 5), (2,), (2, 256), (2, 256))


LSTM_AND_HEAD = 4 * 256 * (256 + 256 + 2) + 7 * 257


def test_networks_with_an_lstm_see_with_the_layers_of_those_without() -> None:
    for net, plain, size in ((AtariShallowLSTM, AtariShallow, SHALLOW), (AtariDeepLSTM, AtariDeep, DEEP)):
        torch.manual_seed(0)
        model, other = net(6, obs_shape=(4, 84, 84)), plain(6)
        assert num_parameters(model) == size - 7 * 257 + LSTM_AND_HEAD
        model.torso.load_state_dict({n: t for n, t in other.state_dict().items() if not n.startswith("head")})
        assert torch.equal(model.features(pixels(3, 4, 84, 84)), other.features(pixels(3, 4, 84, 84)))


def test_an_lstm_forgets_little_at_first() -> None:
    lstm = MLPLSTM(4, 3, num_units=8).lstm
    assert (lstm.bias_ih + lstm.bias_hh).tolist() == [0.0] * 8 + [1.0] * 8 + [0.0] * 16


def test_images_that_no_model_fits_are_refused() -> None:
    with pytest.raises(ValueError, match=r"^no default model for images of shape \[210, 160, 3\]: give \[C, H, W\]"):
        default_model((210, 160, 3), np.uint8, 4)
    with pytest.raises(ValueError, match=r"^images are 19 x 84, expected at least 20 pixels a side$"):
        AtariShallow(4, (4, 19, 84))
    with pytest.raises(ValueError, match=r"^obs_shape is \[84, 84\], expected \[C, H, W\]$"):
        AtariDeep(4, (84, 84))
