"""IMPALA: actors run behind, V-trace corrects for it (Espeholt et al. 2018, arXiv:1802.01561)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Module

from asyncparl.algorithms.actor_critic import ActorCritic, Precision
from asyncparl.algorithms.categorical import action_log_probs
from asyncparl.algorithms.losses import entropy_loss, policy_gradient_loss, value_loss
from asyncparl.algorithms.returns import next_values
from asyncparl.algorithms.rollout import Rollout, check_rollout, num_agent_steps
from asyncparl.algorithms.schedule import LinearDecay
from asyncparl.algorithms.vtrace import VTraceReturns, vtrace


class IMPALA(ActorCritic):
    """An actor-critic whose loss is a SUM over the T * B steps of a rollout; the defaults belong to that sum.

        loss = policy gradient + value_cost * value loss + entropy_cost * entropy loss

    The defaults are the paper's for Atari (table G.1), with T = 20 and B = 32.

    Args:
        model: `forward(obs [N, ...])` gives `(logits [N, A], values [N])`.
        discount: gamma.
        value_cost: weight of the value loss, which itself holds a factor 0.5.
        entropy_cost: weight of the entropy; positive favours exploration.
        learning_rate: of RMSProp, at the start.
        decay_steps: agent steps over which the learning rate falls linearly to 0; None keeps it.
        rms_decay: RMSProp's moving average (`alpha` in torch).
        rms_epsilon: added outside the square root, as torch does.
        momentum: of RMSProp.
        max_grad_norm: bound of the global gradient norm.
        rho_bar, c_bar, pg_rho_bar, lambda_: see `vtrace()`.
        precision: "bf16" runs the model under autocast, "fp32" does not; the rest is float32 either way.
    """

    def __init__(  # noqa: PLR0913 - the paper's hyper-parameters, by keyword
        self,
        model: Module,
        *,
        discount: float = 0.99,
        value_cost: float = 0.5,
        entropy_cost: float = 0.01,
        learning_rate: float = 6e-4,
        decay_steps: int | None = None,
        rms_decay: float = 0.99,
        rms_epsilon: float = 0.01,
        momentum: float = 0.0,
        max_grad_norm: float = 40.0,
        rho_bar: float = 1.0,
        c_bar: float = 1.0,
        pg_rho_bar: float = 1.0,
        lambda_: float = 1.0,
        precision: Precision = "fp32",
    ) -> None:
        optimizer = torch.optim.RMSprop(
            model.parameters(), lr=learning_rate, alpha=rms_decay, eps=rms_epsilon, momentum=momentum
        )
        schedule = LinearDecay(learning_rate, decay_steps)
        super().__init__(model, optimizer, schedule, max_grad_norm=max_grad_norm, precision=precision)
        self.discount = discount
        self.value_cost = value_cost
        self.entropy_cost = entropy_cost
        self.rho_bar = rho_bar
        self.c_bar = c_bar
        self.pg_rho_bar = pg_rho_bar
        self.lambda_ = lambda_

    def learn(self, rollout: Rollout[Tensor]) -> dict[str, Tensor]:
        """One update from one rollout on the model's device.

        Returns:
            Detached scalars; reading one waits for the device. Losses and their total are sums over the steps.

        Raises:
            ValueError: a field of the rollout has the wrong shape or dtype. Nothing has changed then.
        """
        check_rollout(rollout)
        num_steps, num_envs = rollout.rewards.shape
        flat_logits, flat_values = self.forward(rollout.obs.flatten(0, 1))
        logits = flat_logits.view(num_steps, num_envs, -1)
        values = flat_values.view(num_steps, num_envs)
        log_probs = action_log_probs(logits, rollout.actions)
        log_rhos = log_probs.detach() - rollout.behaviour_log_probs
        targets = self._targets(rollout, log_rhos, values.detach())

        pg_loss = policy_gradient_loss(log_probs, targets.pg_advantages)
        v_loss = value_loss(values, targets.vs)
        h_loss = entropy_loss(logits)
        total_loss = pg_loss + self.value_cost * v_loss + self.entropy_cost * h_loss
        step_metrics = self.descend(total_loss, num_agent_steps(rollout))
        return {
            "total_loss": total_loss.detach(),
            "pg_loss": pg_loss.detach(),
            "value_loss": v_loss.detach(),
            "entropy_loss": h_loss.detach(),
            "entropy": -h_loss.detach() / log_rhos.numel(),
            "mean_abs_log_rho": log_rhos.abs().mean(),
            "rho_clip_fraction": (log_rhos > math.log(self.rho_bar)).float().mean(),
            "mean_value": values.detach().mean(),
            **step_metrics,
        }

    @torch.no_grad()
    def _targets(self, rollout: Rollout[Tensor], log_rhos: Tensor, values: Tensor) -> VTraceReturns:
        # A forward pass of its own: these values need no gradient, and the large pass keeps one shape whatever
        # the number of final observations is.
        _, later_values = self.forward(torch.cat([rollout.bootstrap_obs, rollout.final_obs]))
        bootstrap_value, final_values = later_values.tensor_split([values.shape[1]])
        return vtrace(
            log_rhos=log_rhos,
            discounts=self.discount * (~rollout.terminated).float(),
            rewards=rollout.rewards,
            values=values,
            next_values=next_values(values, bootstrap_value, final_values, rollout.final_steps),
            ends=rollout.terminated | rollout.truncated,
            rho_bar=self.rho_bar,
            c_bar=self.c_bar,
            pg_rho_bar=self.pg_rho_bar,
            lambda_=self.lambda_,
        )
