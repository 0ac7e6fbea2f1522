"""Starts of parameters that leave alone what transformers has loaded from a checkpoint."""

from __future__ import annotations

import torch
from torch import Tensor, nn


def set_(parameter: Tensor, value: Tensor) -> None:
    """Set a parameter to a pattern that no function of `torch.nn.init` draws.

    A parameter that transformers has loaded from a checkpoint is marked, and stays as it is.
    """
    if not getattr(parameter, "_is_hf_initialized", False):
        with torch.no_grad():
            parameter.copy_(value)


def empty(*shape: int, dtype: torch.dtype | None = None) -> nn.Parameter:
    """A parameter that `reset_parameters` will set."""
    return nn.Parameter(torch.empty(*shape, dtype=dtype))


def one_hot(index: int, size: int, on: float = 1.0, off: float = 0.0) -> Tensor:
    """`off` everywhere but `on` at `index % size`."""
    value = torch.full((size,), off)
    value[index % size] = on
    return value
