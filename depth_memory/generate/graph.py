"""A decoding step as a CUDA graph: one launch instead of some hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor
from transformers import Cache

from depth_memory.models import DepthForCausalLM
from depth_memory.models.families import attention_kinds

WARM_UP = 2
"""Steps before the capture, in which libraries allocate what they need."""
CHANGING = ("dynamic", "longrope")
"""Rotations whose frequencies are chosen by the host, by the length of the text."""


def can_capture(model: DepthForCausalLM) -> bool:
    """Whether a step does the same launches whatever the tokens so far."""
    config = model.config
    return (
        model.device.type == "cuda"
        and set(attention_kinds(config)) == {"full_attention"}
        and config._attn_implementation in ("sdpa", "eager")
        and config.rope_parameters.get("rope_type") not in CHANGING
    )


def step(
    model: DepthForCausalLM, cache: Cache, ids: Tensor, positions: Tensor, masks: dict[str, Any]
) -> Tensor:
    """One pass: logits [rows, vocabulary] of the last of `ids`, whose keys and values stay."""
    return model(
        ids,
        attention_mask=masks,
        position_ids=positions,
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    ).logits[:, -1]


class Captured:
    """A step on a static cache, recorded once and replayed. Final.

    The cache counts its tokens on the device, so that a replay writes keys and values to the next
    place, and its buffers keep their addresses; what else a step is given is copied into place.
    """

    def __init__(
        self,
        model: DepthForCausalLM,
        cache: Cache,
        ids: Tensor,
        positions: Tensor,
        masks: dict[str, Any],
    ):
        self._inputs = (ids.clone(), positions.clone(), *(m.clone() for m in masks.values()))
        held = (*self._inputs[:2], dict(zip(masks, self._inputs[2:], strict=True)))
        layers: Any = cache.layers
        lengths = [layer.cumulative_length for layer in layers]
        before = [length.clone() for length in lengths]

        def take_back() -> None:
            # what was written is behind the end again, and will be overwritten
            for length, count in zip(lengths, before, strict=True):
                length.copy_(count)

        self._replay, self._logits = record(lambda: step(model, cache, *held), take_back)

    def __call__(self, ids: Tensor, positions: Tensor, masks: dict[str, Any]) -> Tensor:
        """The logits, in a tensor that the next call overwrites."""
        for held, new in zip(self._inputs, (ids, positions, *masks.values()), strict=True):
            held.copy_(new)
        self._replay()
        return self._logits


def record(
    run: Callable[[], Tensor], take_back: Callable[[], None]
) -> tuple[Callable[[], None], Tensor]:
    """Record what `run` launches, after some runs that `take_back` makes undone.

    Returns:
        What launches it all again, and the tensor in which the result then is.
    """
    side = torch.cuda.Stream()
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        for _ in range(WARM_UP):
            run()
            take_back()
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        result = run()
    return graph.replay, result
