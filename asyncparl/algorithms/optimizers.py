"""The optimizers of the papers, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Literal, get_args

import torch
from torch import Tensor
from torch.nn import Parameter

OptimizerName = Literal["adam", "rmsprop", "rmsprop_tf"]
OPTIMIZERS: tuple[OptimizerName, ...] = get_args(OptimizerName)


class RMSpropTF(torch.optim.Optimizer):
    """RMSProp as in the A3C paper and in TensorFlow: epsilon stands under the root (Mnih et al. 2016, section 4).

        g <- decay * g + (1 - decay) * gradient^2
        parameter <- parameter - lr * gradient / sqrt(g + epsilon)

    torch's adds epsilon to the root. With the papers' epsilons, 0.01 and 0.1, that is another algorithm: it bounds how
    much a small gradient is scaled up by 1 / epsilon instead of by 1 / sqrt(epsilon).
    """

    def __init__(self, params: Iterable[Parameter], lr: float, *, decay: float, eps: float) -> None:
        super().__init__(params, {"lr": lr, "decay": decay, "eps": eps})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One step with the gradients that are there. A closure is not called."""
        for group in self.param_groups:
            parameters = [parameter for parameter in group["params"] if parameter.grad is not None]
            gradients = [parameter.grad for parameter in parameters]
            squares = [self._mean_square(parameter) for parameter in parameters]
            if not parameters:
                continue
            torch._foreach_mul_(squares, group["decay"])
            torch._foreach_addcmul_(squares, gradients, gradients, 1.0 - group["decay"])
            roots = torch._foreach_add(squares, group["eps"])
            torch._foreach_sqrt_(roots)
            torch._foreach_addcdiv_(parameters, gradients, roots, -group["lr"])

    def _mean_square(self, parameter: Parameter) -> Tensor:
        state = self.state[parameter]
        if not state:
            state["mean_square"] = torch.zeros_like(parameter, memory_format=torch.preserve_format)
        mean_square: Tensor = state["mean_square"]
        return mean_square


def make_optimizer(
    name: OptimizerName,
    parameters: Iterable[Parameter],
    *,
    learning_rate: float,
    rms_decay: float = 0.99,
    rms_epsilon: float = 0.01,
    momentum: float = 0.0,
) -> torch.optim.Optimizer:
    """An optimizer by its name.

    Args:
        name: "adam" (Kingma & Ba 2015, arXiv:1412.6980), with its usual betas and an epsilon of 1e-8; "rmsprop",
            torch's; "rmsprop_tf", see `RMSpropTF`.
        parameters: to be optimized.
        learning_rate: at the start.
        rms_decay: of RMSProp's moving average.
        rms_epsilon: of RMSProp.
        momentum: of torch's RMSProp.

    Raises:
        ValueError: there is no such optimizer, or it has no momentum.
    """
    makers: dict[str, Callable[[], Any]] = {
        "adam": lambda: torch.optim.Adam(parameters, lr=learning_rate, eps=1e-8),
        "rmsprop": lambda: torch.optim.RMSprop(
            parameters, lr=learning_rate, alpha=rms_decay, eps=rms_epsilon, momentum=momentum
        ),
        "rmsprop_tf": lambda: RMSpropTF(parameters, lr=learning_rate, decay=rms_decay, eps=rms_epsilon),
    }
    if name not in makers:
        raise ValueError(f"optimizer is {name!r}, expected one of {', '.join(OPTIMIZERS)}")
    if momentum and name != "rmsprop":
        raise ValueError(f"momentum is {momentum}, which {name} does not have")
    optimizer: torch.optim.Optimizer = makers[name]()
    return optimizer
