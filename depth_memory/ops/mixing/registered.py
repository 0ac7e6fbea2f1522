"""The kernels of mixing as operators of torch: schema, shapes without data, gradient.

Everything here takes rows [N, ...]; `api.py` brings other shapes to them. Launchers are imported
when an operator runs, so that the package imports without Triton.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from depth_memory.ops._precision import compute_dtype


@torch.library.custom_op("depth_memory::mix", mutates_args=())
def mix_rows(coef: Tensor, sources: list[Tensor], dtype: torch.dtype) -> Tensor:
    """`mix` for coef [N, R, S] and S sources [N, D]: [N, R, D] of `dtype`."""
    from depth_memory.ops.mixing.triton import mix_forward

    return mix_forward(coef, sources, dtype)


@mix_rows.register_fake
def _(coef: Tensor, sources: list[Tensor], dtype: torch.dtype) -> Tensor:
    return coef.new_empty(*coef.shape[:2], sources[0].shape[-1], dtype=dtype)


@torch.library.custom_op("depth_memory::mix_backward", mutates_args=())
def mix_rows_backward(
    coef: Tensor, sources: list[Tensor], d_out: Tensor, wants_coef: bool, wants_sources: bool
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of `mix_rows`; what is not wanted is not computed and holds nothing of use."""
    from depth_memory.ops.mixing.triton import mix_backward

    return mix_backward(coef, sources, d_out.contiguous(), (wants_coef, wants_sources))


@mix_rows_backward.register_fake
def _(
    coef: Tensor, sources: list[Tensor], d_out: Tensor, wants_coef: bool, wants_sources: bool
) -> tuple[Tensor, list[Tensor]]:
    del d_out, wants_coef, wants_sources
    rows = [torch.empty_like(s, memory_format=torch.contiguous_format) for s in sources]
    return torch.empty_like(coef), rows


def _mix_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    del output
    coef, sources, _ = inputs
    ctx.save_for_backward(coef, *sources)


def _mix_gradient(ctx: Any, d_out: Tensor) -> tuple[Any, ...]:
    coef, *sources = ctx.saved_tensors
    wants = (ctx.needs_input_grad[0], any(ctx.needs_input_grad[1]))
    d_coef, d_sources = mix_rows_backward(coef, sources, d_out, *wants)
    return (d_coef if wants[0] else None), (d_sources if wants[1] else [None] * len(sources)), None


mix_rows.register_autograd(_mix_gradient, setup_context=_mix_context)


@torch.library.custom_op("depth_memory::attnres", mutates_args=())
def attnres_rows(
    direction: Tensor, sources: list[Tensor], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """`attnres` for S sources [N, D] and direction = query * norm_weight [D].

    Returns:
        The sums [N, D], the weights and the scales of the keys [N, S].
    """
    from depth_memory.ops.mixing.triton import attnres_forward

    return attnres_forward(direction, sources, eps)


@attnres_rows.register_fake
def _(direction: Tensor, sources: list[Tensor], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    del eps
    first = sources[0]
    weights = direction.new_empty(first.shape[0], len(sources))
    out = torch.empty_like(first, memory_format=torch.contiguous_format)
    return out, weights, torch.empty_like(weights)


@torch.library.custom_op("depth_memory::attnres_backward", mutates_args=())
def attnres_rows_backward(
    direction: Tensor, sources: list[Tensor], weights: Tensor, rstd: Tensor, d_out: Tensor
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of the sums of `attnres_rows`."""
    from depth_memory.ops.mixing.triton import attnres_backward

    return attnres_backward(direction, sources, weights, rstd, d_out.contiguous())


@attnres_rows_backward.register_fake
def _(
    direction: Tensor, sources: list[Tensor], weights: Tensor, rstd: Tensor, d_out: Tensor
) -> tuple[Tensor, list[Tensor]]:
    del weights, rstd, d_out
    rows = [torch.empty_like(s, memory_format=torch.contiguous_format) for s in sources]
    return torch.empty_like(direction), rows


def _attnres_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
    direction, sources, _ = inputs
    _, weights, rstd = output
    ctx.mark_non_differentiable(weights, rstd)
    ctx.save_for_backward(direction, weights, rstd, *sources)


def _attnres_gradient(ctx: Any, d_out: Tensor, *_: Any) -> tuple[Any, ...]:
    direction, weights, rstd, *sources = ctx.saved_tensors
    d_direction, d_sources = attnres_rows_backward(direction, sources, weights, rstd, d_out)
    return d_direction, d_sources, None


attnres_rows.register_autograd(_attnres_gradient, setup_context=_attnres_context)


def mix_any(coef: Tensor, sources: list[Tensor], dtype: torch.dtype) -> Tensor:
    """`mix` by its kernel for any leading axes that broadcast."""
    tokens = torch.broadcast_shapes(coef.shape[:-2], *(s.shape[:-1] for s in sources))
    flat = coef.to(compute_dtype((coef,))).expand(*tokens, *coef.shape[-2:])
    flat = flat.reshape(-1, *coef.shape[-2:]).contiguous()
    out = mix_rows(flat, [_rows(s, tokens) for s in sources], dtype)
    return out.reshape(*tokens, *out.shape[1:])


def attnres_any(query: Tensor, sources: list[Tensor], norm_weight: Tensor, eps: float) -> Tensor:
    """`attnres` by its kernel for any leading axes that broadcast."""
    tokens = torch.broadcast_shapes(*(s.shape[:-1] for s in sources))
    dtype = compute_dtype((query, norm_weight, *sources))
    direction = query.to(dtype) * norm_weight.to(dtype)
    out, _, _ = attnres_rows(direction, [_rows(s, tokens) for s in sources], eps)
    return out.reshape(*tokens, out.shape[-1])


def _rows(source: Tensor, tokens: torch.Size) -> Tensor:
    """[*#tokens, D] as contiguous rows [N, D]; copied only where it must be."""
    width = source.shape[-1]
    return source.expand(*tokens, width).reshape(-1, width).contiguous()
