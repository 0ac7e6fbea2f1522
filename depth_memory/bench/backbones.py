"""The shapes that are measured: those of Qwen3, and a tiny one for a CPU."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, kw_only=True)
class Backbone:
    """One shape, and how much of it is measured where nothing is asked for."""

    layers: int
    width: int
    heads: int
    kv_heads: int
    ffn: int
    tied: bool
    head_dim: int = 128
    vocabulary: int = 151936
    sequence: int = 4096
    batch: int = 4

    def config(self, *, layers: int, vocabulary: int, positions: int) -> dict[str, Any]:
        """The fields of a transformers configuration."""
        return {
            "num_hidden_layers": layers,
            "hidden_size": self.width,
            "num_attention_heads": self.heads,
            "num_key_value_heads": self.kv_heads,
            "head_dim": self.head_dim,
            "intermediate_size": self.ffn,
            "vocab_size": vocabulary,
            "tie_word_embeddings": self.tied,
            "max_position_embeddings": positions,
            "attn_implementation": "sdpa",
        }


BACKBONES = {
    "tiny": Backbone(
        layers=2,
        width=64,
        heads=2,
        kv_heads=1,
        ffn=128,
        tied=True,
        head_dim=32,
        vocabulary=512,
        sequence=32,
        batch=2,
    ),
    "1.7b": Backbone(layers=28, width=2048, heads=16, kv_heads=8, ffn=6144, tied=True),
    "4b": Backbone(layers=36, width=2560, heads=32, kv_heads=8, ffn=9728, tied=True),
    "8b": Backbone(layers=36, width=4096, heads=32, kv_heads=8, ffn=12288, tied=False),
    "14b": Backbone(layers=40, width=5120, heads=40, kv_heads=8, ffn=17408, tied=False),
}
"""Name of a shape -> the shape."""
