"""Models with a memory: the learner says of a rollout what the actor said of it step by step, and descends accordingly.

The reference is one loop over environments and steps, with the state in a plain variable.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from asyncparl.algorithms import A2C, GA3C, IMPALA, ActorCritic, Rollout, to_torch
from asyncparl.algorithms.losses import entropy
from asyncparl.rl import MLPLSTM, Agent, LSTMModel, Model
from tests.algorithms.rollouts import make_rollout, slow_vtrace
from tests.algorithms.test_parts import Counted

T, B = 6, 5
# At the first and the last step, twice in one environment, side by side, none at all in the last one.
ENDS: dict[str, Any] = {"terminated": ((1, 0), (5, 2), (0, 3)), "truncated": ((0, 1), (3, 0), (5, 3), (3, 1), (2, 2))}
DISCOUNT, VALUE_COST, ENTROPY_COST = 0.9, 0.5, 0.01


class OneTensor(Model):
    """A user's model whose state is a tensor, with more than one axis, that does not begin with zeros."""

    def __init__(self) -> None:
        super().__init__()
        self.cell = nn.GRUCell(4, 6)
        self.policy, self.value = nn.Linear(6, 3), nn.Linear(6, 1)

    def initial_state(self, num_envs: int) -> Tensor:
        return torch.tensor([[0.3, -0.2, 0.5], [0.1, 0.7, -0.4]]).repeat(num_envs, 1, 1)

    def forward(self, obs: Tensor, state: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden = self.cell(obs, state.flatten(1))
        return self.policy(hidden), self.value(hidden).squeeze(-1), hidden.view(-1, 2, 3)


class Counting(Model):
    """A user's model whose state is a tuple: what it has seen so far, and a whole number, the steps since the reset."""

    def __init__(self) -> None:
        super().__init__()
        self.keep = nn.Linear(4, 4)
        self.policy, self.value = nn.Linear(5, 3), nn.Linear(5, 1)

    def initial_state(self, num_envs: int) -> tuple[Tensor, Tensor]:
        return torch.zeros(num_envs, 4), torch.zeros(num_envs, dtype=torch.int64)

    def forward(self, obs: Tensor, state: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor]]:
        seen, steps = state
        assert steps.dtype == torch.int64
        seen = 0.9 * seen + torch.tanh(self.keep(obs))
        inputs = torch.cat([seen, 0.1 * steps.float().unsqueeze(1)], 1)
        return self.policy(inputs), self.value(inputs).squeeze(-1), (seen, steps + 1)


MODELS: dict[str, Callable[[], Model]] = {
    "one tensor": OneTensor,
    "a tuple": Counting,
    "LSTM": lambda: MLPLSTM(4, 3, hidden=8, num_units=5),
}
KINDS = (IMPALA, A2C, GA3C)


def make_memory_model(name: str) -> Model:
    """Far from uniform, so that memory, log rho and all gradients are of some size."""
    torch.manual_seed(0)
    model = MODELS[name]()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_(0.0, 0.5)
    return model


def make_algorithm(kind: Any, model: Model, **settings: Any) -> ActorCritic:
    settings = {"discount": DISCOUNT, "value_cost": VALUE_COST, "entropy_cost": ENTROPY_COST, **settings}
    algorithm: ActorCritic = kind(model, optimizer="rmsprop", rms_epsilon=0.01, max_grad_norm=math.inf, **settings)
    return algorithm


def make_memory_rollout(algorithm: ActorCritic, seed: int = 0) -> Rollout[Tensor]:
    """In the middle of episodes: the states are what the model remembers after some steps."""
    rollout = to_torch(make_rollout(T, B, **ENDS, seed=seed))
    state = algorithm.initial_state(B)
    for obs in to_torch(make_rollout(3, B, seed=seed + 1)).obs:
        assert state is not None
        *_, state = algorithm.sample(obs, state)
    return rollout._replace(initial_state=state)


class Played(NamedTuple):
    """What a model says, step by step."""

    logits: Tensor  # [T, B, A]
    values: Tensor  # [T, B]
    next_values: Tensor  # [T, B], no gradient


def play_again(model: Any, rollout: Rollout[Tensor]) -> Played:
    """One environment after the other, with nothing but the model's own forward and initial_state."""
    finals = {tuple(step): obs for step, obs in zip(rollout.final_steps.tolist(), rollout.final_obs, strict=True)}
    logits, values, next_values = [], [], torch.zeros(T, B)
    for b in range(B):
        assert rollout.initial_state is not None
        state = from_row(model, rollout.initial_state[b])
        for t in range(T):
            step_logits, value, state = model(rollout.obs[t, b][None], state)
            logits.append(step_logits[0])
            values.append(value[0])
            following = rollout.obs[t + 1, b] if t + 1 < T else rollout.bootstrap_obs[b]
            next_values[t, b] = model(finals.get((t, b), following)[None], state)[1].item()
            if rollout.terminated[t, b] or rollout.truncated[t, b]:
                state = model.initial_state(1)
    by_env = torch.stack(logits).view(B, T, -1), torch.stack(values).view(B, T)
    return Played(by_env[0].transpose(0, 1), by_env[1].transpose(0, 1), next_values)


