"""Whether a converted model computes what its source computes."""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from depth_memory.errors import UserError
from depth_memory.files import explained

ROWS, LENGTH = 2, 32
SHARE = 0.8
"""Of the free memory, what the weights of one model may take."""


@dataclass(frozen=True, kw_only=True)
class Comparison:
    """The logits of two models on the same token ids."""

    difference: float
    """The largest difference of two logits."""
    largest: float
    """The largest logit of the source, in absolute value."""
    tokens: int
    dtype: torch.dtype
    """In which both were computed."""

    def __str__(self) -> str:
        name = str(self.dtype).removeprefix("torch.")
        difference = f"{self.difference:.3g}" if self.difference else "0.0"
        return (
            f"max difference {difference} between logits of up to {self.largest:.3g} "
            f"({self.tokens} tokens, {name})"
        )


def fits(size: int) -> bool:
    """Whether a model of so many bytes can be loaded here."""
    free = available()
    return free is None or size <= SHARE * free


def available() -> int | None:
    """Bytes of memory that a program may still take; None where the system does not say."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="ascii").splitlines()
    except OSError:
        return None
    found = [line.split()[1] for line in lines if line.startswith("MemAvailable:")]
    return int(found[0]) * 1024 if found else None


def compare(before: tuple[Any, Path], after: tuple[Any, Path], dtype: torch.dtype) -> Comparison:
    """Compare the logits of two saved models, which are loaded one after the other.

    Args:
        before: Class and directory of the source.
        after: Class and directory of the converted model.
        dtype: In which both compute.

    Raises:
        UserError: One of them cannot be loaded, or has logits that are not finite.
    """
    first = logits(*before, dtype)
    second = logits(*after, dtype)
    difference = (second - first).abs().max().item()
    if not math.isfinite(difference):
        bad = before[1] if not bool(first.isfinite().all()) else after[1]
        raise UserError(f"{bad}: logits: got some that are not finite; allowed: --no-check")
    return Comparison(
        difference=difference,
        largest=first.abs().max().item(),
        tokens=first.shape[0] * first.shape[1],
        dtype=dtype,
    )


@torch.no_grad()
def logits(kind: Any, folder: Path, dtype: torch.dtype) -> Tensor:
    """The logits of a saved model on some token ids, in float32."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    logging.disable_progress_bar()
    with explained(folder):
        model, report = kind.from_pretrained(
            folder,
            dtype=dtype,
            local_files_only=True,
            use_safetensors=True,
            output_loading_info=True,
        )
    if report["missing_keys"]:
        raise UserError(f"{folder}: weights are missing: {sorted(report['missing_keys'])[0]}")
    config = model.config
    length = min(LENGTH, config.max_position_embeddings)
    generator = torch.Generator().manual_seed(0)
    ids = torch.randint(config.vocab_size, (ROWS, length), generator=generator)
    return model.eval()(input_ids=ids, use_cache=False).logits.float()
