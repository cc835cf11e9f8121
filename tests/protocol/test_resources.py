"""Demands, capacities and leases: what is refused, how amounts are counted, and what is on the wire."""

from __future__ import annotations

import re
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from asyncparl.protocol.resources import (
    ONE,
    UNLIMITED,
    Capacity,
    Demand,
    Lease,
    Need,
    check_capacity,
    check_demand,
    lease_fault,
    need_of,
    thousandths,
)
from tests.protocol.strategies import many

NAN, INF = float("nan"), float("inf")
LEASE = Lease("a1", "Simulator#1", "d1", "n1", Demand(cpus=2, gpus=0.5, labels={"zone": "b"}), [1], 0.5)


@pytest.mark.parametrize(
    ("amount", "expected"),
    [
        (0, 0),
        (0.1, 100),
        (0.29, 290),  # the float is 0.28999999999999998
        (1.001, 1001),  # 1.001 * 1000 is 1000.9999999999999
        (1 / 3, 333),
        (1 / 7, 142),
        (0.0004, 0),
        (0.9999, 999),
        (64, 64_000),
        (1_000_000, 1_000_000_000),
        (INF, UNLIMITED),
    ],
)
def test_amounts_are_counted_in_thousandths(amount: float, expected: int) -> None:
    assert thousandths(amount) == expected


def test_ten_tenths_are_one() -> None:
    assert sum(0.1 for _ in range(10)) != 1
    assert sum(thousandths(0.1) for _ in range(10)) == thousandths(1)


@given(st.integers(1, 1000))
def test_n_actors_of_a_share_of_one_nth_always_fit(n: int) -> None:
    assert ONE - n < n * thousandths(1 / n) <= ONE


def test_a_share_survives_the_way_through_a_float() -> None:
    assert [thousandths(share / ONE) for share in range(ONE + 1)] == list(range(ONE + 1))


@pytest.mark.parametrize(
    ("demand", "need"),
    [
        (Demand(), Need(1000, 0, 0, 0, ())),
        (Demand(cpus=0.5, gpus=0.25), Need(500, 0, 1, 250, ())),
        (Demand(cpus=0, gpus=1), Need(0, 0, 1, 1000, ())),
        (Demand(gpus=3, memory_bytes=7), Need(1000, 7, 3, 1000, ())),
        (Demand(labels={"b": "2", "a": "1"}), Need(1000, 0, 0, 0, (("a", "1"), ("b", "2")))),
    ],
)
def test_a_demand_in_whole_numbers(demand: Demand, need: Need) -> None:
    assert need_of(demand) == need


@pytest.mark.parametrize(
    "demand",
    [
        Demand(),
        Demand(cpus=0),
        Demand(cpus=0.001, gpus=0.001),
        Demand(gpus=8),
        Demand(gpus=1.0),
        Demand(cpus=1_000_000),
    ],
)
def test_what_may_be_asked_for(demand: Demand) -> None:
    check_demand(demand)


