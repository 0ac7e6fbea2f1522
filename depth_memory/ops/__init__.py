"""The mathematics: pure functions of tensors, without parameters.

Every function keeps float64, computes in float32 otherwise, and works without any leading axis.
"""

from depth_memory.ops.memory.api import (
    delta_write,
    depth_weights,
    outer_write,
    read,
    ridge_solve,
    rls_write,
    window_fold,
    window_read,
)
from depth_memory.ops.memory.reference import (
    Transition,
    delta_transition,
    outer_transition,
    rls_transition,
)
from depth_memory.ops.mixing.api import attnres, attnres_weights, mix, sinkhorn

__all__ = [
    "Transition",
    "attnres",
    "attnres_weights",
    "delta_transition",
    "delta_write",
    "depth_weights",
    "mix",
    "outer_transition",
    "outer_write",
    "read",
    "ridge_solve",
    "rls_transition",
    "rls_write",
    "sinkhorn",
    "window_fold",
    "window_read",
]
