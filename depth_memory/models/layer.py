"""The decoder layer: transformers' attention and MLP between the ports of a stream."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import PreTrainedConfig

from depth_memory.models.context import Context, observed
from depth_memory.models.families import attention_kinds, family_of
from depth_memory.streams.base import State, Stream

INIT_SCALE = "init_scale"
"""Attribute of a linear map: factor on the deviation with which it starts, read when it starts."""


def attend(
    attention: nn.Module, x: Tensor, rotary: Any, mask: Any, cache: Any, options: dict[str, Any]
) -> tuple[Tensor, Tensor | None]:
    """The attention sublayer's body: its output, and the weights where the backend has them."""
    return attention(x, rotary, mask, cache, **options)


def feed(mlp: nn.Module, x: Tensor) -> Tensor:
    """The MLP sublayer's body."""
    return mlp(x)


class DepthLayer(nn.Module):
    """A pre-norm decoder layer whose two additions are ports; it never asks of which stream.

    Activation checkpointing wraps the bodies, between a read and the write that follows, and never
    a port: what a checkpoint keeps is then the sublayer's input, whatever the stream carries.
    """

    gradient_checkpointing: bool = False

    def __init__(self, config: PreTrainedConfig, stream: Stream, index: int):
        super().__init__()
        family = family_of(config)
        self.self_attn = family.attention(config, index)
        self.mlp = family.mlp(config)
        self.input_layernorm = family.norm(config.hidden_size, eps=config.rms_norm_eps)
        self.post_attention_layernorm = family.norm(config.hidden_size, eps=config.rms_norm_eps)
        self.attn_port = stream.port(2 * index)
        self.mlp_port = stream.port(2 * index + 1)
        self.kind = attention_kinds(config)[index]
        for projection in (self.self_attn.o_proj, self.mlp.down_proj):
            setattr(projection, INIT_SCALE, stream.output_init_scale)
        self._attend: Callable = attend
        self._feed: Callable = feed
        self._gradient_checkpointing_func: Callable = partial(checkpoint, use_reentrant=False)

    def forward(self, state: State, context: Context) -> State:
        """The stream's state after both sublayers."""
        norm = observed(self.input_layernorm, context.record.inputs)
        x, state = self.attn_port.read(state, norm)
        y = self._attention(x, context)
        state = self.attn_port.write(state, y)
        x, state = self.mlp_port.read(state, self.post_attention_layernorm)
        y = self._body(self._feed, self.mlp, x)
        return self.mlp_port.write(state, y)

    def _attention(self, x: Tensor, context: Context) -> Tensor:
        # A cache is addressed by the layer's number, which would be compiled in: one variant per
        # layer. Decoding therefore takes the plain body.
        body = attend if context.cache is not None else self._attend
        mask = context.masks[self.kind]
        y, weights = self._body(
            body, self.self_attn, x, context.rotary, mask, context.cache, context.options
        )
        if context.record.attentions is not None and weights is not None:
            context.record.attentions.append(weights)
        return y

    def _body(self, body: Callable, *inputs: Any) -> Any:
        if self.gradient_checkpointing and self.training and torch.is_grad_enabled():
            return self._gradient_checkpointing_func(body, *inputs)
        return body(*inputs)

    def compile(self, *args: Any, **options: Any) -> None:
        """Compile the bodies and ask the ports to compile themselves.

        All layers share what is compiled, so that compile time does not grow with depth.
        """
        self._attend = torch.compile(attend, *args, **options)
        self._feed = torch.compile(feed, *args, **options)
        self.attn_port.compile(*args, **options)
        self.mlp_port.compile(*args, **options)
