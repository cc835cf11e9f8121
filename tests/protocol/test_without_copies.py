"""Large arrays are sent from the user's own memory and built in the memory that they arrived in."""

from __future__ import annotations

import pickle
from typing import Any

import numpy as np
import pytest
import torch

from asyncparl.protocol import values
from asyncparl.protocol.frames import decode_frames, encode_frame
from asyncparl.protocol.messages import Returned
from asyncparl.protocol.values import decode_value, encode_value
from tests.protocol.strategies import Batch, peak_memory, received, wrapped


def as_bytes(buffer: Any) -> Any:
    return np.frombuffer(buffer, np.uint8)


def memory_of(data: Any) -> Any:
    return data.numpy() if isinstance(data, torch.Tensor) else data


LARGE = {
    "numpy": lambda: np.arange(50_000.0).reshape(100, 500),
    "numpy, Fortran order": lambda: np.arange(50_000.0).reshape(100, 500).T,
    "numpy, a slice": lambda: np.arange(50_000.0)[10_000:],
    "numpy, strings": lambda: np.array(["word"] * 10_000),
    "numpy, structured": lambda: np.ones(5_000, [("a", "<i4"), ("b", "<f8")]),
    "numpy, big-endian": lambda: np.arange(50_000, dtype=">f8"),
    "numpy, dates": lambda: np.arange(50_000).astype("M8[s]"),
    "torch": lambda: torch.arange(50_000.0).reshape(100, 500),
    "torch, a slice": lambda: torch.arange(50_000.0)[10_000:],
}
large = pytest.mark.parametrize("make", LARGE.values(), ids=list(LARGE))


@wrapped
@large
def test_a_large_array_is_sent_from_its_own_memory(make: Any, wrap: Any, unwrap: Any) -> None:
    data = make()
    encoded = encode_value(wrap(data))
    [buffer] = encoded.buffers
    assert np.shares_memory(memory_of(data), as_bytes(buffer))
    assert len(buffer) == memory_of(data).nbytes
    assert len(encoded.payload) < 600


@wrapped
@large
def test_a_large_array_is_built_in_the_memory_it_arrived_in(make: Any, wrap: Any, unwrap: Any) -> None:
    data = make()
    message = bytearray(b"".join(encode_frame(Returned(1), *encode_value(wrap(data)))))
    [frame] = decode_frames(memoryview(message))
    got = memory_of(unwrap(decode_value(frame.payload, frame.buffers)))
    assert got.tolist() == memory_of(data).tolist()
    assert got.flags.writeable
    assert np.shares_memory(got, as_bytes(message))

    offset = got.__array_interface__["data"][0] - as_bytes(message).__array_interface__["data"][0]
    assert offset % 64 == 0


@wrapped
def test_sending_and_receiving_8_mb_allocates_next_to_nothing(wrap: Any, unwrap: Any) -> None:
    array = np.zeros(1_000_000)
    encoded = encode_value(wrap(array))
    views = [memoryview(bytearray(buffer)) for buffer in encoded.buffers]
    assert peak_memory(lambda: encode_value(wrap(array))) < 20_000
    assert peak_memory(lambda: decode_value(encoded.payload, views)) < 20_000


def test_received_memory_that_is_read_only_gives_a_read_only_array() -> None:
    # shared weights are mapped read-only
    encoded = encode_value(np.arange(1000))
    got = decode_value(encoded.payload, [memoryview(bytes(buffer)) for buffer in encoded.buffers])
    assert not got.flags.writeable


def test_the_encoding_follows_the_array_until_it_is_detached() -> None:
    array = np.zeros(1000)
    encoded = encode_value([array])
    detached = encoded.detach()
    array[:] = 7
    assert decode_value(*received(encoded))[0].sum() == 7000
    assert decode_value(*received(detached))[0].sum() == 0


def test_detaching_what_has_no_buffers_changes_nothing() -> None:
    encoded = encode_value([1, 2])
    assert encoded.detach() is encoded


@wrapped
@pytest.mark.parametrize("make", [np.arange, torch.arange], ids=["numpy", "torch"])
def test_a_small_array_is_part_of_the_payload(make: Any, wrap: Any, unwrap: Any) -> None:
    data = make(5)
    encoded = encode_value(wrap(data))
    assert not encoded.buffers
    data[:] = 9  # too late
    got = unwrap(decode_value(encoded.payload))
    assert got.tolist() == [0, 1, 2, 3, 4]
    got[0] = 1


@pytest.mark.parametrize("wrap", [lambda data: data, Batch], ids=["plain", "in a dataclass"])
@pytest.mark.parametrize("make", [np.zeros, torch.zeros], ids=["numpy", "torch"])
def test_more_arrays_than_a_frame_has_room_for_travel_inside_the_payload(
    make: Any, wrap: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(values, "MAX_BUFFERS", 3)
    encoded = encode_value(wrap([make(500) + i for i in range(5)]))
    assert len(encoded.buffers) == 3
    got = decode_value(*received(encoded))
    got = got if isinstance(got, list) else got.data
    assert [data.sum() for data in got] == [500 * i for i in range(5)]


def test_a_pickle_buffer_of_the_users_own_travels_out_of_band() -> None:
    memory = bytearray(5000)
    [buffer] = encode_value(pickle.PickleBuffer(memory)).buffers
    assert np.shares_memory(as_bytes(memory), as_bytes(buffer))
