"""Fold a window of writes into the rows of a memory, with one visit to each; and its gradient.

    base'_k = sum_j rest_kj base_j + sum_i weights_ki value_i

Rows and channels of a group are independent of other groups: one program holds one group's rows.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from depth_memory.ops import _launch
from depth_memory.ops.exchange.project import is_half, product


@triton.jit
def weigh(c, x, ACC: tl.constexpr, HALF: tl.constexpr):
    """`c @ x` for coefficients in ACC, which matrix units take in two halves: to 2^-17."""
    if HALF:
        high = c.to(x.dtype)
        return tl.dot(high, x) + tl.dot((c - high.to(ACC)).to(x.dtype), x)
    else:
        return product(c, x, ACC, False)


@triton.jit(do_not_specialize=["N", "count"])
def fold_fwd_kernel(
    base, values, rest, weights, out, N, count,
    G: tl.constexpr, DV: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    BK: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr, ACC: tl.constexpr, BASE: tl.constexpr,
    HALF: tl.constexpr, HALF_BASE: tl.constexpr,
):  # fmt: skip
    i_g, i_n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, plane = i_n * G + i_g, N.to(tl.int64) * G * DV
    o_k, o_c = tl.arange(0, BK), tl.arange(0, BC)
    m_kk, m_kc = (
        (o_k[:, None] < K) & (o_k[None, :] < K),
        (o_k[:, None] < K) & (o_c[None, :] < count),
    )
    p_k = row * K + o_k[:, None]
    # [BK, BC], [BK, BK]
    b_B = tl.load(weights + p_k * C + o_c[None, :], mask=m_kc, other=0.0).to(ACC)
    if BASE:
        b_A = tl.load(rest + p_k * K + o_k[None, :], mask=m_kk, other=0.0).to(ACC)
    for i_w in range(0, tl.cdiv(DV, BW)):
        o_v = i_w * BW + tl.arange(0, BW)
        m_v, o_d = o_v[None, :] < DV, row * DV + o_v[None, :]
        # base' = rest base + weights values
        p_x = values + o_c[:, None].to(tl.int64) * plane + o_d
        b_x = tl.load(p_x, mask=(o_c[:, None] < count) & m_v, other=0.0)
        b_out = weigh(b_B, b_x, ACC, HALF)
        if BASE:
            p_x = base + o_k[:, None].to(tl.int64) * plane + o_d
            b_x = tl.load(p_x, mask=(o_k[:, None] < K) & m_v, other=0.0)
            b_out += weigh(b_A, b_x, ACC, HALF_BASE)
        p_out = out + o_k[:, None].to(tl.int64) * plane + o_d
        tl.store(p_out, b_out.to(out.dtype.element_ty), mask=(o_k[:, None] < K) & m_v)


@triton.jit(do_not_specialize=["N", "count", "last"])
def fold_bwd_kernel(
    base, values, d_next, rest_next, grads, rests, scales, d_out, d_rest, d_weights, N, count, last,
    G: tl.constexpr, DV: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    BK: tl.constexpr, BC: tl.constexpr, BW: tl.constexpr, ACC: tl.constexpr, BASE: tl.constexpr,
    NEXT: tl.constexpr, HALF: tl.constexpr, HALF_BASE: tl.constexpr,
):  # fmt: skip
    i_g, i_n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    row, plane = i_n * G + i_g, N.to(tl.int64) * G * DV
    o_k, o_c = tl.arange(0, BK), tl.arange(0, BC)
    m_k, m_c = o_k < K, o_c < count
    m_kk, m_kl = m_k[:, None] & m_k[None, :], m_k[:, None] & (o_c[None, :] < last)
    # what each read took of each row, [BK, BC]
    p_row = o_c[None, :].to(tl.int64) * N * G + row
    b_R = tl.load(rests + p_row * K + o_k[:, None], mask=m_kl, other=0.0).to(ACC)
    b_R *= tl.load(scales + p_row, mask=o_c[None, :] < last, other=0.0).to(ACC)
    if NEXT:
        p_A = rest_next + (row * K + o_k[None, :]) * K + o_k[:, None]
        b_A = tl.load(p_A, mask=m_kk, other=0.0).to(ACC)
    b_dB, b_dA = tl.zeros([BK, BC], ACC), tl.zeros([BK, BK], ACC)
    for i_w in range(0, tl.cdiv(DV, BW)):
        o_v = i_w * BW + tl.arange(0, BW)
        m_v, o_d = o_v[None, :] < DV, row * DV + o_v[None, :]
        p_c, p_k = o_c[:, None].to(tl.int64) * plane + o_d, o_k[:, None].to(tl.int64) * plane + o_d
        # d_base = sum of the reads' gradients, as they took it, and of the next fold's
        b_x = tl.load(grads + p_c, mask=(o_c[:, None] < last) & m_v, other=0.0)
        b_d = weigh(b_R, b_x, ACC, HALF)
        if NEXT:
            b_x = tl.load(d_next + p_k, mask=m_k[:, None] & m_v, other=0.0)
            b_d += weigh(b_A, b_x, ACC, HALF_BASE)
        tl.store(d_out + p_k, b_d.to(d_out.dtype.element_ty), mask=m_k[:, None] & m_v)
        # d_weights = d_base values', d_rest = d_base base'
        b_x = tl.load(values + p_c, mask=m_c[:, None] & m_v, other=0.0)
        b_dB += weigh(b_d, tl.trans(b_x), ACC, HALF)
        if BASE:
            b_x = tl.load(base + p_k, mask=m_k[:, None] & m_v, other=0.0)
            b_dA += weigh(b_d, tl.trans(b_x), ACC, HALF_BASE)
    p_k = row * K + o_k[:, None]
    tl.store(d_weights + p_k * C + o_c[None, :], b_dB, mask=m_k[:, None] & m_c[None, :])
    if BASE:
        tl.store(d_rest + p_k * K + o_k[None, :], b_dA, mask=m_kk)


class Fold(NamedTuple):
    """A fold's coefficients: of the rows before it [N, G, K, K], of the values [N, G, K, C]."""

    rest: Tensor
    weights: Tensor


