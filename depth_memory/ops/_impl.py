"""Which implementation of an op runs: asked for by name, never a silent fallback."""

from __future__ import annotations

import importlib.util
import os
from typing import Literal

import torch

from depth_memory.errors import choose, invalid

Impl = Literal["auto", "reference", "triton"]

KERNELS: frozenset[str] = frozenset({"mix", "attnres", "exchange", "step"})
"""Names of the ops that have a Triton kernel."""

MEASURED: frozenset[str] = frozenset({"exchange"})
"""Names of those whose kernel was measured on a GPU to be right and faster: `auto` takes them."""


def interpreted() -> bool:
    """Whether Triton was told to run kernels on the CPU, one line at a time."""
    return os.environ.get("TRITON_INTERPRET") == "1"


def obstacle(op: str, device: torch.device) -> str | None:
    """Why the kernel of `op` cannot run on `device`, or None if it can."""
    if op not in KERNELS:
        return "this op has no Triton kernel"
    if importlib.util.find_spec("triton") is None:
        return "Triton is not installed"
    if device.type != "cuda" and not interpreted():
        return f"Triton has no {device.type} backend"
    return None


def resolve(op: str, impl: str, device: torch.device) -> Literal["reference", "triton"]:
    """The implementation of `op` on `device` that `impl` stands for.

    Args:
        op: Name of the op.
        impl: `reference`, `triton`, or `auto`: a measured kernel on a GPU, else the reference.
        device: Where the tensors are.

    Raises:
        UserError: `impl` is unknown, or asks for a kernel that cannot run here.
    """
    choose("impl", impl, ("auto", "reference", "triton"))
    against = obstacle(op, device)
    if impl == "triton":
        if against is not None:
            raise invalid(f"impl of {op}", impl, f"auto, reference ({against})")
        return "triton"
    return "triton" if impl == "auto" and _reason(op, device) is None else "reference"


def explain(op: str, device: torch.device) -> str:
    """What `auto` chooses for `op` on `device`, and why, in one line."""
    reason = _reason(op, device)
    return "triton: measured to be faster" if reason is None else f"reference: {reason}"


def _reason(op: str, device: torch.device) -> str | None:
    """Why `auto` does not take the kernel of `op`, or None if it does."""
    against = obstacle(op, device)
    if against is not None:
        return against
    if device.type != "cuda":
        return "the interpreter is for tests"
    return None if op in MEASURED else "its kernel was not measured on a GPU yet"
