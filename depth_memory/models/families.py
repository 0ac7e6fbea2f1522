"""The backbones: which modules of transformers each architecture is assembled from."""

from __future__ import annotations

from dataclasses import dataclass

from torch import nn
from transformers import PreTrainedConfig, PreTrainedModel
from transformers.models.llama import modeling_llama as llama
from transformers.models.qwen3 import modeling_qwen3 as qwen3

from depth_memory.errors import choose


@dataclass(frozen=True, kw_only=True)
class Family:
    """One architecture's building blocks, all of them transformers' own."""

    causal_lm: type[PreTrainedModel]
    """The original, whose checkpoints load by name and whose logits `preln` reproduces."""
    attention: type[nn.Module]
    mlp: type[nn.Module]
    norm: type[nn.Module]
    rotary: type[nn.Module]


FAMILIES: dict[str, Family] = {
    "llama": Family(
        causal_lm=llama.LlamaForCausalLM,
        attention=llama.LlamaAttention,
        mlp=llama.LlamaMLP,
        norm=llama.LlamaRMSNorm,
        rotary=llama.LlamaRotaryEmbedding,
    ),
    "qwen3": Family(
        causal_lm=qwen3.Qwen3ForCausalLM,
        attention=qwen3.Qwen3Attention,
        mlp=qwen3.Qwen3MLP,
        norm=qwen3.Qwen3RMSNorm,
        rotary=qwen3.Qwen3RotaryEmbedding,
    ),
}

PREFIX = "depth_"
"""What `model_type` carries before the name of the family."""


def family_name(config: PreTrainedConfig) -> str:
    """The family of a configuration of this package or of transformers.

    Raises:
        UserError: Its `model_type` is no family that we know.
    """
    return choose("model_type", config.model_type.removeprefix(PREFIX), FAMILIES)


def family_of(config: PreTrainedConfig) -> Family:
    """The building blocks that a configuration of this package or of transformers calls for.

    Raises:
        UserError: Its `model_type` is no family that we know.
    """
    return FAMILIES[family_name(config)]


def attention_kinds(config: PreTrainedConfig) -> list[str]:
    """For each layer the kind of mask its attention takes, as transformers names it."""
    kinds = getattr(config, "layer_types", None)
    return list(kinds) if kinds else ["full_attention"] * config.num_hidden_layers
