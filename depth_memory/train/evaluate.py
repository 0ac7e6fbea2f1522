"""The loss of a model over a whole split."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from depth_memory.data import TokenData
from depth_memory.errors import UserError, invalid
from depth_memory.train.loss import IGNORED, Head, count_valid, head_of, shift, summed_loss
from depth_memory.train.parallel import World

if TYPE_CHECKING:
    from transformers import PreTrainedModel

OVERFLOW = 700.0
"""A loss whose exponential a float can just about hold."""


class NonFiniteError(UserError):
    """A loss or a gradient is not finite; a run that meets it stops before the weights change."""


@dataclass(frozen=True, kw_only=True)
class Evaluation:
    """What a model's predictions of a text cost."""

    loss: float
    """Mean of -log p over the predicted tokens, nats per token."""
    bits_per_byte: float
    """The same per byte of text, in bits: comparable between tokenizers."""
    tokens: int
    """How many tokens were predicted."""

    @property
    def token_perplexity(self) -> float:
        """exp of the loss; comparable only between models with the same tokenizer."""
        return math.exp(self.loss) if self.loss < OVERFLOW else math.inf


def evaluate(
    model: PreTrainedModel,
    split: TokenData,
    *,
    length: int,
    rows: int = 8,
    windows: int | None = None,
    world: World | None = None,
    head: Head | None = None,
) -> Evaluation:
    """Evaluate over consecutive windows; every token but the first of the split is predicted once.

    Args:
        model: A causal language model; its mode is kept.
        split: What to predict.
        length: Tokens of a window; each starts without context.
        rows: Windows per forward pass and process.
        windows: How many of the first windows are read; all if not given.
        world: The processes that share the work; all must call it. One if not given.
        head: What makes the loss of a model of this package; `head_of()` if not given.

    Returns:
        Loss, bits per byte and number of tokens, over all processes.

    Raises:
        UserError: The model knows fewer tokens than the data has, or fewer positions than `length`.
        NonFiniteError: The loss is not finite.
    """
    check_fits(model, split, length)
    world = World(rank=0, size=1, device=_device(model)) if world is None else world
    # more than there are is all of them, however many
    there = split.windows_of(length)
    chosen = itertools.islice(split.windows(length), min(windows or there, there))
    training = model.training
    model.eval()
    try:
        total, count = _sums(
            functools.partial(summed_loss, model, head=head or _lent_head(model)),
            batches(chosen, length, min(rows, there)),
            world,
        )
    finally:
        model.train(training)
    tokens = int(world.sum(count).item())
    loss = world.sum(total).item() / tokens
    if not math.isfinite(loss):
        raise NonFiniteError(f"loss on {split.directory} ({split.split}) is {loss}")
    return Evaluation(
        loss=loss, bits_per_byte=split.bits_per_byte(loss, targets=tokens), tokens=tokens
    )


def check_fits(model: PreTrainedModel, split: TokenData, length: int) -> None:
    """Refuse data that the model cannot read.

    Raises:
        UserError: Names the sizes that do not fit.
    """
    split.check_vocabulary(model.config.vocab_size)
    limit = model.config.max_position_embeddings
    if not 1 <= length <= limit:
        raise invalid("length", length, f"1 to the model's position limit {limit}")


def batches(windows: Iterable[np.ndarray], length: int, rows: int) -> Iterator[Tensor]:
    """Windows as int64 [up to rows, length + 1]; shorter ones are filled up with `IGNORED`."""
    windows = iter(windows)
    while group := list(itertools.islice(windows, rows)):
        batch = torch.full((len(group), length + 1), IGNORED)
        for row, window in zip(batch, group, strict=True):
            row[: len(window)] = torch.from_numpy(window)
        yield batch


@torch.no_grad()
def _sums(loss: Callable, work: Iterator[Tensor], world: World) -> tuple[Tensor, Tensor]:
    """Summed loss (float64) and number of targets of this process's share of the batches."""
    total = torch.zeros((), dtype=torch.float64, device=world.device)
    count = torch.zeros((), dtype=torch.int64, device=world.device)
    while turn := list(itertools.islice(work, world.size)):
        # sharded layers run on all processes or none: without a batch, predict nothing
        idle = world.rank >= len(turn)
        batch = torch.full_like(turn[0], IGNORED) if idle else turn[world.rank]
        inputs, targets = shift(batch.to(world.device))
        total += loss(inputs, targets).double()
        count += count_valid(targets)
    return total, count


def _lent_head(model: nn.Module) -> Head | None:
    """What a model of this package wants, and one of transformers does not know."""
    from depth_memory.models import DepthForCausalLM

    return head_of() if isinstance(model, DepthForCausalLM) else None


def _device(model: nn.Module) -> torch.device:
    return next(model.parameters()).device
