"""Which node an actor gets, by hand, and the sentences that say why it gets none."""

from __future__ import annotations

import pytest

from asyncparl.protocol.placement import NodeView, Placement, choose, missing, takes_from, waiting_reason
from asyncparl.protocol.resources import ONE, Capacity, Demand, Lease, need_of

GIB = 1 << 30
INF = float("inf")


def node(
    name: str,
    cpus: float = 8,
    gpus: list[float] | int = 0,
    *,
    used: float = 0,
    memory: int = 0,
    num_actors: int = 0,
    is_ready: bool = True,
    **labels: str,
) -> NodeView:
    """A node with `used` of its CPUs in use; `gpus` is how many it has, or what is free of each."""
    num_gpus = gpus if isinstance(gpus, int) else len(gpus)
    view = NodeView(name, name, Capacity(cpus, num_gpus, memory, labels), is_ready, num_actors)
    view.free_cpus -= round(used * ONE)
    if not isinstance(gpus, int):
        view.free_gpus = [round(free * ONE) for free in gpus]
    return view


def chosen(demand: Demand, *nodes: NodeView) -> str | None:
    placement = choose(demand, nodes)
    return None if placement is None else placement.node_id


@pytest.mark.parametrize(
    ("demand", "nodes", "expected"),
    [
        # What does not fit.
        (Demand(), [], None),
        (Demand(cpus=2), [node("a", used=6.5)], None),
        (Demand(cpus=1.5), [node("a", used=6.5)], "a"),
        (Demand(cpus=0), [node("a", used=9)], "a"),  # over-booked, but it asks for nothing
        (Demand(cpus=0.001), [node("a", used=9)], None),
        (Demand(), [node("a", is_ready=False), node("b")], "b"),
        (Demand(memory_bytes=2 * GIB), [node("a", memory=GIB), node("b", memory=2 * GIB)], "b"),
        (Demand(labels={"zone": "b"}), [node("a", zone="a"), node("b", zone="b")], "b"),
        (Demand(labels={"zone": "b"}), [node("a")], None),
        (Demand(labels={"zone": "b", "disk": "ssd"}), [node("a", zone="b"), node("b", disk="ssd", zone="b")], "b"),
        # Pack and spread.
        (Demand(), [node("a", used=1), node("b", used=5), node("c", used=3)], "b"),
        (Demand(cpus=4), [node("a", used=1), node("b", used=5), node("c", used=3)], "c"),
        (Demand(strategy="spread"), [node("a", used=1), node("b"), node("c", used=3)], "b"),
        (Demand(), [node("a", 64), node("b", 4)], "b"),
        (Demand(), [node("a"), node("b")], "a"),  # a tie
        (Demand(strategy="spread"), [node("a"), node("b")], "a"),
        (Demand(strategy="spread"), [node("a", num_actors=2), node("b", num_actors=1)], "b"),
        (Demand(cpus=0, strategy="spread"), [node("a", 64, num_actors=1), node("b", 4)], "b"),
        (Demand(), [node("a", INF, used=1), node("b", INF, used=2)], "b"),
        # GPUs.
        (Demand(), [node("a", 1, 2), node("b", 64)], "b"),  # it leaves GPU nodes to those who need them
        (Demand(), [node("a", gpus=2), node("b", used=8)], "a"),
        (Demand(strategy="spread"), [node("a", gpus=2), node("b", used=7)], "b"),
        (Demand(gpus=2), [node("a", gpus=[1, 0.5]), node("b", gpus=[1, 0.5, 1])], "b"),
        (Demand(gpus=1), [node("a", gpus=[0.9, 0.9])], None),
        (Demand(gpus=0.5), [node("a", gpus=[0.25, 0.25])], None),  # never from two
        (Demand(gpus=0.5), [node("a", used=7, gpus=[1.0]), node("b", gpus=[0.5])], "b"),  # a stays whole
        (Demand(gpus=1), [node("a", gpus=2), node("b", used=1, gpus=2)], "b"),
        (Demand(gpus=1, strategy="spread"), [node("a", gpus=[0, 1]), node("b", used=1, gpus=2)], "b"),
    ],
)
def test_the_node_that_is_chosen(demand: Demand, nodes: list[NodeView], expected: str | None) -> None:
    assert chosen(demand, *nodes) == expected


