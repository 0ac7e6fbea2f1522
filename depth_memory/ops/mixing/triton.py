"""Triton kernels of mixing: weighted sums of listed sources, and attention over depth.

Names follow the reference. N counts rows (tokens, or tokens and groups), S sources, R sums. Sources
come as a tuple of pointers and are read once each; nothing is stacked.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import triton
import triton.language as tl
from torch import Tensor

from depth_memory.ops import _launch


@triton.jit
def mix_fwd_kernel(
    coef, sources, out, N,
    R: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    BN: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    i_n, i_d = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_n, o_r, o_d = i_n * BN + tl.arange(0, BN), tl.arange(0, BR), i_d * BD + tl.arange(0, BD)
    m_nr = (o_n[:, None] < N) & (o_r[None, :] < R)
    m_nd = (o_n[:, None] < N) & (o_d[None, :] < D)
    # [BN, BR, BD]
    b_out = tl.zeros([BN, BR, BD], ACC)
    for s in tl.static_range(S):
        b_c = tl.load(coef + (o_n[:, None] * R + o_r[None, :]) * S + s, mask=m_nr, other=0.0)
        b_v = tl.load(sources[s] + o_n[:, None] * D + o_d[None, :], mask=m_nd, other=0.0)
        # out[r] += coef[r, s] * source[s]
        b_out += b_c.to(ACC)[:, :, None] * b_v.to(ACC)[:, None, :]
    p_out = out + (o_n[:, None, None] * R + o_r[None, :, None]) * D + o_d[None, None, :]
    tl.store(p_out, b_out.to(out.dtype.element_ty), mask=m_nr[:, :, None] & m_nd[:, None, :])


@triton.jit
def mix_bwd_kernel(
    coef, sources, d_out, d_coef, d_sources, N,
    R: tl.constexpr, S: tl.constexpr, D: tl.constexpr,
    BN: tl.constexpr, BR: tl.constexpr, BS: tl.constexpr, BD: tl.constexpr, ACC: tl.constexpr,
    COEF: tl.constexpr, SOURCES: tl.constexpr,
):  # fmt: skip
    i_n = tl.program_id(0).to(tl.int64)
    o_n, o_r, o_s = i_n * BN + tl.arange(0, BN), tl.arange(0, BR), tl.arange(0, BS)
    m_nr = (o_n[:, None] < N) & (o_r[None, :] < R)
    # [BN, BR, BS]
    b_dc = tl.zeros([BN, BR, BS], ACC)
    for i_d in range(0, tl.cdiv(D, BD)):
        o_d = i_d * BD + tl.arange(0, BD)
        m_nd = (o_n[:, None] < N) & (o_d[None, :] < D)
        m_nrd = m_nr[:, :, None] & m_nd[:, None, :]
        p_do = d_out + (o_n[:, None, None] * R + o_r[None, :, None]) * D + o_d[None, None, :]
        b_do = tl.load(p_do, mask=m_nrd, other=0.0).to(ACC)
        for s in tl.static_range(S):
            if COEF:
                b_v = tl.load(sources[s] + o_n[:, None] * D + o_d[None, :], mask=m_nd, other=0.0)
                # d_coef[r, s] = d_out[r] . source[s]
                b_dot = tl.sum(b_do * b_v.to(ACC)[:, None, :], 2)
                b_dc += tl.where(o_s[None, None, :] == s, b_dot[:, :, None], 0.0)
            if SOURCES:
                p_c = coef + (o_n[:, None] * R + o_r[None, :]) * S + s
                b_c = tl.load(p_c, mask=m_nr, other=0.0).to(ACC)
                # d_source[s] = sum_r coef[r, s] d_out[r]
                b_ds = tl.sum(b_c[:, :, None] * b_do, 1)
                p_ds = d_sources[s] + o_n[:, None] * D + o_d[None, :]
                tl.store(p_ds, b_ds.to(d_sources[s].dtype.element_ty), mask=m_nd)
    if COEF:
        p_dc = d_coef + (o_n[:, None, None] * R + o_r[None, :, None]) * S + o_s[None, None, :]
        m_dc = m_nr[:, :, None] & (o_s[None, None, :] < S)
        tl.store(p_dc, b_dc.to(d_coef.dtype.element_ty), mask=m_dc)


@triton.jit
def attnres_fwd_kernel(
    direction, sources, out, weights, rstd, N, eps,
    S: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    i_n = tl.program_id(0).to(tl.int64)
    o_d = tl.arange(0, BD)
    m_d = o_d < D
    b_q = tl.load(direction + o_d, mask=m_d, other=0.0).to(ACC)
    b_out = tl.zeros([BD], ACC)
    top = tl.full([], float("-inf"), ACC)
    total = tl.zeros([], ACC)
    for s in tl.static_range(S):
        b_v = tl.load(sources[s] + i_n * D + o_d, mask=m_d, other=0.0).to(ACC)
        scale = tl.rsqrt(tl.sum(b_v * b_v, 0) / D + eps)
        # logit = direction . rms(source)
        logit = tl.sum(b_q * b_v, 0) * scale
        # softmax as the sources pass by: rescale what was added under the old maximum
        higher = tl.maximum(top, logit)
        old, new = tl.exp(top - higher), tl.exp(logit - higher)
        b_out = b_out * old + b_v * new
        total = total * old + new
        top = higher
        tl.store(weights + i_n * S + s, logit)
        tl.store(rstd + i_n * S + s, scale)
    tl.store(out + i_n * D + o_d, (b_out / total).to(out.dtype.element_ty), mask=m_d)
    for s in tl.static_range(S):
        logit = tl.load(weights + i_n * S + s)
        tl.store(weights + i_n * S + s, tl.exp(logit - top) / total)


@triton.jit
def attnres_bwd_kernel(
    direction, sources, weights, rstd, d_out, d_sources, d_direction, N, ROWS,
    S: tl.constexpr, BS: tl.constexpr, D: tl.constexpr, BD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    i_p = tl.program_id(0).to(tl.int64)
    o_d, o_s = tl.arange(0, BD), tl.arange(0, BS)
    m_d, m_s = o_d < D, o_s < S
    b_q = tl.load(direction + o_d, mask=m_d, other=0.0).to(ACC)
    b_dq = tl.zeros([BD], ACC)
    for row in range(i_p * ROWS, tl.minimum((i_p + 1) * ROWS, N)):
        b_do = tl.load(d_out + row * D + o_d, mask=m_d, other=0.0).to(ACC)
        b_w = tl.load(weights + row * S + o_s, mask=m_s, other=0.0).to(ACC)
        b_scale = tl.load(rstd + row * S + o_s, mask=m_s, other=0.0).to(ACC)
        b_dot = tl.zeros([BS], ACC)
        b_logit = tl.zeros([BS], ACC)
        for s in tl.static_range(S):
            b_v = tl.load(sources[s] + row * D + o_d, mask=m_d, other=0.0).to(ACC)
            b_dot += tl.where(o_s == s, tl.sum(b_do * b_v, 0), 0.0)
            b_logit += tl.where(o_s == s, tl.sum(b_q * b_v, 0), 0.0)
        b_logit = b_logit * b_scale
        # d_logit = weight * (d_weight - sum(weight * d_weight))
        b_dl = b_w * (b_dot - tl.sum(b_w * b_dot, 0))
        for s in tl.static_range(S):
            b_v = tl.load(sources[s] + row * D + o_d, mask=m_d, other=0.0).to(ACC)
            w = tl.sum(tl.where(o_s == s, b_w, 0.0), 0)
            dl = tl.sum(tl.where(o_s == s, b_dl * b_scale, 0.0), 0)
            pull = tl.sum(tl.where(o_s == s, b_dl * b_logit * b_scale * b_scale, 0.0), 0) / D
            # d_source = weight d_out + d_logit d(direction . rms(source))
            b_ds = w * b_do + dl * b_q - pull * b_v
            b_dq += dl * b_v
            p_ds = d_sources[s] + row * D + o_d
            tl.store(p_ds, b_ds.to(d_sources[s].dtype.element_ty), mask=m_d)
    tl.store(d_direction + i_p * D + o_d, b_dq, mask=m_d)


def mix_forward(coef: Tensor, sources: Sequence[Tensor], dtype: torch.dtype) -> Tensor:
    """Rows of `mix`: coef [N, R, S], sources S x [N, D], all contiguous -> [N, R, D]."""
    N, R, S = coef.shape
    D = sources[0].shape[-1]
    out = coef.new_empty(N, R, D, dtype=dtype)
    if out.numel() == 0:
        return out
    BR = triton.next_power_of_2(R)
    BD = _launch.block_of(D, max(1024 // BR, 64))
    BN = max(1, 2048 // (BR * BD))
    grid = (triton.cdiv(N, BN), triton.cdiv(D, BD))
    mix_fwd_kernel[grid](
        coef, tuple(sources), out, N,
        R=R, S=S, D=D, BN=BN, BR=BR, BD=BD, ACC=_launch.accumulator((coef, *sources)),
    )  # fmt: skip
    return out


def mix_backward(
    coef: Tensor, sources: Sequence[Tensor], d_out: Tensor, wants: tuple[bool, bool]
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of `mix_forward` with respect to the coefficients and to every source."""
    N, R, S = coef.shape
    D = sources[0].shape[-1]
    d_coef = torch.empty_like(coef)
    d_sources = [torch.empty_like(source) for source in sources]
    if N == 0 or D == 0:
        return d_coef.zero_(), d_sources
    BR, BS = triton.next_power_of_2(R), triton.next_power_of_2(S)
    BD = _launch.block_of(D, max(1024 // BR, 64))
    BN = max(1, 2048 // (BR * max(BD, BS)))
    mix_bwd_kernel[(triton.cdiv(N, BN),)](
        coef, tuple(sources), d_out, d_coef, tuple(d_sources), N,
        R=R, S=S, D=D, BN=BN, BR=BR, BS=BS, BD=BD,
        ACC=_launch.accumulator((coef, *sources)), COEF=wants[0], SOURCES=wants[1],
    )  # fmt: skip
    return d_coef, d_sources


def attnres_forward(
    direction: Tensor, sources: Sequence[Tensor], eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Rows of `attnres` for sources S x [N, D]: the sum, the weights and the key scales [N, S]."""
    N, D = sources[0].shape
    S = len(sources)
    out = torch.empty_like(sources[0])
    weights = torch.empty(N, S, dtype=direction.dtype, device=direction.device)
    rstd = torch.empty_like(weights)
    if N:
        attnres_fwd_kernel[(N,)](
            direction, tuple(sources), out, weights, rstd, N, eps,
            S=S, D=D, BD=triton.next_power_of_2(D),
            ACC=_launch.accumulator((direction, *sources)),
        )  # fmt: skip
    return out, weights, rstd


def attnres_backward(
    direction: Tensor,
    sources: Sequence[Tensor],
    weights: Tensor,
    rstd: Tensor,
    d_out: Tensor,
) -> tuple[Tensor, list[Tensor]]:
    """Gradients of `attnres_forward` with respect to the direction and to every source."""
    N, D = sources[0].shape
    S = len(sources)
    d_sources = [torch.empty_like(source) for source in sources]
    if N == 0:
        return torch.zeros_like(direction), d_sources
    rows = triton.cdiv(N, _launch.programs(direction.device))
    count = triton.cdiv(N, rows)
    d_direction = torch.empty(count, D, dtype=direction.dtype, device=direction.device)
    attnres_bwd_kernel[(count,)](
        direction, tuple(sources), weights, rstd, d_out, tuple(d_sources), d_direction, N, rows,
        S=S, BS=triton.next_power_of_2(S), D=D, BD=triton.next_power_of_2(D),
        ACC=_launch.accumulator((direction, *sources)),
    )  # fmt: skip
    # one partial sum per program, added in order: the same from run to run
    return d_direction.sum(0), d_sources
