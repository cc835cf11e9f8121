"""The process group of several learners: torch.distributed, behind the little that they need of it.

The first learner has the store by which they find each other, a `TCPStore` of torch. Then each has a connection to
each, over which gloo (between CPUs) or NCCL (between GPUs) adds up. None of these encrypts, or asks who somebody is.

Import this only where there are several learners: it takes its time.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, TCPStore

from asyncparl.training.errors import LearnersParted, TrainingError

Backend = Literal["gloo", "nccl"]

REACH_LIMIT_S = 5.0
"""How long a host may take to answer that somebody listens there."""

FORM_LIMIT_S = 60.0
"""How long learners may take to connect to each other, when all of them are ready to."""

ADD_UP_LIMIT_S: Mapping[Backend, float] = {"gloo": 10.0, "nccl": 60.0}
"""The last resort: how long gloo waits for the next packet, and NCCL for the whole. All learners are there when they
begin, and one that dies is noticed by its connections, at once. So it decides only if a host is cut off, or stopped, at
that very moment; of a cut one a report comes after 5 s, upon which NCCL is aborted. That cannot be done to gloo."""

LOOPBACK = "127.0.0.1"


class Store:
    """The store in the first learner's process, at a free port.

    Args:
        addresses: of this host, at which the others may find it; the loopback one is for no other host.

    Raises:
        TrainingError: it cannot listen.
    """

    def __init__(self, addresses: Sequence[str]) -> None:
        self.addresses = addresses
        is_local = list(addresses) == [LOOPBACK]
        try:
            listener = socket.create_server((LOOPBACK, 0)) if is_local else _listen_anywhere()
        except OSError as error:
            raise TrainingError(f"the first learner cannot listen: {error.strerror or error}") from error
        self.port = int(listener.getsockname()[1])
        self.store = TCPStore(
            LOOPBACK,
            self.port,
            is_master=True,
            wait_for_workers=False,
            timeout=timedelta(seconds=FORM_LIMIT_S),
            master_listen_fd=listener.detach(),  # it is the store's now
        )


def _listen_anywhere() -> socket.socket:
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", 0), family=socket.AF_INET6, dualstack_ipv6=True)
    return socket.create_server(("", 0))


def can_reach(address: str, port: int) -> bool:
    """Whether somebody listens there. Blocks."""
    try:
        socket.create_connection((address, port), timeout=REACH_LIMIT_S).close()
    except OSError:
        return False
    return True


def best_backend(gpus: Sequence[tuple[str, str | None]]) -> Backend:
    """By the host and the GPU of every learner."""
    has_own = len(set(gpus)) == len(gpus) and all(gpu is not None for _, gpu in gpus)
    return "nccl" if has_own and dist.is_nccl_available() else "gloo"


def find_store(address: str, port: int) -> TCPStore:
    """The first learner's store, from another one. Blocks.

    Raises:
        TrainingError: it cannot be reached in time.
    """
    try:
        return TCPStore(address, port, is_master=False, wait_for_workers=False, timeout=timedelta(seconds=FORM_LIMIT_S))
    except RuntimeError as error:
        raise TrainingError(f"the first learner cannot be reached at {address}, port {port}: {_line(error)}") from error


class LearnerGroup:
    """All learners, each in its process; `add_up` is what they do together.

    Making it blocks until all of them do. Use `add_up` from one thread; `close` it from any.

    Args:
        store: the same for all.
        index: which of them this is.
        address: of this host, at which the others find it.
        backend: "nccl" if each has a GPU of its own; with "gloo" what is on a GPU passes through CPU memory.
        device: where the tensors are.

    Raises:
        TrainingError: they do not find each other in time.
    """

    def __init__(
        self,
        store: TCPStore,
        index: int,
        num_learners: int,
        *,
        address: str,
        backend: Backend,
        device: torch.device,
    ) -> None:
        self._copies = backend == "gloo" and device.type != "cpu"
        self._backend = backend
        self._group: Any = None
        try:
            self._group = self._make(store, index, num_learners, address, device)
            self.add_up(torch.zeros(1, device=device))  # all connections are there
        except RuntimeError as error:
            raise TrainingError(f"the learners do not find each other from {address}: {_line(error)}") from error

    def add_up(self, tensor: Tensor) -> None:
        """Put the sum over all learners in the place of a contiguous tensor.

        Raises:
            LearnersParted: another one has gone. What the tensor holds is worth nothing then.
        """
        here = tensor.cpu() if self._copies else tensor
        try:
            self._group.allreduce([here]).wait()
        except RuntimeError as error:
            raise LearnersParted(f"the learners have lost each other: {_line(error)}") from error
        if self._copies:
            tensor.copy_(here)

    def _make(self, store: Any, index: int, num_learners: int, address: str, device: torch.device) -> Any:
        """A group of our own: the default one of torch.distributed may be the user's."""
        distributed: Any = dist  # it does not tell type checkers all that it has
        limit, mine = timedelta(seconds=ADD_UP_LIMIT_S[self._backend]), PrefixStore(self._backend, store)
        if self._backend == "gloo":
            options = distributed.ProcessGroupGloo._Options()
            # By itself it would take the address of the host's name, which on many hosts is a loopback one.
            options._devices = [distributed.ProcessGroupGloo.create_device(hostname=address)]
            options._timeout = limit
            return distributed.ProcessGroupGloo(mine, index, num_learners, options)
        # A lost learner is an error of the run, and no reason to end this process.
        os.environ.setdefault("TORCH_NCCL_ASYNC_ERROR_HANDLING", "2")
        options = distributed.ProcessGroupNCCL.Options()
        options._timeout = limit
        group = distributed.ProcessGroupNCCL(mine, index, num_learners, options)
        group.eager_connect_single_device(device)
        return group

    def abort(self) -> None:
        """Have what is under way fail, where that can be done: in NCCL. From any thread."""
        if self._backend == "nccl" and self._group is not None:
            self._group.abort()

    def close(self) -> None:
        """Leave the others. Nothing may be under way."""
        self.abort()
        self._group = None


def gpu_identity(device: torch.device) -> str | None:
    """Which GPU that is, the same in every process of the machine; None: it is none."""
    return None if device.type != "cuda" else str(torch.cuda.get_device_properties(device).uuid)


def _line(error: Exception) -> str:
    return (str(error).splitlines() or [""])[0]
