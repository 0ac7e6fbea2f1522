"""Tiny models of every stream and a tokenizer, as a trained and saved model would have them."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import PreTrainedTokenizerBase, PreTrainedTokenizerFast
from transformers.utils import logging

from depth_memory import data, models, streams
from tests.evals.examples import HUB, write

SHAPE: dict[str, Any] = {
    "vocab_size": 320,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 512,
    "initializer_range": 0.2,
}


@pytest.fixture(autouse=True)
def _quiet() -> None:
    logging.set_verbosity_error()
    logging.disable_progress_bar()


@pytest.fixture(scope="session")
def core_tokenizer() -> data.Tokenizer:
    texts = [str(value) for rows in HUB.values() for row in rows for value in row.values()]
    return data.train_tokenizer(texts, 320)


@pytest.fixture
def tokenizer(core_tokenizer: data.Tokenizer) -> PreTrainedTokenizerBase:
    """Without padding token: the harness takes the end of text for it."""
    backend = core_tokenizer.backend
    return PreTrainedTokenizerFast(tokenizer_object=backend, eos_token=core_tokenizer.end)


def build(stream: str, **changes: Any) -> models.DepthForCausalLM:
    """A model whose stream is away from its start."""
    torch.manual_seed(0)
    model = models.build_model("llama", {"name": stream}, **SHAPE | changes)
    with torch.no_grad():
        for module in model.modules():
            if isinstance(module, streams.StreamModule):
                for parameter in module.parameters(recurse=False):
                    parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


@pytest.fixture(scope="session")
def task_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("task-data"))


@pytest.fixture
def saved(
    core_tokenizer: data.Tokenizer, tokenizer: PreTrainedTokenizerBase, tmp_path: Path
) -> Callable[..., Path]:
    """Save a model with its tokenizer."""

    def save(name: str, model: Any, *, plain: bool = False) -> Path:
        folder = tmp_path / name
        model.save_pretrained(folder)
        if plain:
            tokenizer.save_pretrained(folder)
        else:
            core_tokenizer.save(folder / "tokenizer.json")
        return folder

    return save
