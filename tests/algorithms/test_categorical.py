from __future__ import annotations

import torch

from asyncparl.algorithms.categorical import action_log_probs, sample


def test_actions_are_drawn_as_often_as_their_probabilities_say() -> None:
    probabilities = torch.tensor([[0.1, 0.2, 0.7], [0.6, 0.4, 0.0]])
    count = 40_000
    generator = torch.Generator().manual_seed(0)
    actions, _ = sample(probabilities.log().clamp(min=-1e4).expand(count, 2, 3), generator)
    for row in range(2):
        frequencies = torch.bincount(actions[:, row], minlength=3) / count
        torch.testing.assert_close(frequencies, probabilities[row], rtol=0.0, atol=0.01)  # four standard errors


def test_each_row_is_drawn_on_its_own() -> None:
    actions, _ = sample(torch.zeros(10_000, 2, 2), torch.Generator().manual_seed(0))
    equal = (actions[:, 0] == actions[:, 1]).float().mean()
    assert 0.47 < equal < 0.53


def test_log_probs_are_those_of_the_drawn_actions() -> None:
    logits = torch.randn(7, 5, 4, generator=torch.Generator().manual_seed(1))
    actions, log_probs = sample(logits, torch.Generator().manual_seed(0))
    assert actions.shape == log_probs.shape == (7, 5)
    assert actions.dtype == torch.int64
    expected = logits.softmax(-1).log().gather(-1, actions[..., None])[..., 0]
    torch.testing.assert_close(log_probs, expected)
    torch.testing.assert_close(action_log_probs(logits, actions), expected)


def test_a_seeded_generator_repeats_its_draws() -> None:
    logits = torch.zeros(100, 6)
    draws = [sample(logits, torch.Generator().manual_seed(seed))[0] for seed in (3, 3, 4)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])


def test_an_action_far_likelier_than_the_others_is_always_drawn() -> None:
    logits = torch.tensor([[0.0, 1000.0, 0.0]]).expand(1000, 3)
    actions, log_probs = sample(logits)
    assert (actions == 1).all()
    assert (log_probs == 0.0).all()
