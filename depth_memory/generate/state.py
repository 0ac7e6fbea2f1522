"""What generation keeps for each token, and what a pass carries for each of its tokens."""

from __future__ import annotations

from dataclasses import dataclass

from depth_memory.models import DepthForCausalLM
from depth_memory.presets import counts


@dataclass(frozen=True, kw_only=True)
class StateBytes:
    """Bytes per token."""

    stream: str
    """Name of the stream."""
    cache: int
    """Keys and values of all layers, which stay for every later token."""
    depth: int
    """The most that the stream carries from one sublayer to the next. It belongs to one token, and
    is gone when the pass ends; nothing of it is kept for later tokens."""

    def __str__(self) -> str:
        return (
            f"state per token: {self.cache} bytes of keys and values are kept; "
            f"{self.depth} of {self.stream} live within one forward pass"
        )


def state_bytes(model: DepthForCausalLM) -> StateBytes:
    """Count them from the configuration, in the dtype of the model's weights."""
    config = model.config
    per_layer = 2 * config.num_key_value_heads * config.head_dim
    sites = 2 * config.num_hidden_layers
    depth = counts.state_bytes(
        config.stream, width=config.hidden_size, sites=sites, dtype=model.dtype
    )
    return StateBytes(
        stream=config.stream["name"],
        cache=config.num_hidden_layers * per_layer * model.dtype.itemsize,
        depth=depth,
    )
