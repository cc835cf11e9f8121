"""V-trace: off-policy targets for an actor-critic (Espeholt et al. 2018, arXiv:1802.01561, section 4)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from asyncparl.algorithms.returns import check_steps, scan_backwards


class VTraceReturns(NamedTuple):
    """What the two losses of an actor-critic are made of."""

    vs: Tensor  # [T, B] v_s, what the value is pulled towards
    pg_advantages: Tensor  # [T, B] what multiplies the gradient of log pi; already holds its own rho


@torch.no_grad()
def vtrace(  # noqa: PLR0913 - six tensors and four bounds, by keyword
    *,
    log_rhos: Tensor,
    discounts: Tensor,
    rewards: Tensor,
    values: Tensor,
    next_values: Tensor,
    ends: Tensor,
    rho_bar: float = 1.0,
    c_bar: float = 1.0,
    pg_rho_bar: float = 1.0,
    lambda_: float = 1.0,
) -> VTraceReturns:
    """Targets and advantages for one batch of unrolls; no gradient flows through either.

    With delta_t = min(rho_bar, rho_t) * (r_t + discount_t * V(x_{t+1}) - V(x_t)) and c_t = lambda * min(c_bar, rho_t):

        v_s - V(x_s) = delta_s + discount_s * c_s * (v_{s+1} - V(x_{s+1}))               eq. (1) as in remark 1
        advantage_s  = min(pg_rho_bar, rho_s) * (r_s + discount_s * v_{s+1} - V(x_s))    section 4.2

    Where an episode ends, v_{s+1} belongs to the next one: the sum stops and V(x_{s+1}) stands in its place. After
    a termination its discount is 0; after a truncation it is V(final_obs). The paper assumes c_bar <= rho_bar.
    An infinite bound does not clip. lambda acts on the trace alone (remark 2), not on the advantage.

    Args:
        log_rhos: [T, B] log pi(a|x) - log mu(a|x).
        discounts: [T, B] gamma, or 0 where the episode terminated at this step.
        rewards: [T, B] received after action t.
        values: [T, B] V(x_t) of the learner.
        next_values: [T, B] V(x_{t+1}) of the learner, from `returns.next_values()`.
        ends: [T, B] bool, terminated | truncated.
        rho_bar: bounds rho in the targets: decides which policy's value is learned.
        c_bar: bounds the trace: decides how fast.
        pg_rho_bar: bounds rho in the advantages.
        lambda_: from 0 (one-step targets) to 1 (the paper).

    Raises:
        ValueError: if any shape differs from the above. Nothing is broadcast.
    """
    check_steps(rewards, log_rhos=log_rhos, discounts=discounts, values=values, next_values=next_values, ends=ends)
    rhos = log_rhos.exp()
    td_errors = torch.addcmul(rewards, discounts, next_values).sub_(values)
    carried = discounts.masked_fill(ends, 0.0)
    trace = rhos.clamp(max=c_bar).mul_(carried).mul_(lambda_)
    corrections = scan_backwards(rhos.clamp(max=rho_bar).mul_(td_errors), trace)  # v_s - V(x_s) for s = 0 .. T
    # Within an episode V(x_{s+1}) is `values` of the next step, so v_{s+1} is it plus the next correction.
    following = torch.addcmul(td_errors, carried, corrections[1:])
    return VTraceReturns(vs=values + corrections[:-1], pg_advantages=rhos.clamp_(max=pg_rho_bar).mul_(following))
