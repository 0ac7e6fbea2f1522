"""In which precision a reference computes: float64 stays, everything else is float32 or better."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from depth_memory.errors import invalid


def compute_dtype(values: Iterable[Tensor | float]) -> torch.dtype:
    """The dtype to compute in: the widest of the tensors among `values`, and at least float32."""
    dtype = torch.float32
    for value in values:
        if isinstance(value, Tensor):
            if not value.is_floating_point():
                raise invalid("dtype", str(value.dtype), "a floating-point dtype")
            dtype = torch.promote_types(dtype, value.dtype)
    return dtype


def without_autocast(like: Tensor) -> AbstractContextManager[None]:
    """Keep autocast out of a reference: it would run products of float32 tensors in bfloat16."""
    if like.device.type == "meta":
        return nullcontext()
    return torch.autocast(like.device.type, enabled=False)


def as_scalar(value: Tensor | float, like: Tensor, dtype: torch.dtype) -> Tensor:
    """`value` as a tensor of `dtype` on the device of `like`."""
    if isinstance(value, Tensor):
        return value.to(dtype)
    return torch.full((), value, dtype=dtype, device=like.device)
