"""Fold a window of writes into the rows of a memory, with one visit to each; and its gradient.

    base'_k = sum_j rest_kj base_j + sum_i weights_ki value_i

Rows and channels of a group are independent of other groups: one program holds one group's rows.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from depth_memory.ops import _launch


@triton.jit(do_not_specialize=["N", "count"])
def fold_fwd_kernel(
    base, values, rest, weights, out, N, count,
    G: tl.constexpr, DV: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, ACC: tl.constexpr, BASE: tl.constexpr,
):  # fmt: skip
    i_g, i_n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < DV
    o_d, plane = (i_n * G + i_g) * DV + o_v, N.to(tl.int64) * G * DV
    p_k = (i_n * G + i_g) * K + o_k
    # [BK, BV]
    b_out = tl.zeros([BK, BV], ACC)
    if BASE:
        for j in tl.static_range(K):
            b_c = tl.load(rest + p_k * K + j, mask=m_k, other=0.0).to(ACC)
            b_v = tl.load(base + j * plane + o_d, mask=m_v, other=0.0).to(ACC)
            b_out += b_c[:, None] * b_v[None, :]
    for i in range(count):
        b_c = tl.load(weights + p_k * C + i, mask=m_k, other=0.0).to(ACC)
        b_v = tl.load(values + i * plane + o_d, mask=m_v, other=0.0).to(ACC)
        b_out += b_c[:, None] * b_v[None, :]
    p_out = out + o_k[:, None] * plane + o_d[None, :]
    tl.store(p_out, b_out.to(out.dtype.element_ty), mask=m_k[:, None] & m_v[None, :])


@triton.jit(do_not_specialize=["N", "count", "last"])
def fold_bwd_kernel(
    base, values, d_next, rest_next, grads, rests, scales, d_out, d_rest, d_weights, N, count, last,
    G: tl.constexpr, DV: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, ACC: tl.constexpr, BASE: tl.constexpr, NEXT: tl.constexpr,
):  # fmt: skip
    i_g, i_n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_k, o_v = tl.arange(0, BK), tl.arange(0, BV)
    m_k, m_v = o_k < K, o_v < DV
    row = i_n * G + i_g
    o_d, plane = row * DV + o_v, N.to(tl.int64) * G * DV
    # [BK, BV]
    b_d = tl.zeros([BK, BV], ACC)
    if NEXT:
        for j in tl.static_range(K):
            # d_base_k += sum_j rest'_jk d_base'_j
            b_c = tl.load(rest_next + (row * K + j) * K + o_k, mask=m_k, other=0.0).to(ACC)
            b_v = tl.load(d_next + j * plane + o_d, mask=m_v, other=0.0).to(ACC)
            b_d += b_c[:, None] * b_v[None, :]
    for i in range(last):
        # d_base_k += scale rest_k dz, for every read of this base
        p_row = i * N.to(tl.int64) * G + row
        b_c = tl.load(rests + p_row * K + o_k, mask=m_k, other=0.0).to(ACC)
        b_c *= tl.load(scales + p_row).to(ACC)
        b_v = tl.load(grads + i * plane + o_d, mask=m_v, other=0.0).to(ACC)
        b_d += b_c[:, None] * b_v[None, :]
    p_out = d_out + o_k[:, None] * plane + o_d[None, :]
    tl.store(p_out, b_d.to(d_out.dtype.element_ty), mask=m_k[:, None] & m_v[None, :])
    p_k = row * K + o_k
    if BASE:
        for j in tl.static_range(K):
            b_v = tl.load(base + j * plane + o_d, mask=m_v, other=0.0).to(ACC)
            tl.store(d_rest + p_k * K + j, tl.sum(b_d * b_v[None, :], 1), mask=m_k)
    for i in range(count):
        b_v = tl.load(values + i * plane + o_d, mask=m_v, other=0.0).to(ACC)
        tl.store(d_weights + p_k * C + i, tl.sum(b_d * b_v[None, :], 1), mask=m_k)


class Fold(NamedTuple):
    """A fold's coefficients: of the rows before it [N, G, K, K], of the values [N, G, K, C]."""

    rest: Tensor
    weights: Tensor


def _tiles(D: int, groups: int, K: int) -> dict[str, int]:
    DV = D // groups
    BK, BV = triton.next_power_of_2(K), triton.next_power_of_2(DV)
    return {
        "G": groups, "DV": DV, "K": K, "BK": BK, "BV": BV,
        "num_warps": min(max(BK * BV // 2048, 1), 16),
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
        C=fold.weights.shape[-1], ACC=_launch.ACC[fold.rest.dtype], BASE=base is not None,
        **_tiles(D, G, K),
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
        N, count, uses.last,
        C=fold.weights.shape[-1], ACC=_launch.ACC[fold.rest.dtype],
        BASE=base is not None, NEXT=uses.next_grad is not None, **_tiles(D, G, K),
    )  # fmt: skip
    return d_out, d_fold
