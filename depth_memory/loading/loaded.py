"""A model with what lies around it: its tokenizer, and the run that made it."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor
from transformers import PreTrainedModel

from depth_memory import models
from depth_memory.data import Tokenizer
from depth_memory.data import load_tokenizer as load_core_tokenizer
from depth_memory.errors import UserError, choose, invalid
from depth_memory.loading import places, saved
from depth_memory.models import DepthForCausalLM
from depth_memory.train import Run
from depth_memory.train.parallel import choose_device

M = TypeVar("M", bound=PreTrainedModel)

PLAIN = ("llama", "qwen3")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("auto", "float32", "bfloat16", "float16")
"""What weights may be cast to; `auto` leaves them as they were saved."""


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model, with what lies around it."""

    path: Path
    """The directory that holds the weights."""
    model: DepthForCausalLM
    """On its device, in evaluation mode."""
    tokenizer: Tokenizer | None
    """The one beside the weights, or the one asked for."""
    tokenizer_path: Path
    """Where that was read; the directory of the weights if there is none."""
    run: Run | None
    """The run that made it, if it lies where that run left it."""

    @property
    def limit(self) -> int:
        """Positions that the model knows."""
        return self.model.config.max_position_embeddings

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            UserError: There is none.
        """
        if self.tokenizer is None:
            raise UserError(f"--tokenizer: got nothing; allowed: a file ({self.path} has none)")
        return self.tokenizer

    def encode(self, text: str) -> Tensor:
        """Token ids of a text, [1, length]; an empty one is what follows an end of text.

        Raises:
            UserError: There is no tokenizer.
        """
        tokenizer = self.need_tokenizer()
        ids = tokenizer.encode(text).tolist() or [tokenizer.end_id]
        return torch.tensor([ids], device=self.model.device)


def load(
    path: str | Path,
    *,
    tokenizer: Path | None = None,
    device: str = "auto",
    dtype: str = "auto",
    note: places.Note = places.silent,
) -> Loaded:
    """Load a model. One of plain transformers gets the ordinary residual as its stream.

    Args:
        path: Of a run, a checkpoint or a saved model.
        tokenizer: A `tokenizer.json`; by default the one beside the weights.
        device: `auto`, `cpu` or `cuda`.
        dtype: Of the weights, one of `DTYPES`.
        note: Is told which step of an unfinished run that is, and of damaged checkpoints.

    Raises:
        UserError: Nothing of the kind is there, it is damaged, the tokenizer does not fit, or there
            is no such device or dtype.
    """
    target = choose_device(choose("device", device, DEVICES))
    choose("dtype", dtype, DTYPES)
    return places.use_newest(
        Path(path), lambda folder: _load(folder, tokenizer, target, dtype), note
    )


def _load(folder: Path, tokenizer: Path | None, device: torch.device, dtype: str) -> Loaded:
    model = _cast(_model(folder), dtype).to(device).eval()
    source = tokenizer or (folder if (folder / "tokenizer.json").exists() else None)
    found = None if source is None else load_core_tokenizer(source)
    if found is not None and found.vocab_size > model.config.vocab_size:
        allowed = f"at most the model's {model.config.vocab_size}"
        raise invalid("--tokenizer: entries", found.vocab_size, allowed)
    return Loaded(
        path=folder,
        model=model,
        tokenizer=found,
        tokenizer_path=source or folder,
        run=places.run_of(folder),
    )


def _model(folder: Path) -> DepthForCausalLM:
    model = saved.read(folder, [*(f"depth_{name}" for name in PLAIN), *PLAIN])
    return model if isinstance(model, DepthForCausalLM) else models.graft(model, {"name": "preln"})


def load_any(folder: Path, *, device: str = "auto", dtype: str = "auto") -> PreTrainedModel:
    """A causal language model of this package or of transformers, whatever its architecture.

    Args:
        folder: With the weights, as `locate` finds it.
        device: `auto`, `cpu` or `cuda`.
        dtype: One of `DTYPES`.

    Raises:
        UserError: The model is damaged or incomplete, or there is no such device or dtype.
    """
    target = choose_device(choose("device", device, DEVICES))
    choose("dtype", dtype, DTYPES)
    with places.held(folder):
        return _cast(saved.read(folder), dtype).to(target).eval()


def _cast(model: M, dtype: str) -> M:
    return model if dtype == "auto" else model.to(getattr(torch, dtype))