def from_row(model: Any, row: Tensor) -> Any:
    """The state of one environment from a row of numbers, without the help of what is tested."""
    if isinstance(model, OneTensor):
        return row.view(1, 2, 3)
    if isinstance(model, Counting):
        return row[None, :4], row[4:].long()
    return row[None, :5], row[None, 5:]


def slow_loss(kind: Any, model: Model, rollout: Rollout[Tensor]) -> Tensor:
    played = play_again(model, rollout)
    log_probs = played.logits.log_softmax(-1).gather(-1, rollout.actions[..., None]).squeeze(-1)
    log_rhos = (log_probs - rollout.behaviour_log_probs).detach() if kind is IMPALA else torch.zeros(T, B)
    vs, advantages = slow_vtrace(  # of which A2C's targets are the case rho = 1
        log_rhos.numpy(),
        DISCOUNT * (~rollout.terminated).float().numpy(),
        rollout.rewards.numpy(),
        played.values.detach().numpy(),
        played.next_values.numpy(),
        (rollout.terminated | rollout.truncated).numpy(),
    )
    pg_loss = -(log_probs * torch.from_numpy(advantages)).sum()
    value_loss = 0.5 * (torch.from_numpy(vs) - played.values).square().sum()
    return pg_loss + VALUE_COST * value_loss - ENTROPY_COST * entropy(played.logits).sum()


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_loss_and_gradients_are_those_of_a_plain_loop(kind: Any, name: str) -> None:
    model, twin = make_memory_model(name), make_memory_model(name)
    extra = {"log_epsilon": 0.0} if kind is GA3C else {}
    algorithm = make_algorithm(kind, model, **extra)
    rollout = make_memory_rollout(algorithm)
    expected = slow_loss(kind, twin, rollout)
    expected.backward()  # type: ignore[no-untyped-call]
    metrics = algorithm.learn(rollout)
    torch.testing.assert_close(metrics["total_loss"], expected.float(), rtol=1e-5, atol=1e-5)
    for (label, one), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        assert one.grad is not None and one.grad.abs().max() > 1e-3, label
        torch.testing.assert_close(one.grad, other.grad, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", MODELS)
def test_the_learner_finds_the_probabilities_with_which_was_played_over_resets_and_borders(name: str) -> None:
    model = make_memory_model(name)
    agent = Agent(make_algorithm(A2C, model, learning_rate=1e-9))
    state = agent.initial_state(B)
    assert state is not None
    fresh = state
    for number in range(3):  # one rollout after the other, in the same episodes
        rollout = make_rollout(T, B, **ENDS, seed=number)._replace(initial_state=state)
        for t in range(T):
            rollout.actions[t], rollout.behaviour_log_probs[t], state = agent.sample(rollout.obs[t], state)
            ended = rollout.terminated[t] | rollout.truncated[t]
            state = np.where(ended[:, None], fresh, state)
        assert agent.learn(rollout)["mean_abs_log_rho"] < 1e-6
        # ... and would notice if it began with another state, or if an end were forgotten.
        assert agent.learn(rollout._replace(initial_state=state))["mean_abs_log_rho"] > 1e-3
        assert agent.learn(rollout._replace(terminated=np.zeros((T, B), bool)))["mean_abs_log_rho"] > 1e-3


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_update_in_parts_is_that_of_the_whole(kind: Any, name: str) -> None:
    whole, split = (make_algorithm(kind, make_memory_model(name)) for _ in range(2))
    rollout = make_memory_rollout(whole)
    counted = Counted()
    split.use_threads(counted, 3)
    expected, metrics = whole.learn(rollout), split.learn(rollout)
    assert counted.widths == [1, 2, 2]
    for metric, value in expected.items():
        torch.testing.assert_close(metrics[metric], value, rtol=1e-5, atol=1e-5)
    for one, other in zip(whole.model.parameters(), split.model.parameters(), strict=True):
        torch.testing.assert_close(other.grad, one.grad, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other, one, rtol=1e-4, atol=1e-6)


def test_in_bf16_an_lstm_remembers_in_full_precision() -> None:
    torch.manual_seed(0)
    model = MLPLSTM(4, 3)
    features = torch.randn(5, 64).bfloat16()
    state = (torch.randn(5, 256), torch.randn(5, 256))
    with torch.autocast("cpu", torch.bfloat16):
        outputs, (h, c) = model.remember(features, state)
    expected, _ = model.remember(features.float(), state)
    assert outputs.dtype == h.dtype == c.dtype == torch.float32
    assert torch.equal(outputs, expected)
    algorithm = make_algorithm(A2C, model, precision="bf16")
    metrics = algorithm.learn(make_memory_rollout(algorithm))
    assert all(torch.isfinite(value) for value in metrics.values())


def test_the_state_of_an_agent_is_an_array_with_a_row_for_each_environment() -> None:
    agent = Agent(make_algorithm(A2C, make_memory_model("a tuple")))
    state = agent.initial_state(2)
    assert state is not None and state.shape == (2, 5) and state.dtype == np.float32
    obs = np.ones((2, 4), np.float32)
    best, after = agent.predict(obs, state)
    actions, log_probs, after_sample = agent.sample(obs, state)
    assert best.shape == actions.shape == log_probs.shape == (2,)
    assert np.array_equal(after, after_sample)
    assert after[:, 4].tolist() == [1.0, 1.0]
    assert state[:, 4].tolist() == [0.0, 0.0]  # as it was
    assert Agent(A2C(nn.Linear(1, 1))).initial_state(2) is None


# --- what is wrong is said ----------------------------------------------------------------------------------------


class _Odd(OneTensor):
    """Begins with whatever it is told to."""

    begin: Any = None
    end: Any = None

    def initial_state(self, num_envs: int) -> Any:
        return self.begin

    def forward(self, obs: Tensor, state: Tensor) -> Any:
        return self.end


@pytest.mark.parametrize(
    ("begin", "message"),
    [
        (None, r"^_Odd.initial_state\(1\) must return a tensor \[1, ...\] or a tuple of such, not NoneType$"),
        (torch.zeros(3), r"must return a tensor \[1, ...\] or a tuple of such, not \[3\]$"),
        (torch.zeros(()), r"must return a tensor \[1, ...\] or a tuple of such, not \[\]$"),
        ((torch.zeros(1, 2), 0), r"must return a tensor \[1, ...\] or a tuple of such, not \(\[1, 2\], int\)$"),
        ((), r"^_Odd.initial_state\(1\) is empty; a model without a memory has no initial_state\(\)$"),
        (nn.Parameter(torch.zeros(1, 2)), r"^_Odd.initial_state\(1\) depends on parameters, and must not"),
    ],
)
def test_a_wrong_initial_state_is_refused(begin: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Odd, "begin", begin)
    with pytest.raises(ValueError, match=message):
        A2C(_Odd())


@pytest.mark.parametrize(
    ("end", "message"),
    [
        ((torch.zeros(2, 3), torch.zeros(2)), r"^_Odd has initial_state\(\), so forward\(obs, state\) must return"),
        (
            (torch.zeros(2, 3), torch.zeros(2), torch.zeros(2, 6)),
            r"^_Odd begins with a state \[N, 7\], but returns a next state \[2, 6\]$",
        ),
        ((torch.zeros(2, 3), torch.zeros(2), None), r"but returns a next state NoneType$"),
    ],
)
def test_a_wrong_next_state_is_refused(end: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(_Odd, "begin", torch.zeros(1, 7))
    monkeypatch.setattr(_Odd, "end", end)
    with pytest.raises(ValueError, match=message):
        A2C(_Odd()).sample(torch.zeros(2, 4), torch.zeros(2, 7))


def test_a_state_is_needed_exactly_where_there_is_a_memory() -> None:
    remembers, forgets = A2C(OneTensor()), A2C(nn.Linear(4, 3))
    obs = torch.zeros(2, 4)
    with pytest.raises(ValueError, match=r"^OneTensor has a memory: give its state, too; see initial_state\(\)$"):
        remembers.sample(obs)
    with pytest.raises(ValueError, match=r"^state has shape \[2, 5\], expected \[2, 6\]$"):
        remembers.predict(obs, torch.zeros(2, 5))
    with pytest.raises(ValueError, match=r"^Linear has no memory, and takes no state$"):
        forgets.sample(obs, torch.zeros(2, 6))
    rollout = to_torch(make_rollout())
    with pytest.raises(ValueError, match=r"^rollout.initial_state is None, expected \[3, 6\]$"):
        remembers.learn(rollout)
    with pytest.raises(ValueError, match=r"^rollout.initial_state is \[3, 6\], expected None$"):
        forgets.learn(rollout._replace(initial_state=torch.zeros(3, 6)))


def test_the_forward_of_an_lstm_model_is_not_overwritten() -> None:
    with pytest.raises(TypeError, match=r"^Mine: write features\(obs\), not forward, in a subclass of LSTMModel"):

        class Mine(LSTMModel):
            def forward(self, obs: Tensor, state: Any) -> Any:
                return None

    with pytest.raises(NotImplementedError, match=r"^LSTMModel must have a method features\(obs\)$"):
        A2C(LSTMModel(4, 3)).sample(torch.zeros(1, 4), torch.zeros(1, 512))
