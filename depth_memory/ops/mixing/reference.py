"""Weighted sums, attention over depth and doubly stochastic matrices, in plain PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from depth_memory.ops._precision import compute_dtype, without_autocast

Sources = Tensor | Sequence[Tensor]


def weighted_sum(coef: Tensor, sources: Sources) -> Tensor:
    """`out[r] = sum_s coef[r, s] sources[s]` in the compute dtype, for coef [..., R, S]."""
    if isinstance(sources, Tensor):
        dtype = compute_dtype((coef, sources))
        with without_autocast(coef):
            return coef.to(dtype) @ sources.to(dtype)
    dtype = compute_dtype((coef, *sources))
    # one term at a time: a list is never stacked, so its vectors are not copied
    terms = (
        c[..., None] * s[..., None, :]
        for c, s in zip(coef.to(dtype).unbind(-1), sources, strict=True)
    )
    total = next(terms)
    for term in terms:
        total = total + term
    return total


def rms_normalised(x: Tensor, eps: float) -> Tensor:
    """`x` over the root of its mean square along the last axis."""
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps)


def depth_attention(query: Tensor, sources: Sequence[Tensor], weight: Tensor, eps: float) -> Tensor:
    """Softmax over sources of `query . (weight * rms(source))`, [..., S]."""
    dtype = compute_dtype((query, weight, *sources))
    direction = query.to(dtype) * weight.to(dtype)
    logits = [(rms_normalised(s.to(dtype), eps) * direction).sum(-1) for s in sources]
    return torch.stack(logits, -1).softmax(-1)


def sinkhorn(logits: Tensor, iterations: int) -> Tensor:
    """Columns, then rows, normalised `iterations` times in the log domain."""
    for _ in range(iterations):
        logits = logits - logits.logsumexp(-2, keepdim=True)
        logits = logits - logits.logsumexp(-1, keepdim=True)
    return logits.exp()
