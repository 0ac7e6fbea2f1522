"""Tiny models with a tokenizer."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from depth_memory import data, models, streams
from depth_memory.loading import Loaded

SHAPE: dict[str, Any] = {
    "vocab_size": 270,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 64,
    "bos_token_id": None,
    "eos_token_id": 0,
    "initializer_range": 0.2,
}
"""Large weights, so that layers matter and greedy tokens do not tie."""
PROMPTS = ["the old house", "a", "was it quiet on the hill?"]


@pytest.fixture(scope="session")
def tokenizer() -> data.Tokenizer:
    return data.train_tokenizer(["the old house on the hill, the old hill: ß€"], 265)


@pytest.fixture
def make(tokenizer: data.Tokenizer, tmp_path: Path) -> Callable[..., Loaded]:
    """A model whose stream is away from its start, as training would leave it."""

    def build(
        stream: str | dict[str, Any] = "ldm", family: str = "llama", **changes: Any
    ) -> Loaded:
        torch.manual_seed(0)
        config = {"name": stream} if isinstance(stream, str) else stream
        model = models.build_model(family, config, **(SHAPE | changes)).eval()
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, streams.StreamModule):
                    for parameter in module.parameters(recurse=False):
                        parameter.add_(0.3 * torch.randn_like(parameter))
        return Loaded(
            path=tmp_path, model=model, tokenizer=tokenizer, tokenizer_path=tmp_path, run=None
        )

    return build


@pytest.fixture(params=list(streams.STREAMS))
def stream(request: pytest.FixtureRequest) -> str:
    return request.param
