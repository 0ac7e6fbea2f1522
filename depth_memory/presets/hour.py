"""The recipe of the paper in small: one GPU, an hour.

12 layers of width 512 (head size 64, as at 400M) on 1.05B tokens, about 16 for each of the weights
in a matrix product: 5.6e17 FLOPs without the stream, an hour at 156 TFLOP/s.
"""

from __future__ import annotations

from typing import Any

from depth_memory.presets.recipes import llama, peak_rate, recipe
from depth_memory.train.config import Run

STEPS = 4000


def _hour(name: str, stream: dict[str, Any]) -> Run:
    model = llama(512, 12, 1376, stream, heads=8, kv_heads=8)
    lr = peak_rate(stream["name"])
    return recipe(f"hour-{name}", model, lr=lr, steps=STEPS, rows=128, accumulate=4)


def hour_preln() -> Run:
    """PreLN, 12 x 512, 1B tokens."""
    return _hour("preln", {"name": "preln"})


def hour_mhc() -> Run:
    """mHC, 12 x 512, 1B tokens."""
    return _hour("mhc", {"name": "mhc"})


def hour_block_attnres() -> Run:
    """Block AttnRes, 12 x 512, 1B tokens."""
    return _hour("block-attnres", {"name": "block_attnres"})


def hour_attnres() -> Run:
    """Full AttnRes, 12 x 512, 1B tokens."""
    return _hour("attnres", {"name": "attnres"})


def hour_ldm() -> Run:
    """LDM with Dk = 8, 12 x 512, 1B tokens."""
    return _hour("ldm", {"name": "ldm"})


HOUR = (hour_preln, hour_mhc, hour_block_attnres, hour_attnres, hour_ldm)
