"""A2C: synchronous advantage actor-critic, the A3C of Mnih et al. 2016 (arXiv:1602.01783) with all actors in step."""

from __future__ import annotations

from torch import Tensor
from torch.nn import Module

from asyncparl.algorithms.actor_critic import ActorCritic, Evaluation, Objective, Precision
from asyncparl.algorithms.losses import normalised, policy_gradient_loss
from asyncparl.algorithms.optimizers import OptimizerName, make_optimizer
from asyncparl.algorithms.returns import gae
from asyncparl.algorithms.rollout import Rollout
from asyncparl.algorithms.schedule import LinearDecay
from asyncparl.algorithms.together import AddUp


class A2C(ActorCritic):
    """An actor-critic whose loss is a SUM over the T * B steps of a rollout; the defaults belong to that sum.

        loss = policy gradient + value_cost * value loss + entropy_cost * entropy loss

    The advantages are GAE(lambda) with the values of the network that learns. The loss trusts that the rollout was
    played with the very weights that learn from it: nothing corrects for older ones. `mean_abs_log_rho` of the metrics
    says how far that is from true; it should be 0 but for rounding.

    The defaults are PARL's: Adam, and lambda = 1, which makes every advantage the discounted rewards to the end of the
    rollout, plus the value there, less the value here. Those of A3C are optimizer="rmsprop_tf", rms_epsilon=0.1,
    learning_rate=7e-4.

    Args:
        model: `forward(obs [N, ...])` gives `(logits [N, A], values [N])`; with a memory as in `recurrence.py`.
        discount: gamma.
        lambda_: of GAE, from 0 (one-step advantages) to 1.
        normalise_advantages: give those of a batch mean 0 and standard deviation 1, for the policy only.
        value_cost: weight of the value loss, which itself holds a factor 0.5.
        entropy_cost: weight of the entropy; positive favours exploration.
        optimizer: see `make_optimizer`, also for the two settings of RMSProp.
        learning_rate: at the start.
        decay_steps: agent steps over which the learning rate falls linearly to 0; None keeps it.
        rms_decay, rms_epsilon: of RMSProp.
        max_grad_norm: bound of the global gradient norm.
        precision: "bf16" runs the model under autocast, "fp32" does not; the rest is float32 either way.
    """

    def __init__(  # noqa: PLR0913 - the hyper-parameters, by keyword
        self,
        model: Module,
        *,
        discount: float = 0.99,
        lambda_: float = 1.0,
        normalise_advantages: bool = False,
        value_cost: float = 0.5,
        entropy_cost: float = 0.01,
        optimizer: OptimizerName = "adam",
        learning_rate: float = 1e-3,
        decay_steps: int | None = None,
        rms_decay: float = 0.99,
        rms_epsilon: float = 0.01,
        max_grad_norm: float = 40.0,
        precision: Precision = "fp32",
    ) -> None:
        made = make_optimizer(
            optimizer, model.parameters(), learning_rate=learning_rate, rms_decay=rms_decay, rms_epsilon=rms_epsilon
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
        self.lambda_ = lambda_
        self.normalise_advantages = normalise_advantages

    @property
    def can_be_split(self) -> bool:
        """Not with normalised advantages, whose mean is that of all environments."""
        return not self.normalise_advantages

    def _objective(self, rollout: Rollout[Tensor], evaluation: Evaluation) -> Objective:
        values = evaluation.values.detach()
        advantages = self._advantages(rollout, values, evaluation.next_values)
        weights = normalised(advantages, self._add_up()) if self.normalise_advantages else advantages
        pg_loss = policy_gradient_loss(self._log_policy(evaluation.log_probs), weights)
        return Objective(pg_loss, values + advantages)

    def _advantages(self, rollout: Rollout[Tensor], values: Tensor, next_values: Tensor) -> Tensor:
        """[T, B], by Schulman et al. 2016 (arXiv:1506.02438), eq. 16."""
        return gae(
            rewards=rollout.rewards,
            discounts=self.discount * (~rollout.terminated).float(),
            values=values,
            next_values=next_values,
            ends=rollout.terminated | rollout.truncated,
            lambda_=self.lambda_,
        )

    def _add_up(self) -> AddUp | None:
        return None if self._together is None else self._together.add_up

    def _log_policy(self, log_probs: Tensor) -> Tensor:
        """[T, B] what the policy gradient descends along."""
        return log_probs
