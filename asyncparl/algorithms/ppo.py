"""PPO: an actor-critic that learns several times from what it has played (Schulman et al. 2017, arXiv:1707.06347)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

from asyncparl.algorithms.a2c import A2C
from asyncparl.algorithms.actor_critic import Part, Precision, joined
from asyncparl.algorithms.categorical import action_log_probs
from asyncparl.algorithms.losses import clipped_policy_gradient_loss, normalised
from asyncparl.algorithms.optimizers import OptimizerName
from asyncparl.algorithms.rollout import Rollout, check_rollout, num_agent_steps, split_columns


class _Steps(NamedTuple):
    """Steps of a rollout in any order, with what was found out about them before the first update."""

    obs: Tensor  # [N, ...]
    actions: Tensor  # [N]
    behaviour_log_probs: Tensor  # [N]
    advantages: Tensor  # [N]
    value_targets: Tensor  # [N]

    def at(self, indices: Tensor) -> _Steps:
        """Copies of some of them."""
        return _Steps(*(field[indices] for field in self))


class PPO(A2C):
    """A2C that makes `num_epochs * num_minibatches` updates from every rollout instead of one.

    In each epoch all T * B steps are shuffled and cut into minibatches. The loss of an update is a MEAN over the steps
    of its minibatch, where those of the other algorithms are sums; so the learning rate and the bound of the gradient
    norm belong to means. It is

        loss = -min(ratio * A, clip(ratio, 1 - clip_range, 1 + clip_range) * A)          (eq. 7)
               + value_cost * value loss + entropy_cost * entropy loss                   (eq. 9)

    with ratio = pi(a|x) / mu(a|x), of the policy that learns to the one that acted. Advantages and value targets are
    GAE(lambda)'s, with the values of the network before the first of these updates.

    The learning rate and the entropy's weight are those at the beginning of the rollout. `updates` counts minibatches,
    and all metrics are means over them. Whoever learns together (`learn_together`) shuffles its own share: each update
    is made from a minibatch of every share.

    The defaults are the paper's for Atari, but that nothing falls while it learns, and that gradients are clipped. (Its
    value loss has no factor 0.5: hence the cost of 2.)

    Args:
        model: `forward(obs [N, ...])` gives `(logits [N, A], values [N])`. It cannot have a memory.
        num_epochs: how often each step is learned from.
        num_minibatches: into how many a rollout is cut.
        clip_range: epsilon: how far a ratio may move from 1 before nothing more is gained by it.
        normalise_advantages: give those of a rollout mean 0 and standard deviation 1.
        seed: of the order of the steps.

    The others are those of `A2C`.

    Raises:
        ValueError: the model has a memory, of which a minibatch of single steps knows nothing; a number is too small.
    """

    def __init__(  # noqa: PLR0913 - the paper's hyper-parameters, by keyword
        self,
        model: Module,
        *,
        num_epochs: int = 3,
        num_minibatches: int = 4,
        clip_range: float = 0.1,
        seed: int = 0,
        discount: float = 0.99,
        lambda_: float = 0.95,
        normalise_advantages: bool = True,
        value_cost: float = 2.0,
        entropy_cost: float = 0.01,
        optimizer: OptimizerName = "adam",
        learning_rate: float = 2.5e-4,
        decay_steps: int | None = None,
        rms_decay: float = 0.99,
        rms_epsilon: float = 0.01,
        max_grad_norm: float = 0.5,
        precision: Precision = "fp32",
    ) -> None:
        super().__init__(
            model,
            discount=discount,
            lambda_=lambda_,
            normalise_advantages=normalise_advantages,
            value_cost=value_cost,
            entropy_cost=entropy_cost,
            optimizer=optimizer,
            learning_rate=learning_rate,
            decay_steps=decay_steps,
            rms_decay=rms_decay,
            rms_epsilon=rms_epsilon,
            max_grad_norm=max_grad_norm,
            precision=precision,
        )
        if num_epochs < 1 or num_minibatches < 1 or clip_range <= 0:
            raise ValueError(
                f"num_epochs ({num_epochs}) and num_minibatches ({num_minibatches}) must be at least 1, "
                f"and clip_range ({clip_range}) more than 0"
            )
        if self.state_size is not None:
            raise ValueError(f"{type(model).__name__} has a memory, and PPO learns from single steps in any order")
        self.num_epochs = num_epochs
        self.num_minibatches = num_minibatches
        self.clip_range = clip_range
        self._order = torch.Generator().manual_seed(seed)

    @property
    def can_be_split(self) -> bool:
        """Advantages are normalised before a minibatch is split."""
        return True

    def learn(self, rollout: Rollout[Tensor]) -> dict[str, Tensor]:
        """All updates from one rollout on the model's device.

        Returns:
            Detached scalars, means over the updates; reading one waits for the device.

        Raises:
            ValueError: a field of the rollout has the wrong shape or dtype, or it has fewer steps than there are
                minibatches. Nothing has changed then.
        """
        check_rollout(rollout)
        self._check_state(rollout)
        num_steps = num_agent_steps(rollout)
        if num_steps < self.num_minibatches:
            raise ValueError(f"{num_steps} steps cannot be cut into {self.num_minibatches} minibatches")
        steps = self._prepare(rollout)
        updates = [
            self._update(steps, chosen.to(rollout.obs.device))
            for _ in range(self.num_epochs)
            for chosen in torch.randperm(num_steps, generator=self._order).tensor_split(self.num_minibatches)
        ]
        self.agent_steps += num_steps if self._together is None else num_steps * self._together.num_learners
        return {name: torch.stack([update[name] for update in updates]).mean() for name in updates[0]}

    def state_dict(self) -> dict[str, Any]:
        """A copy of model, optimizer, schedules, counters, and of what shuffles the steps."""
        return {**super().state_dict(), "order": self._order.get_state()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; its schedules replace ours. ValueError, and no change, if it does not fit."""
        super().load_state_dict(state)
        self._order.set_state(state["order"])

    def _prepare(self, rollout: Rollout[Tensor]) -> _Steps:
        parts = list(self._map_parts(self._assess, split_columns(rollout, self._num_parts)))
        values, advantages = (torch.cat(each, dim=1) for each in zip(*parts, strict=True))
        weights = normalised(advantages, self._add_up()) if self.normalise_advantages else advantages
        fields = (rollout.obs, rollout.actions, rollout.behaviour_log_probs, weights, values + advantages)
        return _Steps(*(field.flatten(0, 1) for field in fields))

    @torch.no_grad()
    def _assess(self, rollout: Rollout[Tensor]) -> tuple[Tensor, Tensor]:
        """Values and advantages, both [T, B]."""
        evaluation = self._evaluate(rollout)
        return evaluation.values, self._advantages(rollout, evaluation.values, evaluation.next_values)

    def _update(self, steps: _Steps, chosen: Tensor) -> dict[str, Tensor]:
        """One, from the steps of a minibatch. Its metrics are means over these."""
        pieces = chosen.tensor_split(min(self._num_parts, len(chosen)))
        part = joined(list(self._map_parts(lambda piece: self._learn_steps(steps.at(piece)), pieces)))
        num_steps = len(chosen)
        if self._together is not None:
            part = self._of_all_learners(part, self._together)
            num_steps *= self._together.num_learners
        means = {name: total / num_steps for name, total in {**part.losses, **part.sums}.items()}
        gradients = [None if gradient is None else gradient / num_steps for gradient in part.gradients]
        return {**means, **self._descend(gradients, agent_steps=0)}

    def _learn_steps(self, steps: _Steps) -> Part:
        logits, values = self.forward(steps.obs)
        log_ratios = action_log_probs(logits, steps.actions) - steps.behaviour_log_probs
        pg_loss = clipped_policy_gradient_loss(log_ratios, steps.advantages, self.clip_range)
        moved = log_ratios.detach()
        statistics = {
            "mean_abs_log_rho": moved.abs().sum(),
            "mean_value": values.detach().sum(),
            "clip_fraction": ((moved.exp() - 1.0).abs() > self.clip_range).float().sum(),
        }
        return self._part(logits, values, pg_loss, steps.value_targets, statistics)
