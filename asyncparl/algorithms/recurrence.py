"""Models with a memory, such as an LSTM: what they must give, and how a rollout is learned from with them.

A model has a memory if it has these two methods; nothing else declares it:

    initial_state(num_envs)      -> state                     when an episode begins: constants, such as zeros
    forward(obs [N, ...], state) -> (logits [N, A], values [N], state)                 one step of N environments

A state is a tensor [N, ...], or a tuple of such: (h, c) of an LSTM. Between two steps it is kept as **rows**: one
float32 tensor [N, S], a row for each environment. So its numbers must be such that float32 holds them.

Where an episode ends, whether it terminated or was truncated, the next step begins with the initial state.

A model that also has the following three is unrolled faster, because only the second is called step by step. Its
`forward` must be their composition:

    features(obs [N, ...])             -> [N, ...]            that need no memory
    remember(features [N, ...], state) -> (outputs [N, ...], state)
    decide(outputs [N, ...])           -> (logits [N, A], values [N])
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn import Module

State = Tensor | tuple[Tensor, ...]

_PARTS = ("features", "remember", "decide")


class Unrolled(NamedTuple):
    """What a model has said of T steps of B environments; gradients flow through the first two."""

    logits: Tensor  # [T, B, A]
    values: Tensor  # [T, B]
    next_rows: Tensor  # [B, S] what it remembers when it sees `bootstrap_obs`
    final_rows: Tensor  # [K, S] and when it sees each of `final_obs`


class Memory:
    """The memory of one model. See the top of this file.

    Raises:
        ValueError: `initial_state` does not give what it should.
    """

    def __init__(self, model: Module) -> None:
        self._model = model
        self._name = type(model).__name__
        state = self._ask_initial_state()
        self._is_tuple = isinstance(state, tuple)
        parts = state if isinstance(state, tuple) else (state,)
        self._shapes = [part.shape[1:] for part in parts]
        self._dtypes = [part.dtype for part in parts]
        self._sizes = [shape.numel() for shape in self._shapes]
        self._initial_row = self._to_rows(state).cpu()
        self._has_parts = all(callable(getattr(model, name, None)) for name in _PARTS)

    @classmethod
    def of(cls, model: Module) -> Memory | None:
        """That of the model, if it has one."""
        return cls(model) if callable(getattr(model, "initial_state", None)) else None

    @property
    def size(self) -> int:
        """S: how many numbers are remembered of an environment."""
        return sum(self._sizes)

    def initial_rows(self, num_envs: int, device: torch.device | str = "cpu") -> Tensor:
        """[N, S] what is remembered when an episode begins."""
        return self._initial_row.to(device).repeat(num_envs, 1)

    def step(self, obs: Tensor, rows: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Logits [N, A], values [N], and the rows [N, S] of the next step, if no episode ends in between."""
        logits, values, state = self._forward(obs, self._to_state(rows))
        return logits, values, self._to_rows(state)

    def unroll(self, obs: Tensor, rows: Tensor, ends: Tensor, final_steps: Tensor) -> Unrolled:
        """All steps of a rollout, one after the other, as they were played.

        Args:
            obs: [T, B, ...].
            rows: [B, S] what was remembered at the first step.
            ends: [T, B] bool, terminated | truncated.
            final_steps: [K, 2] int64, the (t, b) of each final observation.
        """
        initial = self.initial_rows(obs.shape[1], obs.device)
        inputs = self._features(obs) if self._has_parts else obs
        steps: list[tuple[Any, ...]] = []
        rows_after: list[Tensor] = []  # each step, before an end resets them
        for t in range(len(obs)):
            *output, state = self._inner_step(inputs[t], self._to_state(rows))
            after = self._to_rows(state)
            steps.append(tuple(output))
            rows_after.append(after)
            rows = torch.where(ends[t].unsqueeze(-1), initial, after)
        logits, values = self._outer_steps(steps)
        return Unrolled(logits, values, rows.detach(), _pick(rows_after, final_steps))

    # --- the model, whole or in parts -------------------------------------------------------------------------

    def _features(self, obs: Tensor) -> Tensor:
        features: Tensor = self._model.features(obs.flatten(0, 1))  # type: ignore[operator]
        return features.reshape(*obs.shape[:2], *features.shape[1:])

    def _inner_step(self, inputs: Tensor, state: State) -> tuple[Any, ...]:
        """What has to be done step by step."""
        if self._has_parts:
            stepped: tuple[Any, ...] = self._model.remember(inputs, state)  # type: ignore[operator]
            return stepped
        return self._forward(inputs, state)

    def _outer_steps(self, steps: list[tuple[Any, ...]]) -> tuple[Tensor, Tensor]:
        """Logits [T, B, A] and values [T, B] from what the inner steps have given."""
        stacked = [torch.stack(each) for each in zip(*steps, strict=True)]
        if not self._has_parts:
            logits, values = stacked
            return logits, values
        (outputs,) = stacked
        logits, values = self._model.decide(outputs.flatten(0, 1))  # type: ignore[operator]
        return logits.reshape(*outputs.shape[:2], -1), values.reshape(outputs.shape[:2])

    def _forward(self, obs: Tensor, state: State) -> tuple[Tensor, Tensor, State]:
        result = self._model(obs, state)
        if not isinstance(result, tuple) or len(result) != 3:
            raise ValueError(
                f"{self._name} has initial_state(), so forward(obs, state) must return (logits, values, state)"
            )
        return result

    def _ask_initial_state(self) -> State:
        state: Any = self._model.initial_state(1)  # type: ignore[operator]
        what = f"{self._name}.initial_state(1)"
        parts = state if isinstance(state, tuple) else (state,)
        for part in parts:
            if not isinstance(part, Tensor) or part.ndim < 1 or part.shape[0] != 1:
                raise ValueError(f"{what} must return a tensor [1, ...] or a tuple of such, not {_describe(state)}")
            if part.requires_grad:
                raise ValueError(f"{what} depends on parameters, and must not: actors would begin with old ones")
        if not parts:
            raise ValueError(f"{what} is empty; a model without a memory has no initial_state()")
        return tuple(parts) if isinstance(state, tuple) else parts[0]

    # --- states and rows --------------------------------------------------------------------------------------

    def _to_state(self, rows: Tensor) -> State:
        pieces = torch.split(rows, self._sizes, 1)
        parts = tuple(
            piece.reshape(len(rows), *shape).to(dtype)
            for piece, shape, dtype in zip(pieces, self._shapes, self._dtypes, strict=True)
        )
        return parts if self._is_tuple else parts[0]

    def _to_rows(self, state: State) -> Tensor:
        parts = state if isinstance(state, tuple) else (state,)
        shapes = [part.shape[1:] if isinstance(part, Tensor) else None for part in parts]
        if shapes != self._shapes:
            given, expected = _describe(state), ", ".join(f"[N, {', '.join(map(str, each))}]" for each in self._shapes)
            raise ValueError(f"{self._name} begins with a state {expected}, but returns a next state {given}")
        return torch.cat([part.reshape(len(part), -1).float() for part in parts], 1)


def _pick(rows_after: list[Tensor], final_steps: Tensor) -> Tensor:
    """[K, S] the rows after each of the steps; detached."""
    if not len(final_steps):
        return rows_after[0].detach()[:0]
    return torch.stack(rows_after).detach()[final_steps[:, 0], final_steps[:, 1]]


def _describe(state: Any) -> str:
    if isinstance(state, Tensor):
        return str(list(state.shape))
    if isinstance(state, tuple):
        return f"({', '.join(_describe(part) for part in state)})"
    return type(state).__name__
