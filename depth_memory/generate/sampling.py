"""From logits to the next tokens, each row with random numbers of its own."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int
from torch import Tensor
from transformers import LogitsProcessorList
from transformers.generation.logits_process import (
    LogitsProcessor,
    MinPLogitsWarper,
    RepetitionPenaltyLogitsProcessor,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)

from depth_memory.generate.settings import Settings

LOST = -1
"""In place of a token where a logit is not a number."""


def processors(settings: Settings) -> LogitsProcessorList:
    """What changes the logits before a token is chosen."""
    found: list[LogitsProcessor] = []
    if settings.repetition_penalty != 1:
        found.append(RepetitionPenaltyLogitsProcessor(settings.repetition_penalty))
    if settings.greedy:
        return LogitsProcessorList(found)
    if settings.temperature != 1:
        found.append(TemperatureLogitsWarper(float(settings.temperature)))
    if settings.top_k:
        found.append(TopKLogitsWarper(settings.top_k))
    if settings.top_p < 1:
        found.append(TopPLogitsWarper(float(settings.top_p)))
    if settings.min_p:
        found.append(MinPLogitsWarper(float(settings.min_p)))
    return LogitsProcessorList(found)


def draws(seed: int, rows: Sequence[tuple[int, int]], steps: int) -> Float[Tensor, "rows steps"]:
    """Uniform random numbers in [0, 1), float64: those of a row depend on nothing but itself.

    Args:
        seed: Of the generation.
        rows: Place of the prompt and number of the sample, of each row.
        steps: Tokens of a row at most.
    """
    made = [np.random.default_rng((seed, *row)).random(steps) for row in rows]
    # far enough below 1 that no product with it rounds up to the other factor
    return torch.from_numpy(np.stack(made)) * (1 - 2**-50)


def choose(
    logits: Float[Tensor, "rows vocabulary"],
    history: Int[Tensor, "rows length"],
    uniform: Float[Tensor, " rows"] | None,
    change: Callable[[Any, Tensor], Any],
) -> Int[Tensor, " rows"]:
    """The next token of each row, `LOST` where the largest logit is not finite.

    Args:
        logits: Of the next token, in any dtype; computed with in float32.
        history: The tokens so far, for the repetition penalty. Each counts once.
        uniform: A random number for each row, whose place in the cumulated probabilities is the
            token; `None` takes the most probable.
        change: From `processors`.
    """
    scores = logits.float()
    lost = ~scores.amax(-1).isfinite()
    scores = change(history, scores)
    if uniform is None:
        return scores.argmax(-1).masked_fill(lost, LOST)
    total = scores.softmax(-1, dtype=torch.float64).cumsum(-1)
    # of 1 but for rounding; right of the mark, so that a token of probability 0 is never hit
    mark = uniform[:, None] * total[:, -1:]
    found = torch.searchsorted(total, mark, right=True)[:, 0]
    return found.masked_fill(lost, LOST)
