"""GA3C: A3C whose actors have no network; one predictor acts for all (Babaeizadeh et al. 2017, arXiv:1611.06256)."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import Module

from asyncparl.algorithms.a2c import A2C
from asyncparl.algorithms.actor_critic import Precision
from asyncparl.algorithms.optimizers import OptimizerName


class GA3C(A2C):
    """A2C's loss on rollouts that slightly older weights have played, uncorrected; its SUM over the T * B steps.

    With lambda = 1, and T the paper's t_max, the advantages are those of A3C: n-step returns up to the end of the
    rollout or of the episode, less the value (Mnih et al. 2016, algorithm S3).

    While a rollout is played the weights change, and an action may become all but impossible before it is learned from.
    log(pi) and its gradient 1 / pi have no bound there, so the policy gradient is that of

        log(pi(a|x) + epsilon)

    whose gradient, grad(pi) / (pi + epsilon), is at most grad(pi) / epsilon.

    `mean_abs_log_rho` of the metrics says how far the policy has moved between acting and learning.

    The defaults are the paper's for Atari: RMSProp with its epsilon of 0.1 under the root, gradients that are not
    clipped, a value loss that counts in full.

    Args:
        log_epsilon: what is added to the probability; 0 is A2C's loss.
        max_grad_norm: bound of the global gradient norm; infinite: none.

    The others are those of `A2C`.
    """

    def __init__(  # noqa: PLR0913 - the paper's hyper-parameters, by keyword
        self,
        model: Module,
        *,
        log_epsilon: float = 1e-6,
        discount: float = 0.99,
        lambda_: float = 1.0,
        normalise_advantages: bool = False,
        value_cost: float = 1.0,
        entropy_cost: float = 0.01,
        optimizer: OptimizerName = "rmsprop_tf",
        learning_rate: float = 3e-4,
        decay_steps: int | None = None,
        rms_decay: float = 0.99,
        rms_epsilon: float = 0.1,
        max_grad_norm: float = math.inf,
        precision: Precision = "fp32",
    ) -> None:
        if not 0.0 <= log_epsilon < 1.0:
            raise ValueError(f"log_epsilon is {log_epsilon}, expected a number from 0 to less than 1")
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
        self.log_epsilon = log_epsilon

    def _log_policy(self, log_probs: Tensor) -> Tensor:
        """[T, B] log(pi + epsilon), without ever leaving the logarithms: where pi is 0 in float32, log pi is not."""
        if self.log_epsilon == 0.0:
            return log_probs
        return torch.logaddexp(log_probs, torch.full_like(log_probs, math.log(self.log_epsilon)))
