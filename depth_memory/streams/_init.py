"""Starts of parameters that leave alone what transformers has loaded from a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn


def set_(parameter: Tensor, value: Tensor | Sequence[float]) -> None:
    """Set a parameter to a pattern that no function of `torch.nn.init` draws.

    A pattern that a module keeps for later is a list of numbers: a tensor made while the model is
    built on the meta device would have none.

    A parameter that transformers has loaded from a checkpoint is marked, and stays as it is.
    """
    if not getattr(parameter, "_is_hf_initialized", False):
        with torch.no_grad():
            parameter.copy_(torch.as_tensor(value, device=parameter.device))


def empty(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    """A parameter that `reset_parameters` will set."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype))


def one_hot(index: int, size: int, on: float = 1.0, off: float = 0.0) -> list[float]:
    """`off` everywhere but `on` at `index % size`."""
    return [on if i == index % size else off for i in range(size)]