def _options(values: Tensor, base: Tensor, fold: Fold, reads: int) -> dict[str, Any]:
    G, K, C = fold.weights.shape[1:]
    DV = values.shape[-1] // G
    half = is_half(values)
    return {
        "G": G, "DV": DV, "K": K, "C": C, "ACC": _launch.ACC[fold.rest.dtype],
        # the least that matrix units take is 16
        "BK": max(triton.next_power_of_2(K), 16),
        "BC": max(triton.next_power_of_2(max(C, reads)), 16),
        "BW": min(max(triton.next_power_of_2(DV), 16), 128),
        "HALF": half, "HALF_BASE": half and base.dtype == values.dtype, "num_warps": 1,
    }  # fmt: skip


def fold_forward(
    base: Tensor | None, values: Tensor, count: int, fold: Fold, dtype: torch.dtype
) -> Tensor:
    """The new rows [K, N, D] from the old (None: empty) and `count` values [n, N, D]."""
    _, N, D = values.shape
    G, K = fold.rest.shape[1:3]
    out = values.new_empty(K, N, D, dtype=dtype)
    fold_fwd_kernel[(G, N)](
        out if base is None else base, values, fold.rest, fold.weights, out, N, count,
        BASE=base is not None, **_options(values, out, fold, 0),
    )  # fmt: skip
    return out


class Uses(NamedTuple):
    """How the rows of a memory were used: by `last` reads, of which `grads` [m, N, D] are the
    gradients, and by the next fold, where there was one."""

    grads: Tensor
    rests: Tensor
    scales: Tensor
    last: int
    next_grad: Tensor | None
    next_fold: Fold | None


def fold_backward(
    base: Tensor | None, values: Tensor, count: int, fold: Fold, uses: Uses, dtype: torch.dtype
) -> tuple[Tensor, Fold]:
    """Gradient of the new rows [K, N, D] as their uses give it, and of the coefficients."""
    _, N, D = values.shape
    G, K = fold.rest.shape[1:3]
    d_out = values.new_empty(K, N, D, dtype=dtype)
    d_fold = Fold(torch.zeros_like(fold.rest), torch.zeros_like(fold.weights))
    fold_bwd_kernel[(G, N)](
        d_out if base is None else base, values,
        d_out if uses.next_grad is None else uses.next_grad,
        fold.rest if uses.next_fold is None else uses.next_fold.rest,
        uses.grads, uses.rests, uses.scales, d_out, d_fold.rest, d_fold.weights,
        N, count, uses.last, BASE=base is not None, NEXT=uses.next_grad is not None,
        **_options(values, d_out, fold, uses.last),
    )  # fmt: skip
    return d_out, d_fold
