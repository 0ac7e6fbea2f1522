"""Standard errors of the harness's metrics, over the documents of a task.

The mean of a document's score has the usual one. A perplexity is exp of a mean, or of a ratio of
sums; its standard error is that of the exponent times the derivative (the delta method). For
LAMBADA this is what the harness's bootstrap converges to; for WikiText the harness gives none.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

WEIGHTED = ("word_perplexity", "byte_perplexity", "bits_per_byte")
"""Metrics whose documents count by their length: each gives a log-likelihood and a length."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A metric of a task."""

    value: float
    stderr: float | None
    """Standard error over the documents; None for a single one."""


def score(metric: str, value: float, samples: Sequence[object]) -> Score:
    """A metric's value with its standard error.

    Args:
        metric: The harness's name of it.
        value: As the harness aggregated it.
        samples: What each document gave: a score, a log-likelihood in nats (`perplexity`), or a
            log-likelihood with a number of words or bytes (`WEIGHTED`).
    """
    error = _stderr(metric, value, np.array(samples, dtype=np.float64))
    return Score(value=float(value), stderr=error)


def _stderr(metric: str, value: float, samples: np.ndarray) -> float | None:
    if len(samples) < 2:
        return None
    if metric in WEIGHTED:
        slope = 1 / math.log(2) if metric == "bits_per_byte" else value
        return slope * _ratio_stderr(samples[:, 0], samples[:, 1])
    return _mean_stderr(samples) * (value if metric == "perplexity" else 1)


def _mean_stderr(values: np.ndarray) -> float:
    return float(values.std(ddof=1) / math.sqrt(len(values)))


def _ratio_stderr(sums: np.ndarray, weights: np.ndarray) -> float:
    """Of sum(sums) / sum(weights), to first order."""
    residuals = sums - weights * (sums.sum() / weights.sum())
    return _mean_stderr(residuals) * len(sums) / float(weights.sum())
