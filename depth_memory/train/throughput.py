"""How fast a run trains, and which share of what its devices could do that is.

    MFU = (6 N + 6 layers D T) x tokens/s / (peak x devices)

N counts the weights of the backbone's matrix products: the head is one, also where it is tied to
the embedding, whose look-up is none. D is heads x head size, T tokens per sequence, and attention
is causal: half of its square. What a stream or a recomputed activation costs is not counted, so
that it shows. Tokens per second are those of a whole step, its optimiser included.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch
from torch import nn

from depth_memory.train.metrics import Record

if TYPE_CHECKING:
    from depth_memory.models import DepthForCausalLM

PEAKS = {
    "H100 PCIe": 756e12,
    "H100 NVL": 835e12,
    "H100": 989.5e12,
    "H200": 989.5e12,
    "GH200": 989.5e12,
    "A100": 312e12,
    "B200": 2250e12,
    "L40S": 362e12,
    "RTX 4090": 165.2e12,
    "MI300X": 1307.4e12,
}
"""Part of a device's name -> bfloat16 FLOP/s of its dense matrix products, as its maker has it; the
first that fits counts."""


def matmul_weights(model: DepthForCausalLM) -> int:
    """N of the module's formula."""
    from depth_memory.models.names import is_of_stream

    return sum(
        module.weight.numel()
        for name, module in model.named_modules()
        if isinstance(module, nn.Linear) and not is_of_stream(name)
    )


def training_flops(weights: int, *, depth: int, attention: int, length: int) -> int:
    """FLOPs per token, forward and backward, of the backbone.

    Args:
        weights: `matmul_weights`.
        depth: Number of layers.
        attention: D: heads times head size.
        length: Tokens per sequence.
    """
    return 6 * weights + 6 * depth * attention * length


def peak_of(name: str) -> float | None:
    """The bfloat16 FLOP/s of a device by its name; None where unknown, as for a part of one."""
    if "MIG" in name:
        return None
    return next((peak for part, peak in PEAKS.items() if part in name), None)


@dataclass(frozen=True, kw_only=True)
class Meter:
    """Turns the time of a step into what is logged of it."""

    flops: int
    """Per token."""
    peak: float | None
    """FLOP/s of all devices together; None where unknown."""
    device: torch.device

    def read(self, tokens: int, seconds: float) -> Record:
        """Speed, its share of the peak, and the most bytes that the device has held at a time.

        The last two are None where they are not known.
        """
        speed = tokens / seconds
        share = None if self.peak is None else round(self.flops * speed / self.peak, 4)
        cuda = self.device.type == "cuda"
        memory = torch.cuda.max_memory_allocated(self.device) if cuda else None
        return {"tokens_per_second": round(speed, 1), "mfu": share, "peak_memory_bytes": memory}


def meter(
    model: DepthForCausalLM, *, length: int, precision: str, device: torch.device, devices: int
) -> Meter:
    """The meter of a run that trains `model` on `devices` like `device`.

    Args:
        model: Plain or sharded.
        length: Tokens per sequence.
        precision: What it computes in; the peaks are those of bfloat16.
        device: Of this process.
        devices: How many there are.
    """
    config = model.config
    flops = training_flops(
        matmul_weights(model),
        depth=config.num_hidden_layers,
        attention=config.num_attention_heads * config.head_dim,
        length=length,
    )
    peak = None
    if device.type == "cuda" and precision == "bfloat16":
        peak = peak_of(torch.cuda.get_device_name(device))
    return Meter(flops=flops, peak=None if peak is None else peak * devices, device=device)
