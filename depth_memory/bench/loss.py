"""Cross-entropy of a head over a large vocabulary, without ever holding all the logits.

The gradient of each piece is computed beside its loss, so that no logits are computed twice.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

CHUNK = 2048
"""Tokens whose logits exist at a time."""


def head_loss(hidden: Tensor, weight: Tensor, targets: Tensor, pointwise: Callable) -> Tensor:
    """The mean over tokens of -log p(target), in nats, as a float32 scalar.

    Args:
        hidden: Normed hidden states [N, D].
        weight: The head [V, D].
        targets: Token ids [N].
        pointwise: `loss_and_gradient`, or a compiled form of it.
    """
    return _HeadLoss.apply(hidden, weight, targets, pointwise)


def loss_and_gradient(logits: Tensor, targets: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Summed loss over `count` of logits [n, V], and their gradient in their dtype."""
    wide = logits.float()
    norm = wide.logsumexp(-1, keepdim=True)
    hit = torch.arange(logits.shape[-1], device=logits.device) == targets[:, None]
    loss = (norm[:, 0] - torch.where(hit, wide, 0.0).sum(-1)).sum() / count
    return loss, (((wide - norm).exp() - hit.float()) / count).to(logits.dtype)


class _HeadLoss(Function):
    """Loss and gradients piece by piece, in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, pointwise: Callable
    ) -> Tensor:
        d_hidden, d_weight = torch.empty_like(hidden), torch.zeros_like(weight)
        total = torch.zeros((), device=hidden.device)
        pieces = (hidden.split(CHUNK), targets.split(CHUNK), d_hidden.split(CHUNK))
        for x, target, out in zip(*pieces, strict=True):
            loss, gradient = pointwise(x @ weight.mT, target, len(hidden))
            total += loss
            torch.mm(gradient, weight, out=out)
            d_weight.addmm_(gradient.mT, x)
        ctx.gradients = (d_hidden, d_weight)
        return total

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        # in place: they are the largest tensors of a step, and serve once
        d_hidden, d_weight = (gradient.mul_(grads[0]) for gradient in ctx.gradients)
        return d_hidden, d_weight, None, None
