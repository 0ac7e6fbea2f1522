"""Families by name, and their registration with transformers' auto classes."""

from __future__ import annotations

from typing import Any

from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from depth_memory.errors import choose
from depth_memory.models.causal_lm import (
    DepthForCausalLM,
    DepthLlamaForCausalLM,
    DepthQwen3ForCausalLM,
)
from depth_memory.models.config import DepthConfig, DepthLlamaConfig, DepthQwen3Config

_CLASSES: dict[str, tuple[type[DepthConfig], type[DepthForCausalLM]]] = {
    "llama": (DepthLlamaConfig, DepthLlamaForCausalLM),
    "qwen3": (DepthQwen3Config, DepthQwen3ForCausalLM),
}


def config_for(family: str) -> type[DepthConfig]:
    """The configuration class of a family.

    Raises:
        UserError: No such family; names those there are.
    """
    return _CLASSES[choose("family", family, _CLASSES)][0]


def class_for(family: str) -> type[DepthForCausalLM]:
    """The language model class of a family.

    Raises:
        UserError: No such family; names those there are.
    """
    return _CLASSES[choose("family", family, _CLASSES)][1]


def build_model(family: str, stream: Any = None, **config: Any) -> DepthForCausalLM:
    """A freshly initialised language model.

    Args:
        family: `llama` or `qwen3`.
        stream: Mapping with `name`, or a stream configuration; `None` is the default stream.
        **config: Fields of the family's transformers configuration, `hidden_size` for example.

    Returns:
        The model in torch's default dtype and on torch's default device, initialised from torch's
        global generator.

    Raises:
        UserError: Unknown family or stream, or a field of the stream out of range.
    """
    fields = config | {"stream": stream}
    return class_for(family)(config_for(family)(**fields))


def register() -> None:
    """Let `AutoConfig`, `AutoModel` and `AutoModelForCausalLM` know the families."""
    for config, kind in _CLASSES.values():
        AutoConfig.register(config.model_type, config)
        AutoModel.register(config, kind.trunk)
        AutoModelForCausalLM.register(config, kind)
