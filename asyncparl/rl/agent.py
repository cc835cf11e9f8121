"""`Agent`: the side of an algorithm that environments and files see. numpy in, numpy out."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import Any, overload

import torch
from numpy.typing import NDArray
from torch import Tensor

from asyncparl.algorithms.arrays import as_array, as_tensor
from asyncparl.algorithms.base import Algorithm
from asyncparl.algorithms.rollout import Rollout, to_torch
from asyncparl.rl.checkpoint import get_random_state, read_checkpoint, set_random_state, write_checkpoint


class Agent:
    """Acts and learns with one algorithm. Not thread-safe: one thread at a time."""

    def __init__(self, algorithm: Algorithm) -> None:
        self.algorithm = algorithm

    def learn(self, rollout: Rollout[NDArray[Any]] | Rollout[Tensor]) -> dict[str, Tensor]:
        """One update from a rollout of arrays or tensors. The metrics stay tensors: reading one may wait for a GPU."""
        return self.algorithm.learn(to_torch(rollout, self._device()))

    def initial_state(self, num_envs: int) -> NDArray[Any] | None:
        """float32 [N, S]: what the model remembers when an episode begins; None: it has no memory.

        Where it has one, `predict` and `sample` also take such a state, and return the next one behind the rest.
        """
        state = self.algorithm.initial_state(num_envs)
        return None if state is None else as_array(state)

    @overload
    def predict(self, obs: NDArray[Any]) -> NDArray[Any]: ...

    @overload
    def predict(self, obs: NDArray[Any], state: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]: ...

    def predict(
        self, obs: NDArray[Any], state: NDArray[Any] | None = None
    ) -> NDArray[Any] | tuple[NDArray[Any], NDArray[Any]]:
        """The best actions, int64 [N] for observations [N, ...]."""
        results = self._act(self.algorithm.predict, obs, state)
        return results[0] if state is None else (results[0], results[1])

    @overload
    def sample(self, obs: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]: ...

    @overload
    def sample(self, obs: NDArray[Any], state: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]: ...

    def sample(self, obs: NDArray[Any], state: NDArray[Any] | None = None) -> tuple[NDArray[Any], ...]:
        """Actions drawn from the policy, int64 [N], and their log-probabilities, float32 [N]."""
        return self._act(self.algorithm.sample, obs, state)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write model, optimizer, schedule, counters and random state to one file, all of it or nothing.

        Raises:
            OSError: the file cannot be written; a former one is as it was.
        """
        write_checkpoint(path, {"learner": self.algorithm.state_dict(), "random": get_random_state()})

    def restore(self, path: str | os.PathLike[str]) -> None:
        """Continue exactly where `save` was called. Sets the global random state of torch, numpy and Python too.

        Raises:
            FileNotFoundError: there is no such file.
            ValueError: it is not a checkpoint, or one of another model or algorithm. Nothing has changed then.
        """
        state = read_checkpoint(path)
        try:
            self.algorithm.load_state_dict(state["learner"])
        except ValueError as error:
            raise ValueError(f"{os.fspath(path)} cannot be restored: {error}") from error
        set_random_state(state["random"])

    @property
    def training(self) -> bool:
        """Whether dropout, batch normalisation and the like are in training mode."""
        return self.algorithm.model.training

    def train(self) -> None:
        """Put the model in training mode."""
        self.algorithm.model.train()

    def eval(self) -> None:
        """Put the model in evaluation mode."""
        self.algorithm.model.eval()

    def get_weights(self) -> dict[str, NDArray[Any]]:
        """A copy of the model's weights by name."""
        return self.algorithm.get_weights()

    def set_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copy weights into the model; ValueError if they do not fit, and nothing has changed then."""
        self.algorithm.set_weights(weights)

    def _act(
        self, choose: Callable[..., Tensor | tuple[Tensor, ...]], obs: NDArray[Any], state: NDArray[Any] | None
    ) -> tuple[NDArray[Any], ...]:
        inputs = [as_tensor(each).to(self._device()) for each in (obs, state) if each is not None]
        results = choose(*inputs)
        return tuple(as_array(each) for each in (results if isinstance(results, tuple) else (results,)))

    def _device(self) -> torch.device:
        return next(self.algorithm.model.parameters()).device
