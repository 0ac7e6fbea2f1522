"""Which implementation of an op runs: asked for by name, never a silent fallback."""

from __future__ import annotations

from typing import Literal

from depth_memory.errors import choose, invalid

Impl = Literal["auto", "reference", "triton"]

KERNELS: frozenset[str] = frozenset()
"""Names of the ops that have a Triton kernel."""


def resolve(op: str, impl: str) -> Literal["reference", "triton"]:
    """The implementation of `op` that `impl` stands for.

    Args:
        op: Name of the op.
        impl: `reference`, `triton`, or `auto`: the kernel where there is one, else the reference.

    Raises:
        UserError: `impl` is unknown, or asks for a kernel that `op` does not have.
    """
    choose("impl", impl, ("auto", "reference", "triton"))
    if impl == "triton" and op not in KERNELS:
        raise invalid(f"impl of {op}", impl, "auto, reference (this op has no Triton kernel)")
    return "triton" if op in KERNELS and impl != "reference" else "reference"


def explain(op: str) -> str:
    """What `auto` chooses for `op`, and why, in one line."""
    if op in KERNELS:
        return "triton: the op has a kernel"
    return "reference: the op has no Triton kernel"
