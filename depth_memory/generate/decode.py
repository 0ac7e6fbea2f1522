"""Tokens of a batch of prompts: all of the prompts in one pass, then one token of each row a pass.

The stream of a model lives within a pass; only keys and values stay. Rows are padded on the left,
so that every row's next token is the last.
"""

from __future__ import annotations

from collections.abc import Generator, Sequence
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor
from transformers import Cache, DynamicCache, StaticCache

from depth_memory.errors import invalid
from depth_memory.generate import sampling
from depth_memory.generate.graph import Captured, can_capture, step
from depth_memory.generate.settings import Settings
from depth_memory.models import DepthForCausalLM
from depth_memory.models.context import make_masks


@torch.no_grad()
def tokens(
    model: DepthForCausalLM,
    prompts: Sequence[Sequence[int]],
    settings: Settings,
    uniform: Tensor | None,
) -> Generator[list[int]]:
    """The tokens that follow, one of every row at a time, without an end.

    Args:
        model: In evaluation mode.
        prompts: Token ids of each row, one at least.
        settings: Of these the number of tokens, what chooses them, and the cache.
        uniform: From `sampling.draws`; `None` takes the most probable.

    Yields:
        A token of each row, `sampling.LOST` where its logits are not finite.
    """
    history, mask = padded(prompts, settings.tokens, model.device)
    width = mask.shape[1] - settings.tokens
    positions = (mask.cumsum(-1) - 1).clamp(min=0)
    passes = _Passes(model, mask, positions, settings)
    change = sampling.processors(settings)
    uniform = None if uniform is None else uniform.to(model.device)
    logits = passes.prefill(history[:, :width])
    for i in range(settings.tokens):
        draw = None if uniform is None else uniform[:, i]
        chosen = sampling.choose(logits, history, draw, change)
        yield chosen.tolist()
        history[:, width + i] = chosen
        if i + 1 < settings.tokens:
            logits = passes.next(chosen[:, None], width + i)


def padded(
    prompts: Sequence[Sequence[int]], tokens: int, device: torch.device
) -> tuple[Int[Tensor, "rows length"], Int[Tensor, "rows length"]]:
    """Prompts with padding to the left and room for `tokens` to the right.

    Returns:
        Token ids, and 1 for what is no padding. Padding, and the room, repeat the row's first
        token, which says nothing new about which tokens there are.
    """
    width = max(map(len, prompts))
    ids = [[row[0]] * (width - len(row)) + [*row] + [row[0]] * tokens for row in prompts]
    mask = [[0] * (width - len(row)) + [1] * (len(row) + tokens) for row in prompts]
    return torch.tensor(ids, device=device), torch.tensor(mask, device=device)


class _Passes:
    """The passes of a batch through the model, with the cache between them. Final."""

    def __init__(
        self, model: DepthForCausalLM, mask: Tensor, positions: Tensor, settings: Settings
    ):
        self._model, self._mask, self._positions = model, mask, positions
        self._static, self._capture = choose_cache(model, settings)
        self._padded = bool((mask == 0).any())
        self._captured: Captured | None = None
        config = model.config
        self._cache: Cache = (
            StaticCache(config=config, max_cache_len=mask.shape[1])
            if self._static
            else DynamicCache(config=config)
        )

    def prefill(self, ids: Tensor) -> Tensor:
        """Logits [rows, vocabulary] after the prompts."""
        return self._run(ids, 0)

    def next(self, ids: Tensor, past: int) -> Tensor:
        """Logits [rows, vocabulary] after another token [rows, 1] of each row."""
        if not self._capture:
            return self._run(ids, past)
        inputs = (ids, self._positions[:, past, None], self._masks(ids, past))
        if self._captured is None:
            self._captured = Captured(self._model, self._cache, *inputs)
        return self._captured(*inputs)

    def _run(self, ids: Tensor, past: int) -> Tensor:
        positions = self._positions[:, past : past + ids.shape[1]]
        return step(self._model, self._cache, ids, positions, self._masks(ids, past))

    def _masks(self, ids: Tensor, past: int) -> dict[str, Any]:
        """Who sees whom; a static cache's mask is as long as the cache, and always there."""
        mask = self._mask if self._static else None
        if self._padded and not self._static:
            mask = self._mask[:, : past + ids.shape[1]]
        rows = self._model.model.embed_tokens.weight[:1].expand(*ids.shape, -1)
        return make_masks(self._model.config, rows, mask, self._cache, None)


def choose_cache(model: DepthForCausalLM, settings: Settings) -> tuple[bool, bool]:
    """Whether the cache is static, and whether a step is captured.

    Raises:
        UserError: A graph was asked for, and is not possible.
    """
    possible = can_capture(model)
    static = settings.cache == "static" or (settings.cache == "auto" and possible)
    if settings.graph and not (static and possible):
        allowed = "a static cache on a GPU, full attention, and a rotation that does not change"
        raise invalid("graph", True, allowed)
    return static, static and possible and settings.graph is not False
