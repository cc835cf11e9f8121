"""What algorithms with a policy and a value share: the forward pass, acting, the whole loss, the optimizer step."""

from __future__ import annotations

import copy
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from typing import Any, Literal, NamedTuple, get_args, overload

import torch
from torch import Tensor
from torch.nn import Module, Parameter

from asyncparl.algorithms.base import Algorithm
from asyncparl.algorithms.categorical import action_log_probs, sample
from asyncparl.algorithms.losses import entropy_loss, value_loss
from asyncparl.algorithms.recurrence import Memory, Unrolled
from asyncparl.algorithms.returns import check_shape, next_values
from asyncparl.algorithms.rollout import Rollout, check_rollout, num_agent_steps, split_columns
from asyncparl.algorithms.schedule import LinearDecay
from asyncparl.algorithms.together import Together, added_up

Precision = Literal["fp32", "bf16"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)


class Evaluation(NamedTuple):
    """What the model says now of a rollout; gradients flow through the first three."""

    logits: Tensor  # [T, B, A]
    values: Tensor  # [T, B] V(x_t)
    log_probs: Tensor  # [T, B] log pi(a|x) of the actions that were taken
    log_rhos: Tensor  # [T, B] log pi(a|x) - log mu(a|x): how far the policy has moved since it acted
    next_values: Tensor  # [T, B] V(x_{t+1}), see `returns.next_values`


class Objective(NamedTuple):
    """What an algorithm makes of a rollout: the two parts of the loss that are its own."""

    pg_loss: Tensor  # a sum over the steps
    value_targets: Tensor  # [T, B]; no gradient flows through them


Gradients = Sequence[Tensor | None]
"""One for each parameter; None: the loss does not depend on it."""


class Part(NamedTuple):
    """What some steps of a rollout add to the update."""

    gradients: Gradients
    losses: dict[str, Tensor]  # sums over the steps
    sums: dict[str, Tensor]  # over the steps, of what is shown as a mean


PartsMapper = Callable[[Callable[[Any], Any], Sequence[Any]], Iterable[Any]]
"""`map`, or one that works on several parts at once: `ThreadPoolExecutor.map`."""


