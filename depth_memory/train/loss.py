"""The loss of a step and its gradient, the same however the step is cut into pieces.

Every piece contributes the *sum* of its losses divided by the number of valid targets of the whole
step, over all micro-batches and processes. Pieces with few or no valid targets then weigh what they
should, and nothing is divided by 0.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from depth_memory.train.parallel import World

IGNORED = -100


def shift(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs and targets [rows, length] of token ids [rows, length + 1].

    A negative id is padding: ignored as a target, and replaced by 0 as an input.
    """
    inputs, targets = tokens[:, :-1].clamp(min=0), tokens[:, 1:]
    return inputs, torch.where(targets < 0, IGNORED, targets)


def summed_loss(model: nn.Module, inputs: Tensor, targets: Tensor) -> Tensor:
    """The sum over valid targets of -log p(target), in nats.

    Args:
        model: Returns an object with `.logits` [rows, length, vocab].
        inputs: Token ids [rows, length].
        targets: The ids that follow [rows, length]; `IGNORED` where there is none.

    Returns:
        A float32 scalar (float64 for float64 logits); 0 if no target is valid.
    """
    logits = model(input_ids=inputs, use_cache=False).logits.flatten(0, 1)
    logits = logits.to(torch.promote_types(logits.dtype, torch.float32))
    return F.cross_entropy(logits, targets.flatten(), ignore_index=IGNORED, reduction="sum")


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
) -> tuple[Tensor, Tensor]:
    """Add the gradient of the step's mean loss to the parameters' gradients.

    Args:
        model: As for `summed_loss`; plain, or sharded over `world`.
        inputs: This process's token ids [rows, length].
        targets: The ids that follow [rows, length].
        pieces: Micro-batches; divides `rows`.
        world: The processes among which the step's rows are spread.

    Returns:
        The mean loss over the step's valid targets in nats, and their number, over all processes.
    """
    valid = world.sum(count_valid(targets))
    divisor = valid.clamp(min=1)
    total = torch.zeros((), device=inputs.device, dtype=torch.float32)
    for x, y in zip(inputs.chunk(pieces), targets.chunk(pieces), strict=True):
        loss = summed_loss(model, x, y)
        # sharded gradients are averaged over processes; the step's is their sum
        (loss * (world.size / divisor)).backward()
        total += loss.detach()
    return world.sum(total) / divisor, valid
