"""The language models of Depth Memory: one function per row.

Sources: the cards of the released checkpoints (`davidgonmar/depth-memory-*` on Hugging Face) give
tokens, steps and learning rates; DepthBench gives the shape at 400M and the recipe. At 1.5B the
cards give the tokens only: the shape is that of Qwen3-1.7B, and tied embeddings at a vocabulary of
50,280 are what makes it 1,512M parameters, both deduced by us, as is its rotary base. Full
Attention Residuals are not in the source and stand beside the block form for comparison. Dk = 8
is our reading of the source's larger, unnamed key dimension.
"""

from __future__ import annotations

from typing import Any

from depth_memory import streams
from depth_memory.presets.recipes import llama, peak_rate, recipe
from depth_memory.train.config import ModelSpec, Run

STEPS_400M = 47_684
"""50.0B tokens (cards)."""
STEPS_1500M = 94_972
"""99.6B tokens (cards)."""


def _llama(name: str, stream: dict[str, Any]) -> Run:
    model = llama(1024, 24, 2736, stream)
    lr = peak_rate(stream["name"])
    return recipe(f"llama-400m-{name}", model, lr=lr, steps=STEPS_400M)


def _qwen(name: str, stream: dict[str, Any]) -> Run:
    model = ModelSpec(
        family="qwen3",
        width=2048,
        depth=28,
        heads=16,
        kv_heads=8,
        ffn=6144,
        rope_theta=1e6,
        max_length=2048,
        stream=streams.resolve(stream),
    )
    # known for LDM alone (cards); the middle of the source's grid for the others
    return recipe(f"qwen-1500m-{name}", model, lr=1e-3, steps=STEPS_1500M, accumulate=128)


def llama_400m_preln() -> Run:
    """PreLN, 24 x 1024, 50B tokens; learning rate as DepthBench's best."""
    return _llama("preln", {"name": "preln"})


def llama_400m_mhc() -> Run:
    """mHC, 24 x 1024, 50B tokens; source: 2.5041 nats at 2e-3."""
    return _llama("mhc", {"name": "mhc"})


def llama_400m_block_attnres() -> Run:
    """Block AttnRes, 24 x 1024, 50B tokens; source: 2.4950 nats at 2e-3."""
    return _llama("block-attnres", {"name": "block_attnres"})


def llama_400m_attnres() -> Run:
    """Full AttnRes, 24 x 1024, 50B tokens; learning rate as DepthBench's scripts."""
    return _llama("attnres", {"name": "attnres"})


def llama_400m_ldm() -> Run:
    """LDM with Dk = 8, 24 x 1024, 50B tokens."""
    return _llama("ldm", {"name": "ldm"})


def llama_400m_ldm_dk4() -> Run:
    """LDM with Dk = 4, 24 x 1024, 50B tokens; source: 2.4965 nats at 1e-3."""
    return _llama("ldm-dk4", {"name": "ldm", "key_dim": 4})


def llama_400m_ldm_delta() -> Run:
    """LDM that writes by the delta rule, 24 x 1024, 50B tokens."""
    return _llama("ldm-delta", {"name": "ldm_delta"})


def llama_400m_ldm_outer() -> Run:
    """LDM that writes outer products, 24 x 1024, 50B tokens."""
    return _llama("ldm-outer", {"name": "ldm_outer"})


def qwen_1500m_preln() -> Run:
    """PreLN, 28 x 2048, 100B tokens."""
    return _qwen("preln", {"name": "preln"})


def qwen_1500m_mhc() -> Run:
    """mHC, 28 x 2048, 100B tokens."""
    return _qwen("mhc", {"name": "mhc"})


def qwen_1500m_block_attnres() -> Run:
    """Block AttnRes, 28 x 2048, 100B tokens."""
    return _qwen("block-attnres", {"name": "block_attnres"})


def qwen_1500m_attnres() -> Run:
    """Full AttnRes, 28 x 2048, 100B tokens."""
    return _qwen("attnres", {"name": "attnres"})


def qwen_1500m_ldm() -> Run:
    """LDM with Dk = 8, 28 x 2048, 100B tokens; source: 2.2141 nats at 1e-3."""
    return _qwen("ldm", {"name": "ldm"})


def qwen_1500m_ldm_dk4() -> Run:
    """LDM with Dk = 4, 28 x 2048, 100B tokens."""
    return _qwen("ldm-dk4", {"name": "ldm", "key_dim": 4})


def qwen_1500m_ldm_delta() -> Run:
    """LDM that writes by the delta rule, 28 x 2048, 100B tokens."""
    return _qwen("ldm-delta", {"name": "ldm_delta"})


def qwen_1500m_ldm_outer() -> Run:
    """LDM that writes outer products, 28 x 2048, 100B tokens."""
    return _qwen("ldm-outer", {"name": "ldm_outer"})


LLAMA_400M = (
    llama_400m_preln,
    llama_400m_mhc,
    llama_400m_block_attnres,
    llama_400m_attnres,
    llama_400m_ldm,
    llama_400m_ldm_dk4,
    llama_400m_ldm_delta,
    llama_400m_ldm_outer,
)
QWEN_1500M = (
    qwen_1500m_preln,
    qwen_1500m_mhc,
    qwen_1500m_block_attnres,
    qwen_1500m_attnres,
    qwen_1500m_ldm,
    qwen_1500m_ldm_dk4,
    qwen_1500m_ldm_delta,
    qwen_1500m_ldm_outer,
)
