"""Give a loaded model of transformers a stream, without changing what it computes."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from depth_memory import streams
from depth_memory.errors import invalid
from depth_memory.models.causal_lm import DepthForCausalLM
from depth_memory.models.families import FAMILIES
from depth_memory.models.registry import class_for, config_for


def graft(model: PreTrainedModel, stream: Any) -> DepthForCausalLM:
    """A model with `model`'s weights and another stream, that still computes the same function.

    The stream and its ports start where they act as the ordinary residual (an LDM's read gain is 0,
    for example), and training takes it from there.

    Args:
        model: A loaded `LlamaForCausalLM` or `Qwen3ForCausalLM`. Its weights are shared with the
            result, not copied; use `copy.deepcopy` first to go on with both.
        stream: Mapping with `name`, or a stream configuration.

    Returns:
        The new model, on the device and in the dtype of `model`.

    Raises:
        UserError: Another architecture, or a stream that cannot act as the ordinary residual.
    """
    family = _family_name(model)
    config = config_for(family).from_backbone(model.config, stream)
    with torch.device("meta"):
        grafted = class_for(family)(config)
    grafted.load_state_dict(model.state_dict(), strict=False, assign=True)
    # Its buffers are not in the state dict.
    grafted.model.rotary_emb = model.model.rotary_emb
    grafted.tie_weights()
    start_(grafted, grafted, model.device, model.dtype)
    grafted.generation_config = copy.deepcopy(model.generation_config)
    return grafted.train(model.training)


def _family_name(model: nn.Module) -> str:
    for name, family in FAMILIES.items():
        if type(model) is family.causal_lm:
            return name
    supported = ", ".join(family.causal_lm.__name__ for family in FAMILIES.values())
    raise invalid("model", type(model).__name__, supported)


def start_(
    model: DepthForCausalLM,
    root: nn.Module,
    device: torch.device,
    dtype: torch.dtype,
    *,
    preserve: bool = True,
) -> None:
    """Give new parameters memory, their start, and what preserves the function.

    Args:
        model: Knows how its modules start.
        root: The part of it whose parameters, as far as they are on the meta device, are new.
        device: Where they go.
        dtype: Theirs, but for what stays float32.
        preserve: Whether streams and ports then act as the ordinary residual.

    Raises:
        UserError: They cannot.
    """
    for module in root.modules():
        if any(parameter.is_meta for parameter in module.parameters(recurse=False)):
            module.to_empty(device=device, recurse=False)
            model._init_weights(module)
            module.to(dtype)
    for module in root.modules() if preserve else ():
        if isinstance(module, streams.Stream | streams.Port):
            module.preserve_()