class ActorCritic(Algorithm):
    """A model whose `forward(obs [N, ...])` gives `(logits [N, A], values [N])`, and one optimizer.

    A model with a memory is as `recurrence.py` says. It is unrolled over a rollout from what its actor remembered at
    the first step (`Rollout.initial_state`); gradients go back in time as far as that.

    Its loss is a SUM over the T * B steps of a rollout:

        loss = policy gradient + value_cost * value loss + entropy_cost * entropy loss

    Because it is a sum, so is its gradient: `use_threads` has parts of the rollout computed at the same time.

    Args:
        model: float32, already on its device. Its convolutions are moved to channels-last memory, the faster one.
        optimizer: over the model's parameters; its learning rate is set from `schedule` at every update.
        schedule: the learning rate by agent steps.
        discount: gamma.
        value_cost: weight of the value loss, which itself holds a factor 0.5.
        entropy_cost: weight of the entropy; positive favours exploration. Constant, unless `entropy_schedule` is
            replaced: the weight by agent steps.
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
        self.entropy_schedule = LinearDecay(entropy_cost)
        self.max_grad_norm = max_grad_norm
        self.precision = precision
        self._memory = Memory.of(model)
        self._num_parts = 1
        self._map_parts: PartsMapper = map
        self._together: Together | None = None
        model.to(memory_format=torch.channels_last)  # type: ignore[call-overload]

    @property
    def state_size(self) -> int | None:
        """How many numbers the model remembers of an environment; None: it has no memory."""
        return None if self._memory is None else self._memory.size

    def initial_state(self, num_envs: int) -> Tensor | None:
        """[N, S] what the model remembers when an episode begins, on its device; None: it has no memory."""
        if self._memory is None:
            return None
        return self._memory.initial_rows(num_envs, self._parameters()[0].device)

    @property
    def entropy_cost(self) -> float:
        """Weight of the entropy in the next update."""
        return self.entropy_schedule.at(self.agent_steps)

    def forward(self, obs: Tensor) -> tuple[Tensor, Tensor]:
        """float32 logits [N, A] and values [N] of observations [N, ...]. The same for acting and for learning.

        Raises:
            ValueError: the model has a memory.
        """
        if self._memory is not None:
            raise ValueError(f"{type(self.model).__name__} has a memory: give its state, too; see initial_state()")
        with self._autocast(obs.device):
            logits, values = self.model(obs)
        return logits.float(), values.float()

    def step(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """`forward` of a model with a memory: also takes its state [N, S], and returns that of the next step.

        Where an episode ends the next step begins with `initial_state`: that is for the caller to see to.

        Raises:
            ValueError: the model has no memory, or the state another size.
        """
        memory = self._memory
        if memory is None:
            raise ValueError(f"{type(self.model).__name__} has no memory, and takes no state")
        check_shape("state", state, (len(obs), memory.size))
        with self._autocast(obs.device):
            logits, values, state = memory.step(obs, state)
        return logits.float(), values.float(), state

    @overload
    def predict(self, obs: Tensor) -> Tensor: ...

    @overload
    def predict(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor]: ...

    def predict(self, obs: Tensor, state: Tensor | None = None) -> Tensor | tuple[Tensor, Tensor]:
        """The most probable actions, [N]; with a state [N, S], also the next state."""
        with torch.inference_mode():
            if state is None:
                actions = self.forward(obs)[0].argmax(-1)
            else:
                logits, _, state = self.step(obs, state)
                actions = logits.argmax(-1)
        # Clones, made out here: they may take part in a later loss.
        return actions.clone() if state is None else (actions.clone(), state.clone())

    @overload
    def sample(self, obs: Tensor) -> tuple[Tensor, Tensor]: ...

    @overload
    def sample(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]: ...

    def sample(self, obs: Tensor, state: Tensor | None = None) -> tuple[Tensor, Tensor] | tuple[Tensor, Tensor, Tensor]:
        """Actions drawn from the policy and their log-probabilities, both [N]; with a state [N, S], also the next."""
        with torch.inference_mode():
            if state is None:
                actions, log_probs = sample(self.forward(obs)[0])
            else:
                logits, _, state = self.step(obs, state)
                actions, log_probs = sample(logits)
        if state is None:
            return actions.clone(), log_probs.clone()
        return actions.clone(), log_probs.clone(), state.clone()

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

    def learn_together(self, together: Together | None) -> None:
        """Make the next updates together with other learners; None: alone again.

        `learn` then takes this learner's share of a batch; all shares have as many steps. The losses, their gradient
        and all that is shown are those of the whole batch, and so are the weights after it, if they were the same
        before. A layer that takes statistics over its input, such as batch normalisation, sees only this share; what a
        model keeps in buffers is that of the first learner.
        """
        self._together = together

    def learn(self, rollout: Rollout[Tensor]) -> dict[str, Tensor]:
        """One update from one rollout on the model's device.

        Returns:
            Detached scalars; reading one waits for the device. Losses and their total are sums over the steps.

        Raises:
            ValueError: a field of the rollout has the wrong shape or dtype. Nothing has changed then.
        """
        check_rollout(rollout)
        self._check_state(rollout)
        pieces = split_columns(rollout, self._num_parts if self.can_be_split else 1)
        part = joined(list(self._map_parts(self._learn_part, pieces)))
        num_steps = num_agent_steps(rollout)
        if self._together is not None:
            part = self._of_all_learners(part, self._together)
            num_steps *= self._together.num_learners
        means = {name: total / num_steps for name, total in part.sums.items()}
        return {**part.losses, **means, **self._descend(part.gradients, num_steps)}

    @abstractmethod
    def _objective(self, rollout: Rollout[Tensor], evaluation: Evaluation) -> Objective:
        """What is particular to the algorithm."""

    def _statistics(self, evaluation: Evaluation) -> dict[str, Tensor]:
        """Sums over the steps of what is shown as a mean; detached."""
        return {
            "mean_abs_log_rho": evaluation.log_rhos.abs().sum(),
            "mean_value": evaluation.values.detach().sum(),
        }

    def _learn_part(self, rollout: Rollout[Tensor]) -> Part:
        """Losses and gradients of some environments, or of all. Changes nothing: threads may do it at once."""
        evaluation = self._evaluate(rollout)
        pg_loss, value_targets = self._objective(rollout, evaluation)
        return self._part(evaluation.logits, evaluation.values, pg_loss, value_targets, self._statistics(evaluation))

    def _part(
        self, logits: Tensor, values: Tensor, pg_loss: Tensor, value_targets: Tensor, statistics: dict[str, Tensor]
    ) -> Part:
        """The whole loss of some steps, and its gradients."""
        v_loss, h_loss = value_loss(values, value_targets), entropy_loss(logits)
        total_loss = pg_loss + self.value_cost * v_loss + self.entropy_cost * h_loss
        gradients = torch.autograd.grad(total_loss, self._parameters(), allow_unused=True)
        losses = {"total_loss": total_loss, "pg_loss": pg_loss, "value_loss": v_loss, "entropy_loss": h_loss}
        losses = {name: loss.detach() for name, loss in losses.items()}
        return Part(gradients, losses, {"entropy": -losses["entropy_loss"], **statistics})

    def _of_all_learners(self, part: Part, together: Together) -> Part:
        """What this learner and all others add to the update."""
        parameters, own = self._parameters(), part.gradients
        filled = [
            torch.zeros_like(p) if gradient is None else gradient for p, gradient in zip(parameters, own, strict=True)
        ]
        is_there = torch.tensor([float(gradient is not None) for gradient in own], device=parameters[0].device)
        buffers = [buffer for buffer in self.model.buffers() if buffer.is_floating_point()]
        firsts = [buffer if together.is_first else torch.zeros_like(buffer) for buffer in buffers]
        tensors = [*filled, is_there, *part.losses.values(), *part.sums.values(), *firsts]
        totals = iter(added_up(tensors, together.add_up))
        gradients: list[Tensor | None] = [next(totals) for _ in own]
        num_there = next(totals)
        if any(gradient is None for gradient in own):  # elsewhere it may be there
            gradients = [total if number else None for total, number in zip(gradients, num_there.tolist(), strict=True)]
        losses = {name: next(totals) for name in part.losses}
        sums = {name: next(totals) for name in part.sums}
        for buffer in buffers:
            buffer.copy_(next(totals))
        return Part(gradients, losses, sums)

    def _evaluate(self, rollout: Rollout[Tensor]) -> Evaluation:
        """The model's view of every step of a rollout, and the values of what follows.

        The latter in a forward pass of their own: they need no gradient, and the large pass keeps one shape whatever
        the number of final observations is.
        """
        later_obs = torch.cat([rollout.bootstrap_obs, rollout.final_obs])
        if self._memory is None:
            flat_logits, flat_values = self.forward(rollout.obs.flatten(0, 1))
            logits, values = flat_logits.view(*rollout.rewards.shape, -1), flat_values.view(rollout.rewards.shape)
            with torch.no_grad():
                _, later_values = self.forward(later_obs)
        else:
            logits, values, next_rows, final_rows = self._unroll(rollout)
            with torch.no_grad():
                _, later_values, _ = self.step(later_obs, torch.cat([next_rows, final_rows]))
        log_probs = action_log_probs(logits, rollout.actions)
        log_rhos = log_probs.detach() - rollout.behaviour_log_probs
        bootstrap_value, final_values = later_values.tensor_split([values.shape[1]])
        following = next_values(values.detach(), bootstrap_value, final_values, rollout.final_steps)
        return Evaluation(logits, values, log_probs, log_rhos, following)

    def _unroll(self, rollout: Rollout[Tensor]) -> Unrolled:
        assert self._memory is not None and rollout.initial_state is not None
        ends = rollout.terminated | rollout.truncated
        with self._autocast(rollout.obs.device):
            unrolled = self._memory.unroll(rollout.obs, rollout.initial_state, ends, rollout.final_steps)
        return unrolled._replace(logits=unrolled.logits.float(), values=unrolled.values.float())

    def _autocast(self, device: torch.device) -> torch.autocast:
        # Without autocast's cache of weights in bfloat16: threads would share what is in it.
        return torch.autocast(device.type, torch.bfloat16, enabled=self.precision == "bf16", cache_enabled=False)

    def _check_state(self, rollout: Rollout[Tensor]) -> None:
        num_envs, given = rollout.rewards.shape[1], rollout.initial_state
        expected = None if self.state_size is None else [num_envs, self.state_size]
        actual = None if given is None else list(given.shape)
        if actual != expected:
            raise ValueError(f"rollout.initial_state is {actual}, expected {expected}")

    def _descend(self, gradients: Gradients, agent_steps: int) -> dict[str, Tensor]:
        """One step down the gradients, made from that many agent steps."""
        learning_rate, entropy_cost = self.schedule.at(self.agent_steps), self.entropy_cost
        for group in self.optimizer.param_groups:
            group["lr"] = learning_rate
        for parameter, gradient in zip(self._parameters(), gradients, strict=True):
            parameter.grad = gradient
        grad_norm = torch.nn.utils.clip_grad_norm_(self._parameters(), self.max_grad_norm)
        self.optimizer.step()
        self.agent_steps += agent_steps
        self.updates += 1
        return {
            "grad_norm": grad_norm.detach(),
            "learning_rate": torch.tensor(learning_rate),
            "entropy_cost": torch.tensor(entropy_cost),
        }

    def state_dict(self) -> dict[str, Any]:
        """A copy of model, optimizer, schedules and counters."""
        return {
            **super().state_dict(),
            "optimizer": copy.deepcopy(self.optimizer.state_dict()),
            "schedule": asdict(self.schedule),
            "entropy_schedule": asdict(self.entropy_schedule),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue from a state; its schedules replace ours. ValueError, and no change, if it does not fit."""
        self.check_state(state)
        schedule = LinearDecay(**state["schedule"])
        # Those that were saved before it could change have none: ours is as good.
        entropy_schedule = LinearDecay(**state.get("entropy_schedule", asdict(self.entropy_schedule)))
        self.optimizer.load_state_dict(state["optimizer"])  # checks before it changes anything, too
        super().load_state_dict(state)
        self.schedule, self.entropy_schedule = schedule, entropy_schedule

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raise ValueError unless `load_state_dict(state)` would work."""
        super().check_state(state)
        own, given = (each["param_groups"][0].keys() for each in (self.optimizer.state_dict(), state["optimizer"]))
        if own != given:  # torch would take it, and fail at the next step
            raise ValueError(f"the state is of another optimizer than {type(self.optimizer).__name__}")

    def _parameters(self) -> list[Parameter]:
        return [parameter for group in self.optimizer.param_groups for parameter in group["params"]]


def joined(parts: Sequence[Part]) -> Part:
    """Their sums, in new memory."""
    present = [[each for each in some if each is not None] for some in zip(*(p.gradients for p in parts), strict=True)]
    return Part(
        [_total(each) if each else None for each in present],
        {name: _total(part.losses[name] for part in parts) for name in parts[0].losses},
        {name: _total(part.sums[name] for part in parts) for name in parts[0].sums},
    )


def _total(tensors: Iterable[Tensor]) -> Tensor:
    """Their sum, in new memory."""
    first, *others = tensors
    total = first.clone()
    for tensor in others:
        total += tensor
    return total
