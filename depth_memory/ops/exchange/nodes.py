"""The nodes of one pass in the graph of autograd. Rows [N, ...], contiguous; they share a tape.

In forward order: `Store` keeps a value and projects it, `Observe` (or `Note`) says where it was
written, `Advance` adds it to the residual stream and projects that, `Retrieve` reads. The residual
stream and a token thread them, so that the backward pass meets them in the reverse order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function
from torch.autograd.function import once_differentiable

from depth_memory.ops.exchange.covariance import rls_backward, rls_forward
from depth_memory.ops.exchange.norm import add_norm_backward, add_norm_forward
from depth_memory.ops.exchange.project import project_backward, project_forward
from depth_memory.ops.exchange.read import Norm, read_backward, read_forward
from depth_memory.ops.exchange.sweep import sweep_backward, sweep_forward
from depth_memory.ops.exchange.tape import Read, Tape


class Store(Function):
    """`value = a + b` into the next slot of the window; its latent."""

    @staticmethod
    def forward(
        ctx: Any, tape: Tape, a: Tensor, b: Tensor | None, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        window = tape.current
        ctx.set_materialize_grads(False)
        ctx.window, ctx.slot, ctx.adds = window, window.written, b is not None
        value = window.values[ctx.slot]
        window.written += 1
        latent, rstd = project_forward(a, b, weight, value)
        if tape.recording:
            ctx.save_for_backward(weight, latent, rstd)
        return value.view_as(value), latent

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        d_value, d_latent = grads
        weight, latent, rstd = ctx.saved_tensors
        window, slot = ctx.window, ctx.slot
        window.enter()
        if d_latent is None:
            d_latent = torch.zeros_like(latent)
        d, d_weight = project_backward(
            window.values[slot], weight, latent, rstd, d_latent, d_value, None,
            window.returns(slot), window.layout.groups,
        )  # fmt: skip
        if slot == 0 and window.base is None:
            window.close()
        return None, d, d if ctx.adds else None, d_weight


class Observe(Function):
    """The step of the inverse covariance; the gain and key go on the tape."""

    @staticmethod
    def forward(
        ctx: Any,
        tape: Tape,
        P: Tensor,
        key: Tensor,
        forgetting: Tensor,
        importance: Tensor,
        token: Tensor,
    ) -> tuple[Tensor, Tensor]:
        window = tape.current
        ctx.set_materialize_grads(False)
        ctx.window, ctx.slot = window, window.written - 1
        gain, erase, _ = window.writes
        assert erase is not None
        out = rls_forward(P, key, forgetting, importance, gain[ctx.slot], erase[ctx.slot])
        if tape.recording:
            ctx.save_for_backward(P, key, forgetting, importance)
        return out, token.view_as(token)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        d_P, _ = grads
        P, key, forgetting, importance = ctx.saved_tensors
        collected, slot = ctx.window.gradients(), ctx.slot
        d_P, d_key, d_f, d_w = rls_backward(
            P, key, forgetting, importance, collected.gain[slot], collected.erase[slot], d_P
        )
        return None, d_P, _per_key(d_key, key.shape[1]), d_f, d_w, None


class Note(Function):
    """A write whose gain, key and forgetting are known: onto the tape."""

    @staticmethod
    def forward(
        ctx: Any, tape: Tape, gain: Tensor, key: Tensor, keep: Tensor, token: Tensor
    ) -> Tensor:
        window = tape.current
        ctx.set_materialize_grads(False)
        ctx.window, ctx.slot, ctx.keys = window, window.written - 1, key.shape[1]
        gains, erases, keeps = window.writes
        gains[ctx.slot].copy_(gain)
        for kept, given in ((erases, key), (keeps, keep)):
            if kept is not None:
                kept[ctx.slot].copy_(given)
        return token.view_as(token)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        del grads
        collected, slot = ctx.window.gradients(), ctx.slot
        layout = ctx.window.layout
        d_key = _per_key(collected.erase[slot], ctx.keys) if layout.erases else None
        d_keep = collected.keep[slot].sum(0) if layout.keeps else None
        return None, collected.gain[slot], d_key, d_keep, None


class Advance(Function):
    """`h + value` (or `h` as it is) and its latent, for the read that follows."""

    @staticmethod
    def forward(
        ctx: Any, tape: Tape, read: Read, h: Tensor, value: Tensor | None, weight: Tensor
    ) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.read, ctx.adds, ctx.groups = read, value is not None, tape.layout.groups
        out = None if value is None else torch.empty_like(h)
        latent, rstd = project_forward(h, value, weight, out)
        if tape.recording:
            ctx.save_for_backward(weight, latent, rstd)
        return (h.view_as(h) if out is None else out), latent

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        d_h, d_latent = grads
        weight, latent, rstd = ctx.saved_tensors
        if d_latent is None:
            d_latent = torch.zeros_like(latent)
        h, d_read = ctx.read.take()
        d, d_weight = project_backward(
            h, weight, latent, rstd, d_latent, d_h, d_read, None, ctx.groups
        )
        return None, None, d, d if ctx.adds else None, d_weight


class Retrieve(Function):
    """Fold the window if it is full; read the memory, add it to `h`, norm."""

    @staticmethod
    def forward(
        ctx: Any,
        tape: Tape,
        read: Read,
        h: Tensor,
        query: Tensor,
        scale: Tensor,
        token: Tensor,
        norm_weight: Tensor | None,
        eps: float,
    ) -> Tensor:
        del token
        if tape.full:
            tape.turn(h)
        window = tape.current
        i = window.begin_read(read)
        swept = window.swept(i)
        sweep_forward(query.contiguous(), scale.contiguous(), window.writes, window.written, swept)
        ctx.read, ctx.eps = read, eps
        out, rstd = read_forward(h, window.reading(i), _norm(norm_weight, eps))
        if tape.recording:
            ctx.save_for_backward(norm_weight, out, rstd)
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        (d_out,) = grads
        norm_weight, out, rstd = ctx.saved_tensors
        window, i = ctx.read.window, ctx.read.index
        window.enter()
        seen, dz = window.reading(i), window.gradient_of(i)
        norm = _norm(norm_weight, ctx.eps)
        found = read_backward(window.start, seen, norm, out, rstd, d_out, dz)
        ctx.read.send(found.h, dz)
        d_rest = None if window.base is None else found.d_rest
        d_query, d_scale = sweep_backward(
            window.writes, seen.count, window.swept(i), found.d_weights, d_rest, window.gradients()
        )
        # the residual stream's share is on the tape, where `Advance` finds it
        return None, None, None, d_query, d_scale, None, found.d_norm, None


class AddNorm(Function):
    """`norm(h + y)`, where nothing is read; hands on `h` and `y`, so that gradients meet once."""

    @staticmethod
    def forward(
        ctx: Any, h: Tensor, y: Tensor, norm_weight: Tensor, eps: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        total, out = add_norm_forward(h, y, Norm(norm_weight, eps))
        ctx.eps = eps
        ctx.save_for_backward(total, norm_weight)
        return out, h.view_as(h), y.view_as(y)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor | None) -> tuple[Any, ...]:
        d_out, d_h, d_y = grads
        total, norm_weight = ctx.saved_tensors
        norm = Norm(norm_weight, ctx.eps)
        d_h, d_y, d_norm = add_norm_backward(total, norm, d_out, d_h, d_y)
        return d_h, d_y, d_norm, None


def _norm(weight: Tensor | None, eps: float) -> Norm | None:
    return None if weight is None else Norm(weight, eps)


def _per_key(d_key: Tensor, keys: int) -> Tensor:
    """The gradient of a key that all groups share is the sum of theirs."""
    return d_key.sum(1, keepdim=True) if keys == 1 else d_key
