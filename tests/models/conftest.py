"""Tiny models of every family and stream, and inputs for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM, PreTrainedModel, Qwen3ForCausalLM
from transformers.utils import logging

from depth_memory import models, streams

SHAPE: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
    "max_position_embeddings": 128,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.2,
}
"""Large weights, so that layers matter and greedy tokens do not tie."""

ORIGINALS: dict[str, type[PreTrainedModel]] = {
    "llama": LlamaForCausalLM,
    "qwen3": Qwen3ForCausalLM,
}


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(level)


@pytest.fixture(params=list(ORIGINALS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture(params=list(streams.STREAMS))
def stream(request: pytest.FixtureRequest) -> dict[str, Any]:
    return {"name": request.param}


@pytest.fixture
def make() -> Callable[..., models.DepthForCausalLM]:
    """Build a model whose stream is away from its start, as training would leave it."""

    def build(
        family: str, stream: dict[str, Any], *, stir: float = 0.3, **changes: Any
    ) -> models.DepthForCausalLM:
        torch.manual_seed(0)
        model = models.build_model(family, stream, **(SHAPE | changes)).eval()
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, streams.StreamModule):
                    for parameter in module.parameters(recurse=False):
                        parameter.add_(stir * torch.randn_like(parameter))
        return model

    return build


@pytest.fixture
def original() -> Callable[..., PreTrainedModel]:
    """Build the transformers model of a family."""

    def build(family: str, **changes: Any) -> PreTrainedModel:
        kind = ORIGINALS[family]
        torch.manual_seed(0)
        return kind(kind.config_class(**(SHAPE | changes))).eval()

    return build


@pytest.fixture
def ids() -> Tensor:
    return torch.randint(3, 97, (2, 11), generator=torch.Generator().manual_seed(1))


@pytest.fixture
def padded(ids: Tensor) -> dict[str, Tensor]:
    """The same tokens, the first row cut short and padded on the left."""
    mask = torch.ones_like(ids)
    mask[0, :4] = 0
    return {"input_ids": ids * mask, "attention_mask": mask}
