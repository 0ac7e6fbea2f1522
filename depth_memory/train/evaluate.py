"""The loss of a model over a whole split."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from depth_memory import data
from depth_memory.data import TokenData
from depth_memory.errors import UserError, invalid
from depth_memory.train.config import EvalBy
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
    by: EvalBy = "windows",
    world: World | None = None,
    head: Head | None = None,
) -> Evaluation:
    """Evaluate a model on a split, by one of two definitions, which give different numbers.

    By `windows`: over consecutive ones; every token but the first of the split is predicted once.
    By `documents`, as DepthBench: over the first `length` tokens of each, separator included; the
    very first is context only, and what lies beyond is dropped.

    Args:
        model: A causal language model; its mode is kept.
        split: What to predict.
        length: Tokens predicted in a window, or read of a document; each starts without context.
        rows: Windows or documents per forward pass and process.
        windows: How many of the first windows or documents are read; all if not given.
        by: `windows` or `documents`.
        world: The processes that share the work; all must call it. One if not given.
        head: What makes the loss of a model of this package; `head_of()` if not given.

    Returns:
        Loss, bits per byte and number of tokens, over all processes.

    Raises:
        UserError: The model knows fewer tokens than the data has, or fewer positions than `length`;
            or data without separators has no documents.
        NonFiniteError: The loss is not finite.
    """
    check_fits(model, split, length)
    world = World(rank=0, size=1, device=_device(model)) if world is None else world
    # more than there are is all of them, however many
    there = split.windows_of(length) if by == "windows" else split.documents
    read = min(windows or there, there)
    texts = split.windows(length) if by == "windows" else data.beginnings(split, length)
    width = length + 1 if by == "windows" else length
    work = batches(itertools.islice(texts, read), width, min(rows, there))
    with _evaluating(model):
        cost = functools.partial(summed_loss, model, head=head or _lent_head(model))
        total, count = _sums(cost, work, world)
    tokens = int(world.sum(count).item())
    if not tokens:
        raise invalid(f"{split.split}: documents", split.documents, "some with 2 tokens")
    loss = world.sum(total).item() / tokens
    if not math.isfinite(loss):
        raise NonFiniteError(f"loss on {split.directory} ({split.split}) is {loss}")
    if by == "windows":
        bits = split.bits_per_byte(loss, targets=tokens)
    else:
        bits = _bits_of_documents(split, length, read, loss, tokens)
    return Evaluation(loss=loss, bits_per_byte=bits, tokens=tokens)


@contextmanager
def _evaluating(model: nn.Module) -> Generator[None]:
    """Dropout and the like off; the mode is given back."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _bits_of_documents(
    split: TokenData, length: int, documents: int, loss: float, tokens: int
) -> float:
    size = data.beginning_bytes(split, length, documents)
    if not size:
        raise invalid("windows", f"{tokens} tokens without text", "some that hold text")
    return data.bits_per_byte(loss, tokens=tokens, text_bytes=size)


def check_fits(model: PreTrainedModel, split: TokenData, length: int) -> None:
    """Refuse data that the model cannot read.

    Raises:
        UserError: Names the sizes that do not fit.
    """
    split.check_vocabulary(model.config.vocab_size)
    limit = model.config.max_position_embeddings
    if not 1 <= length <= limit:
        raise invalid("length", length, f"1 to the model's position limit {limit}")


def batches(windows: Iterable[np.ndarray], width: int, rows: int) -> Iterator[Tensor]:
    """Windows as int64 [up to rows, width]; shorter ones are filled up with `IGNORED`."""
    windows = iter(windows)
    while group := list(itertools.islice(windows, rows)):
        batch = torch.full((len(group), width), IGNORED)
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
