"""What algorithms with a policy and a value share: the forward pass, acting, the whole loss, the optimizer step."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple, get_args

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from asyncparl.algorithms.base import Algorithm
from asyncparl.algorithms.categorical import action_log_probs, sample
from asyncparl.algorithms.losses import entropy_loss, value_loss
from asyncparl.algorithms.returns import next_values
from asyncparl.algorithms.rollout import Rollout, check_rollout, num_agent_steps, split_columns
from asyncparl.algorithms.schedule import LinearDecay

Precision = Literal["fp32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class Evaluation(NamedTuple):
    """What the model says now of a rollout; gradients flow through the first three."""

    logits: Tensor  # [T, B, A]
    values: Tensor  # [T, B] V(x_t)
    log_probs: Tensor  # [T, B] log pi(a|x) of the actions that were taken
    log_rhos: Tensor  # [T, B] log pi(a|x) - log mu(a|x): how far the policy has moved since it acted


class Objective(NamedTuple):
    """What an algorithm makes of a rollout: the two parts of the loss that are its own."""

    pg_loss: Tensor  # a sum over the steps
    value_targets: Tensor  # [T, B]; no gradient flows through them


Gradients = Sequence[Tensor | None]
"""One for each parameter; None: the loss does not depend on it."""


class _Part(NamedTuple):
    """What some environments of a rollout add to the update."""

    gradients: Gradients
    losses: dict[str, Tensor]  # sums over the steps
    sums: dict[str, Tensor]  # over the steps, of what is shown as a mean


PartsMapper = Callable[[Callable[[Rollout[Tensor]], _Part], Sequence[Rollout[Tensor]]], Iterable[_Part]]
"""`map`, or one that works on several parts at once: `ThreadPoolExecutor.map`."""


class ActorCritic(Algorithm):
    """A model whose `forward(obs [N, ...])` gives `(logits [N, A], values [N])`, and one optimizer.

    Its loss is a SUM over the T * B steps of a rollout:

        loss = policy gradient + value_cost * value loss + entropy_cost * entropy loss

    Because it is a sum, so is its gradient: `use_threads` has parts of the rollout computed at the same time.

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
        self._num_parts = 1
        self._map_parts: PartsMapper = map
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """float32 logits [N, A] and values [N] of observations [N, ...]. The same for acting and for learning."""
        # Without autocast's cache of weights in bfloat16: threads would share what is in it.
        with torch.autocast(obs.device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False):
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

    @property
    def can_be_split(self) -> bool:
        """Whether the loss of a rollout is the sum of the losses of its environments, so that `use_threads` counts."""
        return True

    def use_threads(self, map_parts: PartsMapper, num_threads: int) -> None:
        """Learn from that many parts of a rollout at the same time.

        torch's own threads wait for each other after every operation, these only once in an update.

        Args:
            map_parts: runs a function on every part, in threads that belong to the caller; their results in order.
            num_threads: into how many parts a rollout is cut, by environments.
        """
        self._map_parts, self._num_parts = map_parts, num_threads

    def learn(self, rollout: Rollout[Tensor]) -> dict[str, Tensor]:
        """One update from one rollout on the model's device.

        Returns:
            Detached scalars; reading one waits for the device. Losses and their total are sums over the steps.

        Raises:
            ValueError: a field of the rollout has the wrong shape or dtype. Nothing has changed then.
        """
        check_rollout(rollout)
        pieces = split_columns(rollout, self._num_parts if self.can_be_split else 1)
        parts = list(self._map_parts(self._learn_part, pieces))
        num_steps = num_agent_steps(rollout)
        losses = {name: _total(part.losses[name] for part in parts) for name in parts[0].losses}
        means = {name: _total(part.sums[name] for part in parts) / num_steps for name in parts[0].sums}
        return {**losses, **means, **self._descend([part.gradients for part in parts], num_steps)}

    @abstractmethod
    def _objective(self, rollout: Rollout[Tensor], evaluation: Evaluation) -> Objective:
        """What is particular to the algorithm."""

    def _statistics(self, evaluation: Evaluation) -> dict[str, Tensor]:
        """Sums over the steps of what is shown as a mean; detached."""
        return {
            "mean_abs_log_rho": evaluation.log_rhos.abs().sum(),
            "mean_value": evaluation.values.detach().sum(),
        }

    def _learn_part(self, rollout: Rollout[Tensor]) -> _Part:
        """Losses and gradients of some environments, or of all. Changes nothing: threads may do it at once."""
        evaluation = self._evaluate(rollout)
        objective = self._objective(rollout, evaluation)
        v_loss = value_loss(evaluation.values, objective.value_targets)
        h_loss = entropy_loss(evaluation.logits)
        total_loss = objective.pg_loss + self.value_cost * v_loss + self.entropy_cost * h_loss
        gradients = torch.autograd.grad(total_loss, self._parameters(), allow_unused=True)
        losses = {"total_loss": total_loss, "pg_loss": objective.pg_loss, "value_loss": v_loss, "entropy_loss": h_loss}
        losses = {name: loss.detach() for name, loss in losses.items()}
        return _Part(gradients, losses, {"entropy": -losses["entropy_loss"], **self._statistics(evaluation)})

    def _evaluate(self, rollout: Rollout[Tensor]) -> Evaluation:
        """The model's view of every step of a rollout, in one forward pass."""
        num_steps, num_envs = rollout.rewards.shape
        flat_logits, flat_values = self.forward(rollout.obs.flatten(0, 1))
        logits = flat_logits.view(num_steps, num_envs, -1)
        log_probs = action_log_probs(logits, rollout.actions)
        log_rhos = log_probs.detach() - rollout.behaviour_log_probs
        return Evaluation(logits, flat_values.view(num_steps, num_envs), log_probs, log_rhos)

    @torch.no_grad()
    def _next_values(self, rollout: Rollout[Tensor], values: Tensor) -> Tensor:
        """[T, B] V(x_{t+1}), from the values [T, B] of the steps and those of what follows; see `returns.next_values`.

        A forward pass of its own: these values need no gradient, and the large pass keeps one shape whatever the number
        of final observations is.
        """
        _, later_values = self.forward(torch.cat([rollout.bootstrap_obs, rollout.final_obs]))
        bootstrap_value, final_values = later_values.tensor_split([values.shape[1]])
        return next_values(values, bootstrap_value, final_values, rollout.final_steps)

    def _descend(self, gradients: Iterable[Gradients], agent_steps: int) -> dict[str, Tensor]:
        """One step down the sum of the gradients, made from that many agent steps."""
        learning_rate = self.schedule.at(self.agent_steps)
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        for parameter, each in zip(self._parameters(), zip(*gradients, strict=True), strict=True):
            present = [gradient for gradient in each if gradient is not None]
            parameter.grad = _total(present) if present else None
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

    def _parameters(self) -> list[Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def _total(tensors: Iterable[Tensor]) -> Tensor:
    """Their sum, in new memory."""
    first, *others = tensors
    total = first.clone()
    for tensor in others:
        total += tensor
    return total
