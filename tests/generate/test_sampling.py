"""Tokens are drawn as the probabilities say, by random numbers that belong to their row."""

from __future__ import annotations

import pytest
import torch

from depth_memory.errors import UserError
from depth_memory.generate import Settings, generate
from depth_memory.generate.sampling import LOST, choose, draws, processors
from tests.generate.conftest import PROMPTS

PROBABILITIES = torch.tensor([0.0, 0.5, 0.05, 0.25, 0.0, 0.2])
ROWS = 1000


def shares(**settings) -> list[float]:
    """How often each token is chosen, over evenly spaced random numbers."""
    logits = PROBABILITIES.log().clamp(min=-1e9).expand(ROWS, -1)
    uniform = (torch.arange(ROWS, dtype=torch.float64) + 0.5) / ROWS
    history = torch.tensor([[3]]).expand(ROWS, 1)
    found = choose(logits, history, uniform, processors(Settings(**settings)))
    return [(found == i).double().mean().item() for i in range(6)]


LAWS = {
    "as the model says": ({"temperature": 1}, [0, 0.5, 0.05, 0.25, 0, 0.2]),
    "top k": ({"temperature": 1, "top_k": 2}, [0, 2 / 3, 0, 1 / 3, 0, 0]),
    "top p": ({"temperature": 1, "top_p": 0.6}, [0, 2 / 3, 0, 1 / 3, 0, 0]),
    "min p": ({"temperature": 1, "min_p": 0.45}, [0, 2 / 3, 0, 1 / 3, 0, 0]),
    # squares: 0.25, 0.0025, 0.0625, 0.04
    "temperature": ({"temperature": 0.5}, [0, 0.7042, 0.0070, 0.1761, 0, 0.1127]),
    # log 0.25 is negative: its double is log 0.0625
    "penalty": (
        {"temperature": 1, "repetition_penalty": 2.0},
        [0, 0.6154, 0.0615, 0.0769, 0, 0.2462],
    ),
}


@pytest.mark.parametrize("case", LAWS)
def test_shares_are_probabilities(case):
    settings, expected = LAWS[case]
    assert shares(**settings) == pytest.approx(expected, abs=1.001 / ROWS)


def test_the_ends_of_the_random_numbers_hit_tokens_that_may_be():
    uniform = torch.tensor([0.0, (1 - 2**-53) * (1 - 2**-50)], dtype=torch.float64)
    logits = PROBABILITIES.log().expand(2, -1)
    found = choose(logits, torch.zeros(2, 1, dtype=torch.long), uniform, processors(Settings()))
    assert found.tolist() == [1, 5]
    logits = torch.tensor([[0.0, 0.0, float("-inf")]]).expand(2, -1)
    found = choose(logits, torch.zeros(2, 1, dtype=torch.long), uniform, processors(Settings()))
    assert found.tolist() == [0, 1]


@pytest.mark.parametrize("value", ["nan", "inf"])
@pytest.mark.parametrize("uniform", [None, torch.tensor([0.3, 0.3], dtype=torch.float64)])
def test_a_row_whose_logits_are_lost_is_marked(value, uniform):
    logits = torch.tensor([[0.0, 5.0], [0.0, float(value)]])
    history = torch.zeros(2, 1, dtype=torch.long)
    found = choose(logits, history, uniform, processors(Settings(temperature=1)))
    assert found.tolist() == [1, LOST]


def test_random_numbers_belong_to_a_row():
    whole = draws(5, [(0, 0), (0, 1), (1, 0)], 4)
    assert whole.dtype == torch.float64
    assert torch.equal(draws(5, [(1, 0)], 4)[0], whole[2])
    assert torch.equal(draws(5, [(0, 1)], 2)[0], whole[1, :2])
    assert len({*whole.flatten().tolist(), *draws(6, [(0, 0)], 4).flatten().tolist()}) == 16
    assert whole.min() >= 0
    assert whole.max() < 1


def test_a_seed_gives_the_same_texts_in_any_batch(make):
    loaded = make()
    options = {"tokens": 6, "temperature": 1.5, "samples": 2, "seed": 3}
    found = [generate(loaded, PROMPTS, batch=n, **options).continuations for n in (1, 2, 6)]
    assert found[0] == found[1] == found[2]
    assert len({one.ids for one in found[0]}) == 6
    assert [(one.prompt, one.sample) for one in found[0]] == [
        (i, j) for i in range(3) for j in (0, 1)
    ]
    other = generate(loaded, PROMPTS, **(options | {"seed": 4})).continuations
    assert other != found[0]
    one = generate(loaded, PROMPTS[:1], **(options | {"samples": 1})).continuations
    assert one == found[0][:1]


MISTAKES = {
    "temperature": ({"temperature": -1}, "temperature: got -1; allowed: at least 0, at most 1000"),
    "tiny": (
        {"temperature": 1e-9},
        "temperature: got 1e-09; allowed: 0, or at least 0.001, at mos",
    ),
    "nan": ({"temperature": float("nan")}, "temperature: got nan; allowed: "),
    "top p": ({"top_p": 0}, "top_p: got 0; allowed: a number above 0, at most 1"),
    "min p": ({"min_p": 1.1}, "min_p: got 1.1; allowed: at least 0, at most 1"),
    "penalty": ({"repetition_penalty": 0}, "repetition_penalty: got 0; allowed: at least 0.001"),
    "samples": (
        {"samples": 2, "temperature": 0},
        "samples: got 2; allowed: 1 where the most probable token is taken",
    ),
    "stop": ({"stop": ("a", "")}, "stop: got ''; allowed: a text that is not empty"),
    "one stop": ({"stop": "ab"}, "stop: got 'ab'; allowed: a tuple of texts"),
    "cache": ({"cache": "paged"}, "cache: got 'paged'; allowed: auto, dynamic, static"),
    "batch": ({"batch": 0}, "batch: got 0; allowed: at least 1, at most 1000000"),
    "tokens": ({"tokens": 0}, "tokens: got 0; allowed: at least 1, at most 1000000"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes(case):
    settings, message = MISTAKES[case]
    with pytest.raises(UserError) as error:
        Settings(**settings)
    assert str(error.value).startswith(message)
