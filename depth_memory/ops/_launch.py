"""What every launcher of a Triton kernel shares."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from depth_memory.ops._precision import compute_dtype

ACC = {torch.float32: tl.float32, torch.float64: tl.float64}


def accumulator(tensors: Sequence[Tensor]) -> tl.dtype:
    """The dtype in which a kernel over these tensors adds up: as the reference computes."""
    return ACC[compute_dtype(tensors)]


def block_of(width: int, largest: int) -> int:
    """The smallest power of two that holds `width`, at most `largest`, at least 16."""
    return min(max(triton.next_power_of_2(width), 16), largest)


def programs(device: torch.device) -> int:
    """How many programs share out the rows where each adds up over many of them."""
    if device.type != "cuda":
        return 2
    return 4 * torch.cuda.get_device_properties(device).multi_processor_count
