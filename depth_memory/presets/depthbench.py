"""DepthBench's aspect ratios: the same parameters, spent on width or on depth.

Shapes, tokens and recipe are those of arXiv 2609.32534 and its repository (`configs`): 16 heads
everywhere, so that most head sizes are no powers of two; at 1.6B 8 key and value heads, and an MLP
of three widths. Each preset is the PreLN row; `--stream` gives another. Peak rates are those of
its scripts at 400M; at 1.6B none is known, and a milder one is ours.
Evaluations are by its definition, the first 2048 tokens of every document.
"""

from __future__ import annotations

from dataclasses import replace

from depth_memory.presets.recipes import llama, recipe
from depth_memory.train.config import Run

STEPS_400M = 7_600
"""8.0B tokens."""
STEPS_1600M = 30_400
"""31.9B tokens."""


def _400m(width: int, depth: int, ffn: int) -> Run:
    model = llama(width, depth, ffn, {"name": "preln"})
    run = recipe(f"depthbench-400m-l{depth}", model, lr=2e-3, steps=STEPS_400M)
    return replace(run, eval_by="documents")


def _1600m(width: int, depth: int) -> Run:
    model = llama(width, depth, 3 * width, {"name": "preln"}, kv_heads=8)
    name = f"depthbench-1600m-l{depth}"
    run = recipe(name, model, lr=1e-3, steps=STEPS_1600M, accumulate=128)
    return replace(run, eval_by="documents")


def depthbench_400m_l16() -> Run:
    """16 x 1216, head size 76."""
    return _400m(1216, 16, 3248)


def depthbench_400m_l20() -> Run:
    """20 x 1120, head size 70."""
    return _400m(1120, 20, 2992)


def depthbench_400m_l24() -> Run:
    """24 x 1024, head size 64; source: PreLN 2.765 nats."""
    return _400m(1024, 24, 2736)


def depthbench_400m_l28() -> Run:
    """28 x 960, head size 60."""
    return _400m(960, 28, 2560)


def depthbench_400m_l32() -> Run:
    """32 x 896, head size 56; source: PreLN 2.782 nats."""
    return _400m(896, 32, 2400)


def depthbench_400m_l42() -> Run:
    """42 x 800, head size 50."""
    return _400m(800, 42, 2144)


def depthbench_400m_l70() -> Run:
    """70 x 640, head size 40."""
    return _400m(640, 70, 1712)


def depthbench_1600m_l28() -> Run:
    """28 x 2048, head size 128."""
    return _1600m(2048, 28)


def depthbench_1600m_l40() -> Run:
    """40 x 1728, head size 108."""
    return _1600m(1728, 40)


def depthbench_1600m_l54() -> Run:
    """54 x 1504, head size 94."""
    return _1600m(1504, 54)


DEPTHBENCH_400M = (
    depthbench_400m_l16,
    depthbench_400m_l20,
    depthbench_400m_l24,
    depthbench_400m_l28,
    depthbench_400m_l32,
    depthbench_400m_l42,
    depthbench_400m_l70,
)
DEPTHBENCH_1600M = (depthbench_1600m_l28, depthbench_1600m_l40, depthbench_1600m_l54)
