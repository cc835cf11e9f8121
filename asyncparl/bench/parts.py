"""What is measured, and who does it too."""

from __future__ import annotations

import importlib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, NamedTuple

from asyncparl.bench.report import Emit
from asyncparl.training.presets import AlgorithmName


class Part(NamedTuple):
    """A table; on the command line a ROW."""

    module: str
    """In this folder; has `measure(repeats, emit)`."""
    title: str
    peers: tuple[str, ...] = ()
    """Keys of `PEERS`."""
    limit_s: float = 240
    """When this or a peer takes longer, it is ended, and what it has measured by then counts."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    """More for `measure`."""

    def measure(self, repeats: int, emit: Emit) -> None:
        """In this process."""
        importlib.import_module(f"asyncparl.bench.{self.module}").measure(repeats, emit, **self.arguments)


class Peer(NamedTuple):
    """Somebody else's system."""

    title: str
    program: str
    """Module of `peers/`."""
    requirements: str
    """File beside it: exact versions of everything that goes into the peer's virtual environment."""
    package: str
    """The one whose version is told."""


PEERS = {
    "ray": Peer("Ray", "ray_actors", "ray.txt", "ray"),
    "parl": Peer("PARL's way", "parl_way", "parl.txt", "pyzmq"),
    "rllib": Peer("RLlib", "rllib_impala", "rllib.txt", "ray"),
    "sample-factory": Peer("Sample Factory", "sample_factory_appo", "sample-factory.txt", "sample-factory"),
}

_ACTORS = ("ray", "parl")


def _training(title: str, algorithm: AlgorithmName, peers: tuple[str, ...] = ()) -> Part:
    return Part("training", f"{title} on Pong", peers, limit_s=600, arguments={"algorithm": algorithm})


PARTS = {
    "calls": Part("calls", "Empty calls", _ACTORS),
    "start": Part("start", "Actors, warm", _ACTORS),
    "many": Part("many", "Many actors", _ACTORS),
    "arrays": Part("arrays", "Arrays from an actor to its caller", _ACTORS),
    "weights": Part("weights", "Weights to sixteen actors", _ACTORS),
    "busy-link": Part("busy_link", "Small calls beside a large result", _ACTORS),
    "footprint": Part("footprint", "Import, and growth of memory"),
    "impala": _training("IMPALA", "impala", ("rllib", "sample-factory")),
    "a2c": _training("A2C", "a2c"),
    "ga3c": _training("GA3C", "ga3c"),
}
