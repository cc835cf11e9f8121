"""What algorithms with a policy and a value share: the forward pass, acting, the whole loss, the optimizer step."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from asyncparl.algorithms.base import Algorithm
from asyncparl.algorithms.categorical import action_log_probs, sample
from asyncparl.algorithms.losses import entropy_loss, value_loss
from asyncparl.algorithms.returns import next_values
from asyncparl.algorithms.rollout import Rollout, num_agent_steps
from asyncparl.algorithms.schedule import LinearDecay

Precision = Literal["fp32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class Evaluation(NamedTuple):
    """What the model says now of a rollout; gradients flow through the first three."""

    logits: Tensor  # [T, B, A]
    values: Tensor  # [T, B] V(x_t)
    log_probs: Tensor  # [T, B] log pi(a|x) of the actions that were taken
    log_rhos: Tensor  # [T, B] log pi(a|x) - log mu(a|x): how far the policy has moved since it acted


class ActorCritic(Algorithm):
    """A model whose `forward(obs [N, ...])` gives `(logits [N, A], values [N])`, and one optimizer.

    Its loss is a SUM over the T * B steps of a rollout:

        loss = policy gradient + value_cost * value loss + entropy_cost * entropy loss

    Args:
        model: float32, already on its device. Its convolutions are moved to channels-last memory, the faster one.
        optimizer: over the model's parameters; its learning rate is set from `schedule` at every update.
        schedule: the learning rate by agent steps.
        discount: gamma.
        value_cost: weight of the value loss, which itself holds a factor 0.5.
        entropy_cost: weight of the entropy; positive favours exploration.
        max_grad_norm: bound of the global norm of all gradients; infinite: none.
        precision: "bf16" runs the model under autocast. Logits and values come back as float32, and all that
            follows them (log-probabilities, targets, losses, optimizer) is float32 in either case.
    """

    def __init__(
        self,
        model: Module,
        optimizer: torch.optim.Optimizer,
        schedule: LinearDecay,
        *,
        discount: float,
        value_cost: float,
        entropy_cost: float,
        max_grad_norm: float,
        precision: Precision,
    ) -> None:
        super().__init__(model)
        if precision not in PRECISIONS:
            raise ValueError(f"precision is {precision!r}, expected 'fp32' or 'bf16'")
        self.optimizer = optimizer
        self.schedule = schedule
        self.discount = discount
        self.value_cost = value_cost
        self.entropy_cost = entropy_cost
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

    def evaluate(self, rollout: Rollout[Tensor]) -> Evaluation:
        """The model's view of every step of a rollout, in one forward pass."""
        num_steps, num_envs = rollout.rewards.shape
        flat_logits, flat_values = self.forward(rollout.obs.flatten(0, 1))
        logits = flat_logits.view(num_steps, num_envs, -1)
        log_probs = action_log_probs(logits, rollout.actions)
        log_rhos = log_probs.detach() - rollout.behaviour_log_probs
        return Evaluation(logits, flat_values.view(num_steps, num_envs), log_probs, log_rhos)

    @torch.no_grad()
    def next_values(self, rollout: Rollout[Tensor], values: Tensor) -> Tensor:
        """[T, B] V(x_{t+1}), from the values [T, B] of the steps and those of what follows; see `returns.next_values`.

        A forward pass of its own: these values need no gradient, and the large pass keeps one shape whatever the number
        of final observations is.
        """
        _, later_values = self.forward(torch.cat([rollout.bootstrap_obs, rollout.final_obs]))
        bootstrap_value, final_values = later_values.tensor_split([values.shape[1]])
        return next_values(values, bootstrap_value, final_values, rollout.final_steps)

    def minimise(
        self, rollout: Rollout[Tensor], evaluation: Evaluation, *, pg_loss: Tensor, value_targets: Tensor
    ) -> dict[str, Tensor]:
        """One step down the gradient of the whole loss.

        Args:
            pg_loss: a sum over the steps.
            value_targets: [T, B]; no gradient flows through them.

        Returns:
            Detached scalars; reading one waits for the device. Losses and their total are sums over the steps.
        """
        v_loss = value_loss(evaluation.values, value_targets)
        h_loss = entropy_loss(evaluation.logits)
        total_loss = pg_loss + self.value_cost * v_loss + self.entropy_cost * h_loss
        step_metrics = self.descend(total_loss, num_agent_steps(rollout))
        return {
            "total_loss": total_loss.detach(),
            "pg_loss": pg_loss.detach(),
            "value_loss": v_loss.detach(),
            "entropy_loss": h_loss.detach(),
            "entropy": -h_loss.detach() / value_targets.numel(),
            "mean_abs_log_rho": evaluation.log_rhos.abs().mean(),
            "mean_value": evaluation.values.detach().mean(),
            **step_metrics,
        }

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

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless `load_state_dict(state)` would work."""
        super().check_state(state)
        own, given = (each["param_groups"][0].keys() for each in (self.optimizer.state_dict(), state["optimizer"]))
        if own != given:  # torch would take it, and fail at the next step
            raise ValueError(f"the state is of another optimizer than {type(self.optimizer).__name__}")

    def _parameters(self) -> Iterable[Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]
