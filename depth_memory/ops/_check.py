"""Checks of arguments that cost no device synchronisation: shapes, and ranges of Python floats."""

from __future__ import annotations

from torch import Tensor

from depth_memory.errors import invalid


def check_dim(name: str, tensor: Tensor, axis: int, size: int, of: str) -> None:
    """Raise unless `tensor` has at least `-axis` axes and `size` entries along `axis`."""
    if tensor.dim() < -axis or tensor.shape[axis] != size:
        raise invalid(name, tuple(tensor.shape), f"{size} entries along axis {axis}, as {of}")


def check_rank(name: str, tensor: Tensor, rank: int) -> None:
    """Raise unless `tensor` has at least `rank` axes."""
    if tensor.dim() < rank:
        raise invalid(name, tuple(tensor.shape), f"at least {rank} axes")


def check_forgetting(value: Tensor | float) -> None:
    """Raise if `value` is a Python number outside (0, 1]; tensors are the caller's promise."""
    if not isinstance(value, Tensor) and not 0.0 < value <= 1.0:
        raise invalid("forgetting", value, "0 < forgetting <= 1")


def check_importance(value: Tensor | float, at_most: float = float("inf")) -> None:
    """Raise if `value` is a Python number outside [0, at_most]; infinity is never allowed."""
    if isinstance(value, Tensor):
        return
    if not 0.0 <= value <= at_most or value == float("inf"):
        upper = "" if at_most == float("inf") else f" <= {at_most:g}"
        raise invalid("importance", value, f"finite, 0 <= importance{upper}")


def check_alpha(value: Tensor | float) -> None:
    """Raise if `value` is a Python number that is not positive and finite."""
    if not isinstance(value, Tensor) and not 0.0 < value < float("inf"):
        raise invalid("alpha", value, "finite, alpha > 0")
