"""`Algorithm`: how a model is trained and how it acts. Knows neither environments nor the runtime."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray
from torch import Tensor
from torch.nn import Module

from asyncparl.algorithms.rollout import Rollout
from asyncparl.algorithms.weights import check_fit, get_weights, set_weights


class Algorithm(ABC):
    """Learns from rollouts and chooses actions with one model, on the device where that model lies.

    Not thread-safe: one thread at a time. `agent_steps` and `updates` count what it has learned from so far.
    """

    def __init__(self, model: Module) -> None:
        self.model = model
        self.agent_steps = 0
        self.updates = 0

    @abstractmethod
    def learn(self, rollout: Rollout[Tensor]) -> dict[str, Tensor]:
        """One update. Returns metrics as detached scalars that nobody has waited for yet."""

    @abstractmethod
    def predict(self, obs: Tensor) -> Tensor:
        """The best actions, [N] for observations [N, ...]."""

    @abstractmethod
    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions drawn from the policy and their log-probabilities, both [N]."""

    def initial_state(self, num_envs: int) -> Tensor | None:
        """[N, S] what the model remembers when an episode begins; None: it has no memory.

        Where there is one, `predict` and `sample` also take such a state, and return the next one behind the rest.
        """
        return None

    def get_weights(self) -> dict[str, NDArray[Any]]:
        """A copy of the model's weights by name."""
        return get_weights(self.model)

    def set_weights(self, weights: Mapping[str, NDArray[Any]]) -> None:
        """Copy weights into the model; ValueError if they do not fit, and nothing has changed then."""
        set_weights(self.model, weights)

    def state_dict(self) -> dict[str, Any]:
        """A copy of everything that learning depends on. Subclasses add theirs."""
        return {
            "algorithm": type(self).__name__,
            "model": copy.deepcopy(self.model.state_dict()),
            "agent_steps": self.agent_steps,
            "updates": self.updates,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state that `state_dict()` returned.

        Raises:
            ValueError: it is another algorithm's, or of a model of another shape. Nothing has changed then.
        """
        self.check_state(state)
        self.model.load_state_dict(state["model"])
        self.agent_steps = int(state["agent_steps"])
        self.updates = int(state["updates"])

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless `load_state_dict(state)` would work."""
        if state["algorithm"] != type(self).__name__:
            raise ValueError(f"the state is of {state['algorithm']}, not of {type(self).__name__}")
        check_fit(self.model.state_dict(), state["model"])
