"""The loss of a step and its gradient, the same however the step is cut into pieces.

Every piece contributes the *sum* of its losses divided by the number of valid targets of the whole
step, over all micro-batches and processes. Pieces with few or no valid targets then weigh what they
should, and nothing is divided by 0.

The logits of a whole micro-batch would be the largest tensor of a step. A model of this package
lends its head instead (`head` of its forward), and `head_loss` goes over it some tokens at a time,
the gradient of each piece computed beside its loss, so that no logits are computed twice.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from depth_memory.train.parallel import World

IGNORED = -100

CHUNK = 2048
"""Tokens whose logits exist at a time, where nobody says otherwise."""

Pointwise = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
Head = Callable[[Tensor, Tensor, Tensor], Tensor]
"""The summed loss of normed hidden states [..., D], the head's weight [V, D] and targets [...]."""


def shift(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets [rows, length] of token ids [rows, length + 1].

    A negative id is padding: ignored as a target, and replaced by 0 as an input.
    """
    inputs, targets = tokens[:, :-1].clamp(min=0), tokens[:, 1:]
    return inputs, torch.where(targets < 0, IGNORED, targets)


def summed_loss(
    model: nn.Module, inputs: Tensor, targets: Tensor, head: Head | None = None
) -> Tensor:
    """The sum over valid targets of -log p(target), in nats.

    Args:
        model: Returns an object with `.logits` [rows, length, vocab]; or lends its head.
        inputs: Token ids [rows, length].
        targets: The ids that follow [rows, length]; `IGNORED` where there is none.
        head: What makes the loss of a model that lends its head, `head_of(...)`; from the logits of
            all tokens where not given.

    Returns:
        A float32 scalar (float64 for float64 logits); 0 if no target is valid.
    """
    if head is None:
        logits = model(input_ids=inputs, use_cache=False).logits.flatten(0, 1)
        return _summed(logits, targets.flatten())

    def lent(hidden: Tensor, weight: Tensor) -> Tensor:
        return head(hidden, weight, targets)

    return model(input_ids=inputs, use_cache=False, head=lent).loss


def head_of(chunk: int = CHUNK, *, compiled: bool = False) -> Head:
    """`head_loss` over `chunk` tokens at a time, 0 for all at once, in compiled pieces or not."""
    pointwise = loss_and_gradient
    if compiled:
        pointwise = torch.compile(loss_and_gradient, dynamic=False)
    return functools.partial(_head_loss, chunk=chunk, pointwise=pointwise)


def _head_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, chunk: int, pointwise: Pointwise
) -> Tensor:
    return head_loss(
        hidden.flatten(0, -2), weight, targets.flatten(), chunk=chunk, pointwise=pointwise
    )


def head_loss(
    hidden: Tensor, weight: Tensor, targets: Tensor, *, chunk: int, pointwise: Pointwise
) -> Tensor:
    """The sum over valid targets of -log p(target), in nats, never holding all the logits.

    Args:
        hidden: Normed hidden states [N, D].
        weight: The head [V, D].
        targets: Token ids [N]; `IGNORED` where there is none.
        chunk: Tokens whose logits exist at a time; 0 for all.
        pointwise: `loss_and_gradient`, or a compiled form of it.

    Returns:
        A float32 scalar (float64 for float64). Its gradient is computed here, in the dtypes of
        `hidden` and `weight`, and can be asked for once.
    """
    if torch.is_grad_enabled():
        return _HeadLoss.apply(hidden, weight, targets, chunk or len(hidden), pointwise)
    total = hidden.new_zeros((), dtype=_wide(hidden.dtype))
    for x, target in zip(*_pieces(chunk or len(hidden), hidden, targets), strict=True):
        total += _summed(x @ weight.mT, target)
    return total


def loss_and_gradient(logits: Tensor, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Summed loss of logits [n, V] with targets [n], and their gradient in their dtype."""
    log_p = logits.to(_wide(logits.dtype)).log_softmax(-1)
    valid = targets != IGNORED
    place = torch.where(valid, targets, 0)[:, None]
    loss = -torch.where(valid, log_p.gather(-1, place)[:, 0], 0.0).sum()
    if torch.compiler.is_compiling():  # one pass, where a scatter would be another
        hit = torch.arange(logits.shape[-1], device=logits.device) == place
        gradient = (log_p.exp() - hit.to(log_p.dtype)) * valid[:, None]
    else:
        gradient = log_p.exp_()
        gradient.scatter_add_(-1, place, gradient.new_full((), -1.0).expand(place.shape))
        gradient.mul_(valid[:, None])
    return loss, gradient.to(logits.dtype)


class _HeadLoss(Function):
    """Loss and gradients piece by piece, in the forward pass."""

    @staticmethod
    def forward(
        ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, chunk: int, pointwise: Pointwise
    ) -> Tensor:
        d_hidden = torch.empty_like(hidden)
        d_weight = torch.zeros_like(weight) if ctx.needs_input_grad[1] else None
        total = hidden.new_zeros((), dtype=_wide(hidden.dtype))
        for x, target, out in zip(*_pieces(chunk, hidden, targets, d_hidden), strict=True):
            loss, gradient = pointwise(x @ weight.mT, target)
            total += loss
            torch.mm(gradient, weight, out=out)
            if d_weight is not None:
                d_weight.addmm_(gradient.mT, x)
        ctx.gradients = d_hidden, d_weight
        return total

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        # in place: they are the largest tensors of a step, and serve once
        d_hidden, d_weight = ctx.gradients
        del ctx.gradients
        d_weight = None if d_weight is None else d_weight.mul_(grads[0])
        return d_hidden.mul_(grads[0]), d_weight, None, None, None


def _pieces(chunk: int, *tensors: Tensor) -> list[tuple[Tensor, ...]]:
    return [tensor.split(chunk) for tensor in tensors]


def _summed(logits: Tensor, targets: Tensor) -> Tensor:
    logits = logits.to(_wide(logits.dtype))
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")


def _wide(dtype: torch.dtype) -> torch.dtype:
    return torch.promote_types(dtype, torch.float32)


def count_valid(targets: Tensor) -> Tensor:
    """How many targets are not ignored."""
    return (targets != IGNORED).sum()


def add_gradient(
    model: nn.Module,
    inputs: Tensor,
    targets: Tensor,
    *,
    pieces: int,
    world: World,
    head: Head | None = None,
) -> tuple[Tensor, Tensor]:
    """Add the gradient of the step's mean loss to the parameters' gradients.

    Args:
        model: As for `summed_loss`; plain, or sharded over `world`.
        inputs: This process's token ids [rows, length].
        targets: The ids that follow [rows, length].
        pieces: Micro-batches; divides `rows`.
        world: The processes among which the step's rows are spread.
        head: As for `summed_loss`.

    Returns:
        The mean loss over the step's valid targets in nats, and their number, over all processes.
    """
    valid = world.sum(count_valid(targets))
    divisor = valid.clamp(min=1)
    total = torch.zeros((), device=inputs.device, dtype=torch.float32)
    for x, y in zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True):
        loss = summed_loss(model, x, y, head)
        # sharded gradients are averaged over processes; the step's is their sum
        (loss * (world.size / divisor)).backward()
        total += loss.detach()
    return world.sum(total) / divisor, valid