@pytest.mark.parametrize(
    ("gpus", "free", "gpu_ids"),
    [
        (0, [1, 1], []),
        (1, [1, 1], [0]),
        (1, [0.5, 1, 1], [1]),
        (2, [1, 0.5, 1, 1], [0, 2]),
        (0.5, [1, 1], [0]),
        (0.5, [1, 0.5], [1]),  # the least that is enough
        (0.3, [1, 0.2, 0.5, 0.4, 0.4], [3]),
        (0.2, [1, 0.2, 0.5], [1]),
    ],
)
def test_the_gpus_that_are_chosen(gpus: float, free: list[float], gpu_ids: list[int]) -> None:
    assert choose(Demand(gpus=gpus), [node("a", gpus=free)]) == Placement("a", gpu_ids)


def test_a_lease_is_taken_and_given_back_without_a_rest() -> None:
    view = node("a", cpus=1, gpus=1, memory=GIB)
    leases = [Lease(f"a{i}", "", "d", "a", Demand(0.1, 0.1, 7), [0], 0.1) for i in range(10)]
    for lease in leases:
        assert chosen(lease.demand, view) == "a"
        view.take(lease)
    assert (view.free_cpus, view.free_gpus, view.free_memory, view.num_actors) == (0, [0], GIB - 70, 10)
    assert chosen(Demand(cpus=0.001), view) is None
    for lease in leases:
        view.give_back(lease)
    assert (view.free_cpus, view.free_gpus, view.free_memory, view.num_actors) == (ONE, [ONE], GIB, 0)


@pytest.mark.parametrize(
    ("younger", "older", "view", "takes"),
    [
        (Demand(2), Demand(8), node("a", used=4), True),
        (Demand(2), Demand(16), node("a", used=4), False),  # it could never go there
        (Demand(2), Demand(4, labels={"zone": "b"}), node("a", used=4), False),
        (Demand(2), Demand(2), node("a", used=4), False),  # enough for both
        (Demand(2), Demand(2), node("a", used=5), True),
        (Demand(0), Demand(8), node("a", used=8), False),
        (Demand(2), Demand(0, memory_bytes=GIB), node("a", memory=GIB, used=6), False),
        (Demand(1, memory_bytes=1), Demand(1, memory_bytes=GIB), node("a", memory=GIB), True),
        # A GPU actor waits for a GPU: others may have the CPUs that it does not need.
        (Demand(3), Demand(1, gpus=1), node("a", used=4, gpus=[0]), False),
        (Demand(4), Demand(1, gpus=1), node("a", used=4, gpus=[0]), True),
        (Demand(1, gpus=0.5), Demand(1, gpus=1), node("a", gpus=[0, 0.5]), True),
    ],
)
def test_what_takes_from_an_older_demand(younger: Demand, older: Demand, view: NodeView, takes: bool) -> None:
    assert takes_from(need_of(younger), view, need_of(older)) is takes
    assert (choose(younger, [view], [need_of(older)]) is None) is takes


def test_a_younger_demand_goes_where_the_older_cannot() -> None:
    nodes = [node("small", 2), node("big", 8, used=7)]
    assert chosen(Demand(), *nodes) == "big"
    assert choose(Demand(), nodes, [need_of(Demand(8))]) == Placement("small", [])


CPU, GPU = node("cpu-1", 64, memory=16 * GIB), node("gpu-1", 8, 2, memory=4 * GIB, zone="b")


@pytest.mark.parametrize(
    ("demand", "nodes", "text"),
    [
        (Demand(), [], "there is no node yet that takes actors"),
        (Demand(64), [CPU, GPU], None),
        (Demand(64, gpus=0.0), [node("full", 64, used=64)], None),
        (Demand(64), [node("away", 64, is_ready=False)], None),
        (Demand(65), [CPU, GPU], "needs 65 CPUs; the node with the most has 64 (cpu-1)"),
        (Demand(1.5), [node("a", 0.5)], "needs 1.5 CPUs; the node with the most has 0.5 (a)"),
        (Demand(gpus=4), [CPU, GPU], "needs 4 GPUs; the node with the most has 2 (gpu-1)"),
        (Demand(gpus=0.5), [CPU], "needs 0.5 GPUs; the node with the most has 0 (cpu-1)"),
        (Demand(gpus=1), [CPU], "needs 1 GPU; the node with the most has 0 (cpu-1)"),
        (
            Demand(memory_bytes=32 * GIB),
            [CPU, GPU],
            "needs 32 GiB of memory; the node with the most has 16 GiB (cpu-1)",
        ),
        (
            Demand(memory_bytes=GIB),
            [node("a", memory=GIB - (1 << 20))],
            "needs 1 GiB of memory; the node with the most has 1023 MiB (a)",
        ),
        (Demand(memory_bytes=5), [node("a")], "needs 5 bytes of memory; the node with the most has 0 bytes (a)"),
        (Demand(labels={"zone": "a"}), [CPU, GPU], "no node has the label zone=a"),
        (
            Demand(labels={"zone": "b", "disk": "ssd"}),
            [GPU, node("a", disk="ssd")],
            "no node has all of the labels disk=ssd and zone=b",
        ),
        (
            Demand(65, labels={"zone": "b"}),
            [CPU, GPU],
            "needs 65 CPUs and the label zone=b; the node with the most has 8 (gpu-1)",
        ),
        (
            Demand(16, gpus=1),
            [CPU, GPU],
            "needs 16 CPUs and 1 GPU on one node; the nearest is cpu-1 with 64 CPUs and 0 GPUs",
        ),
        (
            Demand(16, gpus=1, memory_bytes=GIB),
            [node("a", 1, 1), CPU, GPU],
            (
                "needs 16 CPUs, 1 GPU and 1 GiB of memory on one node; "
                "the nearest is cpu-1 with 64 CPUs, 0 GPUs and 16 GiB of memory"
            ),
        ),
    ],
)
def test_what_is_missing(demand: Demand, nodes: list[NodeView], text: str | None) -> None:
    assert missing(demand, nodes) == text


