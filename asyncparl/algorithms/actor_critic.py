"""What algorithms with a policy and a value share: the forward pass, acting, and the optimizer step."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from asyncparl.algorithms.base import Algorithm
from asyncparl.algorithms.categorical import sample
from asyncparl.algorithms.schedule import LinearDecay

Precision = Literal["fp32", "bf16"]


class ActorCritic(Algorithm):
    """A model whose `forward(obs [N, ...])` gives `(logits [N, A], values [N])`, and one optimizer.

    Args:
        model: float32, already on its device. Its convolutions are moved to channels-last memory, the faster one.
        optimizer: over the model's parameters; its learning rate is set from `schedule` at every update.
        schedule: the learning rate by agent steps.
        max_grad_norm: bound of the global norm of all gradients.
        precision: "bf16" runs the model under autocast. Logits and values come back as float32, and all that
            follows them (log-probabilities, targets, losses, optimizer) is float32 in either case.
    """

    def __init__(
        self,
        model: Module,
        optimizer: torch.optim.Optimizer,
        schedule: LinearDecay,
        *,
        max_grad_norm: float,
        precision: Precision,
    ) -> None:
        super().__init__(model)
        if precision not in ("fp32", "bf16"):
            raise ValueError(f"precision is {precision!r}, expected 'fp32' or 'bf16'")
        self.optimizer = optimizer
        self.schedule = schedule
        self.max_grad_norm = max_grad_norm
        self.precision = precision
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """float32 logits [N, A] and values [N] of observations [N, ...]. The same for acting and for learning."""
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.precision == "bf16"):
            logits, values = self.model(obs)
        return logits.float(), values.float()

    def predict(self, obs: Tensor) -> Tensor:
        """The most probable actions, [N]."""
        with torch.inference_mode():
            actions = self.forward(obs)[0].argmax(-1)
        return actions.clone()  # out here, so that it may take part in a later loss

    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """Actions drawn from the policy and their log-probabilities, both [N]."""
        with torch.inference_mode():
            actions, log_probs = sample(self.forward(obs)[0])
        return actions.clone(), log_probs.clone()

    def descend(self, loss: Tensor, agent_steps: int) -> dict[str, Tensor]:
        """One step down the gradient of a loss made from that many agent steps."""
        learning_rate = self.schedule.at(self.agent_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        self.optimizer.zero_grad(set_to_none=True)
        loss.backward()  # type: ignore[no-untyped-call]
        grad_norm = torch.nn.utils.clip_grad_norm_(self._parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.agent_steps += agent_steps
        self.updates += 1
        return {"grad_norm": grad_norm.detach(), "learning_rate": torch.tensor(learning_rate)}

    def state_dict(self) -> dict[str, Any]:
        """A copy of model, optimizer, schedule and counters."""
        optimizer = copy.deepcopy(self.optimizer.state_dict())
        return {**super().state_dict(), "optimizer": optimizer, "schedule": asdict(self.schedule)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; its schedule replaces ours. ValueError, and no change, if it does not fit."""
        self.check_state(state)
        schedule = LinearDecay(**state["schedule"])
        self.optimizer.load_state_dict(state["optimizer"])  # checks before it changes anything, too
        super().load_state_dict(state)
        self.schedule = schedule

    def _parameters(self) -> Iterable[Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
