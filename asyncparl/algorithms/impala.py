"""IMPALA: actors run behind, V-trace corrects for it (Espeholt et al. 2018, arXiv:1802.01561)."""

from __future__ import annotations

import math

from torch import Tensor
from torch.nn import Module

from asyncparl.algorithms.actor_critic import ActorCritic, Evaluation, Objective, Precision
from asyncparl.algorithms.losses import policy_gradient_loss
from asyncparl.algorithms.optimizers import OptimizerName, make_optimizer
from asyncparl.algorithms.rollout import Rollout
from asyncparl.algorithms.schedule import LinearDecay
from asyncparl.algorithms.vtrace import VTraceReturns, vtrace


class IMPALA(ActorCritic):
    """An actor-critic whose loss is a SUM over the T * B steps of a rollout; the defaults belong to that sum.

        loss = policy gradient + value_cost * value loss + entropy_cost * entropy loss

    The defaults are the paper's for Atari (table G.1), with T = 20 and B = 32.

    Args:
        model: `forward(obs [N, ...])` gives `(logits [N, A], values [N])`; with a memory as in `recurrence.py`.
        discount: gamma.
        value_cost: weight of the value loss, which itself holds a factor 0.5.
        entropy_cost: weight of the entropy; positive favours exploration.
        optimizer: see `make_optimizer`, also for the three settings of RMSProp.
        learning_rate: at the start.
        decay_steps: agent steps over which the learning rate falls linearly to 0; None keeps it.
        rms_decay, rms_epsilon, momentum: of RMSProp.
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
        optimizer: OptimizerName = "rmsprop",
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
        made = make_optimizer(
            optimizer,
            model.parameters(),
            learning_rate=learning_rate,
            rms_decay=rms_decay,
            rms_epsilon=rms_epsilon,
            momentum=momentum,
        )
        super().__init__(
            model,
            made,
            LinearDecay(learning_rate, decay_steps),
            discount=discount,
            value_cost=value_cost,
            entropy_cost=entropy_cost,
            max_grad_norm=max_grad_norm,
            precision=precision,
        )
        self.rho_bar = rho_bar
        self.c_bar = c_bar
        self.pg_rho_bar = pg_rho_bar
        self.lambda_ = lambda_

    def _objective(self, rollout: Rollout[Tensor], evaluation: Evaluation) -> Objective:
        targets = self._targets(rollout, evaluation)
        return Objective(policy_gradient_loss(evaluation.log_probs, targets.pg_advantages), targets.vs)

    def _statistics(self, evaluation: Evaluation) -> dict[str, Tensor]:
        is_clipped = evaluation.log_rhos > math.log(self.rho_bar)
        return {**super()._statistics(evaluation), "rho_clip_fraction": is_clipped.float().sum()}

    def _targets(self, rollout: Rollout[Tensor], evaluation: Evaluation) -> VTraceReturns:
        return vtrace(
            log_rhos=evaluation.log_rhos,
            discounts=self.discount * (~rollout.terminated).float(),
            rewards=rollout.rewards,
            values=evaluation.values.detach(),
            next_values=evaluation.next_values,
            ends=rollout.terminated | rollout.truncated,
            rho_bar=self.rho_bar,
            c_bar=self.c_bar,
            pg_rho_bar=self.pg_rho_bar,
            lambda_=self.lambda_,
        )