@pytest.mark.parametrize(
    ("demand", "message"),
    [
        (Demand(cpus=-1), "num_cpus is -1: it must be 0 or more"),
        (Demand(cpus=NAN), "num_cpus is nan: it must be a finite number"),
        (Demand(cpus=INF), "num_cpus is inf: it must be a finite number"),
        (Demand(cpus=2_000_000), "num_cpus is 2e+06: more than 1,000,000 are not supported"),
        (Demand(cpus=10**400), "num_cpus has too many digits"),
        (Demand(cpus=0.0004), "num_cpus is 0.0004: the smallest share is 0.001"),
        (Demand(gpus=-0.5), "num_gpus is -0.5: it must be 0 or more"),
        (Demand(gpus=NAN), "num_gpus is nan: it must be a finite number"),
        (Demand(gpus=1.5), "num_gpus is 1.5: ask for a whole number of GPUs, or for a part of one"),
        (Demand(memory_bytes=-1), "max_memory is -1: it must be 0 or more"),
        (Demand(memory_bytes=1 << 63), f"max_memory is {1 << 63}: more than {1 << 62:,} are not supported"),
    ],
)
def test_what_may_not(demand: Demand, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_demand(demand)


@pytest.mark.parametrize(
    ("capacity", "message"),
    [
        (Capacity(cpus=NAN), "cpus is nan: it must be a finite number"),
        (Capacity(cpus=-INF), "cpus is -inf: it must be a finite number"),
        (Capacity(cpus=1, num_gpus=-1), "gpus is -1: it must be 0 or more"),
        (Capacity(cpus=1, num_gpus=1025), "gpus is 1025: more than 1,024 are not supported"),
        (Capacity(cpus=1, memory_bytes=-1), "memory is -1: it must be 0 or more"),
    ],
)
def test_what_a_node_may_not_offer(capacity: Capacity, message: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(message)}$"):
        check_capacity(capacity)


def test_a_node_may_offer_cpus_without_limit() -> None:
    check_capacity(Capacity(cpus=INF))


@pytest.mark.parametrize(
    ("changes", "fault"),
    [
        ({}, None),
        ({"demand": Demand(gpus=2), "gpu_ids": [0, 1], "gpu_share": 1.0}, None),
        ({"demand": Demand(), "gpu_ids": [], "gpu_share": 0.0}, None),
        ({"node_id": "n2"}, "the lease of Simulator#1 is for node n2"),
        ({"gpu_ids": [2]}, "the lease of Simulator#1: gpu_ids is [2], but the node has 2 GPUs"),
        ({"gpu_ids": [-1]}, "the lease of Simulator#1: gpu_ids is [-1], but the node has 2 GPUs"),
        ({"gpu_ids": []}, "the lease of Simulator#1: gpu_ids is [], but the node has 2 GPUs"),
        ({"gpu_ids": [1, 1]}, "the lease of Simulator#1: gpu_ids is [1, 1], but the node has 2 GPUs"),
        ({"gpu_ids": [1, 5]}, "the lease of Simulator#1: gpu_ids is [1, 5], but the node has 2 GPUs"),
        ({"gpu_share": 1.0}, "the lease of Simulator#1: gpu_share is 1, but gpus is 0.5"),
        ({"gpu_share": NAN}, "the lease of Simulator#1: gpu_share is nan, but gpus is 0.5"),
        ({"demand": Demand(cpus=-1)}, "the lease of Simulator#1: num_cpus is -1: it must be 0 or more"),
    ],
)
def test_leases_that_a_node_can_and_cannot_have(changes: dict[str, Any], fault: str | None) -> None:
    assert lease_fault(msgspec.structs.replace(LEASE, **changes), "n1", Capacity(cpus=1, num_gpus=2)) == fault


def test_a_lease_on_the_wire() -> None:
    assert msgspec.json.decode(msgspec.json.encode(LEASE)) == {
        "actor_id": "a1",
        "actor_name": "Simulator#1",
        "driver_id": "d1",
        "node_id": "n1",
        "demand": {"cpus": 2, "gpus": 0.5, "memory_bytes": 0, "labels": {"zone": "b"}, "strategy": "pack"},
        "gpu_ids": [1],
        "gpu_share": 0.5,
        "title": {
            "program_id": "",
            "class_path": ["", ""],
            "public_name": "",
            "is_detached": False,
            "may_restart": False,
            "num_restarts": 0,
            "call_timeout_s": None,
        },
    }


amounts = st.floats(0, 100)
labels = st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=2)
demands = st.builds(
    Demand,
    cpus=amounts,
    gpus=amounts,
    memory_bytes=st.integers(0, 1 << 62),
    labels=labels,
    strategy=st.sampled_from(["pack", "spread"]),
)


@many
@given(demands, st.builds(Capacity, cpus=amounts | st.just(INF), num_gpus=st.integers(0, 9), labels=labels))
def test_demands_and_capacities_round_trip(demand: Demand, capacity: Capacity) -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(demand), type=Demand) == demand
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(capacity), type=Capacity) == capacity


def test_an_older_peer_may_leave_out_and_a_newer_one_may_add_fields() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode({"cpus": 2, "tpus": 1}), type=Demand) == Demand(cpus=2)


def test_an_unknown_strategy_is_no_demand() -> None:
    with pytest.raises(msgspec.ValidationError, match="strategy"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"strategy": "anywhere"}), type=Demand)
