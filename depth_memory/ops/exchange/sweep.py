"""Carry queries back through the writes of a window; and the gradient of that.

    c_i = gain_i . x        x <- keep_i (x - c_i erase_i)        from the newest write to the oldest

Rows are pairs of a token and a group, R the queries of each: one for a read, and the K unit vectors
for a fold. A gradient is added to what other reads of the same window have left there.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from depth_memory.ops import _launch


@triton.jit(do_not_specialize=["ROWS", "count"])
def sweep_fwd_kernel(
    query, scale, gains, erases, keeps, weights, rest, scale_out, ROWS, count,
    G: tl.constexpr, KEYS: tl.constexpr, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    BN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
    UNIT: tl.constexpr, ERASE: tl.constexpr, KEEP: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_r, o_k = tl.arange(0, BR), tl.arange(0, BK)
    m_n = o_n < ROWS
    m_nk, m_nr = m_n[:, None] & (o_k[None, :] < K), m_n[:, None] & (o_r[None, :] < R)
    m_x = m_nr[:, :, None] & (o_k[None, None, :] < K)
    o_x = (o_n[:, None, None] * R + o_r[None, :, None]) * K + o_k[None, None, :]
    i_key = o_n // G * KEYS + (o_n % G) * (KEYS // G)
    if UNIT:
        b_x = tl.where((o_r[None, :, None] == o_k[None, None, :]) & m_x, 1.0, 0.0).to(ACC)
    else:
        b_x = tl.load(query + o_x, mask=m_x, other=0.0).to(ACC)
        tl.store(scale_out + o_n, tl.load(scale + o_n, mask=m_n, other=0.0), mask=m_n)
    keys = ROWS.to(tl.int64) // G * KEYS
    for step in range(count):
        i = count - 1 - step
        p_g = gains + (i * ROWS.to(tl.int64) + o_n[:, None]) * K + o_k[None, :]
        b_g = tl.load(p_g, mask=m_nk, other=0.0).to(ACC)
        # c = gain . x
        b_c = tl.sum(b_x * b_g[:, None, :], 2)
        p_c = weights + (o_n[:, None] * R + o_r[None, :]) * C + i
        tl.store(p_c, b_c, mask=m_nr)
        if ERASE:
            p_e = erases + (i * keys + i_key[:, None]) * K + o_k[None, :]
            b_e = tl.load(p_e, mask=m_nk, other=0.0).to(ACC)
            b_x -= b_c[:, :, None] * b_e[:, None, :]
        if KEEP:
            b_x *= tl.load(keeps + i * G + o_n % G, mask=m_n, other=1.0).to(ACC)[:, None, None]
    tl.store(rest + o_x, b_x, mask=m_x)


@triton.jit(do_not_specialize=["ROWS", "count"])
def sweep_bwd_kernel(
    gains, erases, keeps, weights, rest, d_weights, d_rest, scale,
    d_query, d_scale, d_gains, d_erases, d_keeps, ROWS, count,
    G: tl.constexpr, KEYS: tl.constexpr, K: tl.constexpr, R: tl.constexpr, C: tl.constexpr,
    BN: tl.constexpr, BR: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
    REST: tl.constexpr, ERASE: tl.constexpr, KEEP: tl.constexpr, SCALE: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_r, o_k = tl.arange(0, BR), tl.arange(0, BK)
    m_n = o_n < ROWS
    m_nk, m_nr = m_n[:, None] & (o_k[None, :] < K), m_n[:, None] & (o_r[None, :] < R)
    m_x = m_nr[:, :, None] & (o_k[None, None, :] < K)
    o_x = (o_n[:, None, None] * R + o_r[None, :, None]) * K + o_k[None, None, :]
    i_key = o_n // G * KEYS + (o_n % G) * (KEYS // G)
    keys = ROWS.to(tl.int64) // G * KEYS
    # the query as each write found it, from the last back to the first
    b_x = tl.load(rest + o_x, mask=m_x, other=0.0).to(ACC)
    b_a = tl.zeros([BN, BR, BK], ACC)
    b_scale = tl.full([BN], 1.0, ACC)
    b_ds = tl.zeros([BN], ACC)
    if SCALE:
        b_scale = tl.load(scale + o_n, mask=m_n, other=0.0).to(ACC)
    if REST:
        b_a = tl.load(d_rest + o_x, mask=m_x, other=0.0).to(ACC)
        b_ds += tl.sum(tl.sum(b_a * b_x, 2), 1)
        b_a *= b_scale[:, None, None]
    for i in range(count):
        o_i = (i * ROWS.to(tl.int64) + o_n[:, None]) * K + o_k[None, :]
        o_c = (o_n[:, None] * R + o_r[None, :]) * C + i
        b_g = tl.load(gains + o_i, mask=m_nk, other=0.0).to(ACC)
        b_c = tl.load(weights + o_c, mask=m_nr, other=0.0).to(ACC)
        b_dc = tl.load(d_weights + o_c, mask=m_nr, other=0.0).to(ACC)
        b_ds += tl.sum(b_dc * b_c, 1)
        b_dc *= b_scale[:, None]
        if KEEP:
            b_keep = tl.load(keeps + i * G + o_n % G, mask=m_n, other=1.0).to(ACC)
            b_x = b_x / b_keep[:, None, None]
            p_dk = d_keeps + i * ROWS.to(tl.int64) + o_n
            b_dk = tl.load(p_dk, mask=m_n, other=0.0).to(ACC)
            tl.store(p_dk, b_dk + tl.sum(tl.sum(b_a * b_x, 2), 1), mask=m_n)
            b_a *= b_keep[:, None, None]
        if ERASE:
            p_e = erases + (i * keys + i_key[:, None]) * K + o_k[None, :]
            b_e = tl.load(p_e, mask=m_nk, other=0.0).to(ACC)
            b_x += b_c[:, :, None] * b_e[:, None, :]
            b_de = tl.load(d_erases + o_i, mask=m_nk, other=0.0).to(ACC)
            tl.store(d_erases + o_i, b_de - tl.sum(b_c[:, :, None] * b_a, 1), mask=m_nk)
            b_dc -= tl.sum(b_a * b_e[:, None, :], 2)
        b_dg = tl.load(d_gains + o_i, mask=m_nk, other=0.0).to(ACC)
        tl.store(d_gains + o_i, b_dg + tl.sum(b_dc[:, :, None] * b_x, 1), mask=m_nk)
        b_a += b_dc[:, :, None] * b_g[:, None, :]
    if SCALE:
        tl.store(d_query + o_x, b_a, mask=m_x)
        tl.store(d_scale + o_n, b_ds, mask=m_n)


class Writes(NamedTuple):
    """The writes of a window: gain [n, N, G, K], erase [n, N, G or 1, K] and keep [n, G].

    Without `erase` nothing is taken back, without `keep` nothing is forgotten.
    """

    gain: Tensor
    erase: Tensor | None
    keep: Tensor | None


class WriteGradients(NamedTuple):
    """Gradients of the writes, each for every token and group: [n, N, G, K], and [n, N, G]."""

    gain: Tensor
    erase: Tensor
    keep: Tensor


class Swept(NamedTuple):
    """What is left of queries carried back: for a read, weights [N, G, C], rest [N, G, K] and what
    scales them [N, G]; for a fold, weights [N, G, K, C] and rest [N, G, K, K], not scaled."""

    weights: Tensor
    rest: Tensor
    scale: Tensor | None

    @property
    def queries(self) -> int:
        """How many queries a row has."""
        return self.rest.shape[2] if self.rest.dim() == 4 else 1


def _options(writes: Writes, R: int) -> dict[str, Any]:
    G, K = writes.gain.shape[2:]
    BK, BR = triton.next_power_of_2(K), triton.next_power_of_2(R)
    BN = min(max(512 // (BK * BR), 1), 64)
    return {
        "G": G, "KEYS": G if writes.erase is None else writes.erase.shape[2], "K": K, "R": R,
        "BK": BK, "BR": BR, "BN": BN, "num_warps": 4, "ACC": _launch.ACC[writes.gain.dtype],
        "ERASE": writes.erase is not None, "KEEP": writes.keep is not None,
    }  # fmt: skip


def sweep_forward(
    query: Tensor | None, scale: Tensor | None, writes: Writes, count: int, out: Swept
) -> None:
    """Carry queries back through the first `count` writes.

    Args:
        query: [N, G, K]; None stands for the K unit vectors.
        scale: [N, G], kept beside the result; None for the unit vectors.
        writes: Of which `count` have been made.
        count: How many.
        out: What is filled, the weights up to `count`.
    """
    rows = writes.gain.shape[1] * writes.gain.shape[2]
    options = _options(writes, out.queries)
    rest = out.rest
    sweep_fwd_kernel[(triton.cdiv(rows, options["BN"]),)](
        rest if query is None else query, rest if scale is None else scale, writes.gain,
        rest if writes.erase is None else writes.erase,
        rest if writes.keep is None else writes.keep,
        out.weights, rest, rest if out.scale is None else out.scale, rows, count,
        C=out.weights.shape[-1], UNIT=query is None, **options,
    )  # fmt: skip


def sweep_backward(
    writes: Writes,
    count: int,
    swept: Swept,
    d_weights: Tensor,
    d_rest: Tensor | None,
    grads: WriteGradients,
) -> tuple[Tensor, Tensor]:
    """Add to `grads`; return the gradients of the query and of the scale [N, G].

    `d_weights` and `d_rest` are the gradients of the scaled coefficients, of the shapes of those in
    `swept`. A fold has no query and no scale: what is returned for them means nothing.
    """
    rows = writes.gain.shape[1] * writes.gain.shape[2]
    options = _options(writes, swept.queries)
    weights, rest, scale = swept
    d_query = torch.empty_like(rest)
    d_scale = rest if scale is None else torch.empty_like(scale)
    sweep_bwd_kernel[(triton.cdiv(rows, options["BN"]),)](
        writes.gain, rest if writes.erase is None else writes.erase,
        rest if writes.keep is None else writes.keep, weights, rest, d_weights,
        rest if d_rest is None else d_rest, rest if scale is None else scale,
        d_query, d_scale, *grads, rows, count,
        C=weights.shape[-1], REST=d_rest is not None, SCALE=scale is not None, **options,
    )  # fmt: skip
    return d_query, d_scale