@pytest.mark.parametrize(
    ("demand", "nodes", "text"),
    [
        (Demand(), [node("a", 4, used=4), node("b", 4, used=4)], "needs 1 CPU: 8 of 8 are in use on 2 nodes"),
        (Demand(2), [node("a", 8, used=7.5), node("b", 1)], "needs 2 CPUs: 7.5 of 8 are in use on 1 node"),
        (Demand(gpus=1), [node("a", gpus=[0.5, 0.25])], "needs 1 GPU: 1.25 of 2 are in use on 1 node"),
        (
            Demand(gpus=1),
            [node("a", used=8, gpus=[0])],
            "needs 1 CPU and 1 GPU: 8 of 8 CPUs and 1 of 1 GPU are in use on 1 node",
        ),
        (
            Demand(4, gpus=1),
            [node("a", used=8, gpus=1), node("b", gpus=[0])],
            "needs 4 CPUs and 1 GPU on one node: 8 of 16 CPUs and 1 of 2 GPUs are in use on 2 nodes",
        ),
        (Demand(8, gpus=4), [CPU, GPU], "needs 4 GPUs; the node with the most has 2 (gpu-1)"),
        (Demand(), [], "there is no node yet that takes actors"),
        (Demand(), [node("a", is_ready=False)], "only a could hold it, and is not connected now"),
        (Demand(), [node("a")], "needs 1 CPU: what is free is kept for others that have waited longer"),
    ],
)
def test_why_an_actor_waits(demand: Demand, nodes: list[NodeView], text: str) -> None:
    assert waiting_reason(demand, nodes) == text


def test_memory_in_use_is_told() -> None:
    view = node("a", memory=4 * GIB)
    view.take(Lease("x", "", "d", "a", Demand(0, memory_bytes=3 * GIB), [], 0.0))
    text = "needs 2 GiB of memory: 3 GiB of 4 GiB are in use on 1 node"
    assert waiting_reason(Demand(memory_bytes=2 * GIB), [view]) == text


@pytest.mark.parametrize(
    ("demand", "gpu_ids", "expected"),
    [
        (Demand(cpus=2), [], True),
        (Demand(cpus=2.001), [], False),
        (Demand(cpus=0, memory_bytes=GIB), [], True),
        (Demand(cpus=0, memory_bytes=GIB + 1), [], False),
        (Demand(cpus=0, gpus=0.5), [1], True),
        (Demand(cpus=0, gpus=0.5), [0], False),
        (Demand(cpus=0, gpus=1), [2], True),
        (Demand(cpus=0, gpus=2), [1, 2], False),
    ],
)
def test_room_for_a_lease_is_room_for_all_that_it_names(demand: Demand, gpu_ids: list[int], expected: bool) -> None:
    view = node("a", 3, [0.4, 0.5, 1], used=1, memory=GIB)
    lease = Lease("id", "name", "driver", "a", demand, gpu_ids, min(demand.gpus, 1.0))
    assert view.has_room_for(lease) is expected


def test_who_asks_for_nothing_has_room_where_there_is_none() -> None:
    assert node("a", 1, used=2).has_room_for(Lease("id", "name", "driver", "a", Demand(cpus=0), [], 0.0))
