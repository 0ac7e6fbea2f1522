"""What one forward pass prepares once and every layer shares: positions, masks, cache, records."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from transformers import PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.masking_utils import create_causal_mask, create_sliding_window_causal_mask

from depth_memory.errors import UserError
from depth_memory.models.families import attention_kinds
from depth_memory.streams.base import Norm

_MASKS = {
    "full_attention": create_causal_mask,
    "sliding_attention": create_sliding_window_causal_mask,
}


class Record(NamedTuple):
    """Where layers leave what the caller asked to see; `None` for what it did not."""

    inputs: list[Tensor] | None
    attentions: list[Tensor] | None


class Context(NamedTuple):
    """Passed to every layer, which hands it on and changes none of it.

    `cache` goes to transformers by position only: its keyword is `past_key_values` until 5.23 and
    `cache` from 5.24 on, and a wrong keyword is swallowed without an error.
    """

    rotary: tuple[Tensor, Tensor]
    masks: dict[str, Any]
    cache: Cache | None
    options: dict[str, Any]
    record: Record


def observed(norm: Norm, inputs: list[Tensor] | None) -> Norm:
    """`norm`, or a function that also records what it sees."""
    if inputs is None:
        return norm

    def recording(x: Tensor) -> Tensor:
        inputs.append(x)
        return norm(x)

    return recording


def make_positions(x: Tensor, past: int | Tensor) -> Tensor:
    """Positions [1, length] of the tokens that follow `past` others."""
    return (torch.arange(x.shape[1], device=x.device) + past).unsqueeze(0)


def make_masks(
    config: PreTrainedConfig,
    x: Tensor,
    attention_mask: Any,
    cache: Cache | None,
    positions: Tensor | None,
) -> dict[str, Any]:
    """A mask for each kind of attention that the layers use.

    Args:
        config: Names the kinds and the attention implementation.
        x: Embedded input [batch, length, D]; only its shape, dtype and device matter.
        attention_mask: [batch, past + length], 1 for tokens and 0 for padding; or a finished mask,
            or a mapping of finished masks by kind, as generation with a static cache passes them.
        cache: Keys and values of the past, if any.
        positions: What the caller gave, [batch or 1, length]; a step that is not +1 begins another
            packed document, unless there is a cache or an attention mask. `None` spares the search
            for such steps, which waits for the device and rules out causal kernels.

    Returns:
        The masks by kind; `None` where the attention needs none.
    """
    if isinstance(attention_mask, dict):
        return attention_mask
    kinds = dict.fromkeys(attention_kinds(config))
    return {k: _MASKS[k](config, x, attention_mask, cache, positions) for k in kinds}


def check_length(
    config: PreTrainedConfig, length: int, past: int | Tensor, *, packed: bool
) -> None:
    """Refuse a sequence that is longer than the positions the model knows.

    Looks at shapes only. A static cache keeps its fill on the device, where reading it would stall,
    so that only the new tokens count; `packed` says that the caller gave positions of its own
    without a cache or a mask, so that a row may hold several documents.

    Raises:
        UserError: Names both numbers.
    """
    limit = config.max_position_embeddings
    total = length + past if isinstance(past, int) else length
    extends = config.rope_parameters.get("rope_type") == "dynamic"
    if total > limit and not packed and not extends:
        raise UserError(
            f"sequence length: got {total}; allowed: at most {limit} (max_position_embeddings)"
        )
