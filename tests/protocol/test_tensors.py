"""CPU torch tensors of every kind arrive equal."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from asyncparl.protocol.values import decode_value, encode_value
from tests.protocol.strategies import Batch, received, travel, wrapped

DTYPES = [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64, torch.uint16, torch.bool]
DTYPES += [torch.float16, torch.bfloat16, torch.float32, torch.float64, torch.float8_e4m3fn]
DTYPES += [torch.complex64, torch.complex128]


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)


def assert_same(got: Any, tensor: torch.Tensor) -> None:
    assert type(got) is type(tensor)
    assert (got.dtype, got.shape, got.requires_grad) == (tensor.dtype, tensor.shape, tensor.requires_grad)
    assert torch.equal(bits(got), bits(tensor))


@wrapped
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_a_tensor_of_any_dtype_and_shape_arrives(dtype: Any, wrap: Any, unwrap: Any) -> None:
    for shape in ((), (0,), (3, 0), (5,), (40, 50)):
        tensor = torch.randint(0, 100, shape).to(dtype)
        assert_same(unwrap(travel(wrap(tensor))), tensor)


OTHER_TENSORS = {
    "transposed": lambda: torch.arange(6000.0).reshape(2, 30, 100).transpose(0, 2),
    "with gaps": lambda: torch.arange(6000.0)[::3],
    "expanded": lambda: torch.arange(3.0).expand(5, 3),
    "channels last": lambda: torch.randn(2, 3, 16, 16).to(memory_format=torch.channels_last),
    "a slice": lambda: torch.arange(300.0)[100:200],
    "NaN and infinity": lambda: torch.tensor([float("nan"), float("inf"), -0.0]),
    "conjugated": lambda: torch.full((300,), 1j).conj(),
    "negated lazily": lambda: torch.full((300,), 1j).conj().imag,
    "negated lazily, contiguous": lambda: torch._neg_view(torch.arange(300.0)),
    "requires grad": lambda: torch.ones(300, requires_grad=True),
    "has a history": lambda: torch.ones(300, requires_grad=True) * 2,
    "parameter": lambda: torch.nn.Parameter(torch.ones(300)),
    "frozen parameter": lambda: torch.nn.Parameter(torch.ones(3), requires_grad=False),
}


@wrapped
@pytest.mark.parametrize("make", OTHER_TENSORS.values(), ids=list(OTHER_TENSORS))
def test_a_tensor_that_is_no_plain_piece_of_memory_arrives(make: Any, wrap: Any, unwrap: Any) -> None:
    tensor = make()
    assert_same(unwrap(travel(wrap(tensor))), tensor)


def test_a_sparse_tensor_arrives() -> None:
    got = travel(torch.eye(40).to_sparse())
    assert got.is_sparse and torch.equal(got.to_dense(), torch.eye(40))


@wrapped
def test_an_attribute_of_a_tensor_arrives(wrap: Any, unwrap: Any) -> None:
    tensor = torch.zeros(3)
    tensor.label = "kept"  # type: ignore[attr-defined]
    assert unwrap(travel(wrap(tensor))).label == "kept"


@wrapped
def test_a_view_travels_without_the_rest_of_its_storage(wrap: Any, unwrap: Any) -> None:
    encoded = encode_value(wrap(torch.zeros(1_000_000)[:300]))
    assert len(encoded.payload) + sum(map(len, encoded.buffers)) < 2000


def test_a_module_arrives_and_its_weights_travel_out_of_band() -> None:
    module = torch.nn.Sequential(torch.nn.Linear(100, 50), torch.nn.BatchNorm1d(50))
    weight = module[0].weight.detach().numpy()
    encoded = encode_value(module)
    assert any(np.shares_memory(weight, np.frombuffer(buffer, np.uint8)) for buffer in encoded.buffers)
    assert len(encoded.payload) < weight.nbytes

    got = decode_value(*received(encoded))
    for name, tensor in module.state_dict(keep_vars=True).items():
        assert_same(got.state_dict(keep_vars=True)[name], tensor)
    with torch.no_grad():
        got[0].weight.zero_()
    assert weight.any()  # the sender's is another


def test_one_tensor_in_two_places_arrives_as_one() -> None:
    tensor = torch.arange(1000)
    got = travel(Batch([tensor, (tensor,)])).data
    assert got[0] is got[1][0]
