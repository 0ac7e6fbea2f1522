"""Read a windowed memory, add the residual stream and norm, in one pass; and its gradients.

    z = h + scale * (sum_i c_i value_i + sum_k rest_k base_k)        x = weight * z / rms(z)

One program holds a whole vector. The backward pass builds `h` and `z` again from what is kept
anyway: the residual stream where the window began, and the values since.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from depth_memory.ops import _launch


@triton.jit(do_not_specialize=["N", "count"])
def read_fwd_kernel(
    h, values, base, weights, rest, scale, norm, out, rstd, N, count, eps,
    G: tl.constexpr, DV: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    BG: tl.constexpr, BV: tl.constexpr, ACC: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    i_n = tl.program_id(0).to(tl.int64)
    o_g, o_v = tl.arange(0, BG), tl.arange(0, BV)
    m_g, m_d = o_g < G, (o_g[:, None] < G) & (o_v[None, :] < DV)
    o_d = o_g[:, None] * DV + o_v[None, :]
    o_nd, plane = i_n * G * DV + o_d, N.to(tl.int64) * G * DV
    p_g = i_n * G + o_g
    # [BG, BV]
    b_z = tl.load(h + o_nd, mask=m_d, other=0.0).to(ACC)
    b_scale = tl.load(scale + p_g, mask=m_g, other=0.0).to(ACC)
    for i in range(count):
        # z += scale c_i value_i
        b_c = tl.load(weights + p_g * C + i, mask=m_g, other=0.0).to(ACC) * b_scale
        b_v = tl.load(values + i * plane + o_nd, mask=m_d, other=0.0).to(ACC)
        b_z += b_c[:, None] * b_v
    for k in tl.static_range(K):
        # z += scale rest_k base_k
        b_c = tl.load(rest + p_g * K + k, mask=m_g, other=0.0).to(ACC) * b_scale
        b_v = tl.load(base + k * plane + o_nd, mask=m_d, other=0.0).to(ACC)
        b_z += b_c[:, None] * b_v
    if NORM:
        b_rstd = tl.rsqrt(tl.sum(tl.sum(b_z * b_z, 1), 0) / (G * DV) + eps)
        tl.store(rstd + i_n, b_rstd)
        b_w = tl.load(norm + o_d, mask=m_d, other=0.0).to(ACC)
        b_z = (b_z * b_rstd).to(out.dtype.element_ty).to(ACC) * b_w
    tl.store(out + o_nd, b_z.to(out.dtype.element_ty), mask=m_d)


@triton.jit
def mean_product_kernel(
    a, b, out, D: tl.constexpr, BD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    i_n, o_d = tl.program_id(0).to(tl.int64), tl.arange(0, BD)
    b_a = tl.load(a + i_n * D + o_d, mask=o_d < D, other=0.0).to(ACC)
    b_b = tl.load(b + i_n * D + o_d, mask=o_d < D, other=0.0).to(ACC)
    tl.store(out + i_n, tl.sum(b_a * b_b, 0) / D)


@triton.jit(do_not_specialize=["N", "ROWS", "count"])
def read_bwd_kernel(
    h, values, base, weights, rest, scale, norm, rstd, mean, d_out,
    h_out, dz, d_weights, d_rest, d_norm, N, ROWS, count,
    G: tl.constexpr, DV: tl.constexpr, C: tl.constexpr, K: tl.constexpr, BV: tl.constexpr,
    BC: tl.constexpr, BK: tl.constexpr, ACC: tl.constexpr,
    START: tl.constexpr, NORM: tl.constexpr,
):  # fmt: skip
    i_g, i_p = tl.program_id(0), tl.program_id(1).to(tl.int64)
    o_v, o_c, o_k = tl.arange(0, BV), tl.arange(0, BC), tl.arange(0, BK)
    m_v, plane = o_v < DV, N.to(tl.int64) * G * DV
    b_dw = tl.zeros([BV], ACC)
    for i_n in range(i_p * ROWS, tl.minimum((i_p + 1) * ROWS, N)):
        row = i_n * G + i_g
        o_nd = row * DV + o_v
        # [BV]
        b_h = tl.zeros([BV], ACC)
        if START:
            b_h += tl.load(h + o_nd, mask=m_v, other=0.0).to(ACC)
        b_z = tl.zeros([BV], ACC)
        for i in range(count):
            b_v = tl.load(values + i * plane + o_nd, mask=m_v, other=0.0).to(ACC)
            b_z += tl.load(weights + row * C + i).to(ACC) * b_v
            # h as the forward pass rounded it
            b_h = (b_h + b_v).to(dz.dtype.element_ty).to(ACC)
        for k in tl.static_range(K):
            b_v = tl.load(base + k * plane + o_nd, mask=m_v, other=0.0).to(ACC)
            b_z += tl.load(rest + row * K + k).to(ACC) * b_v
        b_dz = tl.load(d_out + o_nd, mask=m_v, other=0.0).to(ACC)
        if NORM:
            b_rstd = tl.load(rstd + i_n).to(ACC)
            b_z = (b_h + tl.load(scale + row).to(ACC) * b_z) * b_rstd
            b_dw += b_dz * b_z.to(dz.dtype.element_ty).to(ACC)
            # dz = (d - zhat mean(d zhat)) / rms
            b_w = tl.load(norm + i_g * DV + o_v, mask=m_v, other=0.0).to(ACC)
            b_dz = (b_dz * b_w - b_z * tl.load(mean + i_n).to(ACC)) * b_rstd
        # these stores keep the compiler from holding all rows in registers until the second visit
        tl.store(h_out + o_nd, b_h.to(h_out.dtype.element_ty), mask=m_v)
        tl.store(dz + o_nd, b_dz.to(dz.dtype.element_ty), mask=m_v)
        b_dr = tl.zeros([BK], ACC)
        for k in tl.static_range(K):
            # d_rest_k = dz . base_k, before the scale
            b_v = tl.load(base + k * plane + o_nd, mask=m_v, other=0.0).to(ACC)
            b_dr = tl.where(o_k == k, tl.sum(b_dz * b_v, 0), b_dr)
        b_dc = tl.zeros([BC], ACC)
        for i in range(count):
            # d_weights_i = dz . value_i, before the scale
            b_v = tl.load(values + i * plane + o_nd, mask=m_v, other=0.0).to(ACC)
            b_dc = tl.where(o_c == i, tl.sum(b_dz * b_v, 0), b_dc)
        if K > 0:
            tl.store(d_rest + row * K + o_k, b_dr, mask=o_k < K)
        tl.store(d_weights + row * C + o_c, b_dc, mask=o_c < count)
    if NORM:
        tl.store(d_norm + (i_p * G + i_g) * DV + o_v, b_dw, mask=m_v)


class Norm(NamedTuple):
    """The weight [D] and epsilon of an RMS norm."""

    weight: Tensor
    eps: float


class Reading(NamedTuple):
    """What one read sees of a window: `count` values [n, N, D], the rows of the memory before it,
    and the coefficients of both, of which [N, G] times `scale` counts."""

    values: Tensor
    count: int
    base: Tensor | None
    weights: Tensor
    rest: Tensor
    scale: Tensor


class ReadGradients(NamedTuple):
    """The residual stream once more, and gradients: of the coefficients before their scale, and of
    the norm's weight."""

    h: Tensor
    d_weights: Tensor
    d_rest: Tensor
    d_norm: Tensor | None


def read_forward(h: Tensor, reading: Reading, norm: Norm | None) -> tuple[Tensor, Tensor]:
    """The sublayer's input [N, D], normed or just the sum; and 1 / rms of the sum [N]."""
    N, D = h.shape
    r, out, base = reading, torch.empty_like(h), reading.base
    G, K = r.scale.shape[-1], 0 if base is None else base.shape[0]
    rstd = r.scale.new_empty(N)
    BG, BV = triton.next_power_of_2(G), triton.next_power_of_2(D // G)
    read_fwd_kernel[(N,)](
        h, r.values, h if base is None else base, r.weights, r.rest, r.scale,
        h if norm is None else norm.weight, out, rstd, N, r.count,
        0.0 if norm is None else norm.eps,
        G=G, DV=D // G, C=r.weights.shape[-1], K=K, BG=BG, BV=BV, ACC=_launch.ACC[rstd.dtype],
        NORM=norm is not None, num_warps=min(max(BG * BV // 512, 1), 16),
    )  # fmt: skip
    return out, rstd


def read_backward(
    start: Tensor | None,
    reading: Reading,
    norm: Norm | None,
    out: Tensor,
    rstd: Tensor,
    d_out: Tensor,
    dz: Tensor,
) -> ReadGradients:
    """Gradients of `read_forward`; that of the sum goes to `dz`.

    Args:
        start: The residual stream before the window's first value; None if that value began it.
        reading: As in the forward pass.
        norm: As in the forward pass.
        out: The sublayer's input as it was returned [N, D].
        rstd: As it was returned.
        d_out: Gradient of the sublayer's input [N, D].
        dz: Where the gradient of the sum goes.
    """
    N, D = dz.shape
    r, base, h, d_out = reading, reading.base, torch.empty_like(dz), d_out.contiguous()
    (G, C), K = r.weights.shape[-2:], 0 if base is None else base.shape[0]
    d_weights, d_rest = torch.empty_like(r.weights), torch.empty_like(r.rest)
    ACC, BV, mean = _launch.ACC[rstd.dtype], triton.next_power_of_2(D // G), rstd
    count = max(min(triton.cdiv(N, 4), 8 * _launch.programs(dz.device) // G), 1)
    partial = rstd.new_empty(count, D) if norm is not None else rstd
    if norm is not None:
        # the norm's weight times zhat is the output: no need for zhat itself
        mean, BD = torch.empty_like(rstd), triton.next_power_of_2(D)
        mean_product_kernel[(N,)](
            d_out, out, mean, D=D, BD=BD, ACC=ACC, num_warps=min(max(BD // 512, 1), 16)
        )
    read_bwd_kernel[(G, count)](
        dz if start is None else start, r.values, dz if base is None else base,
        r.weights, r.rest, r.scale, dz if norm is None else norm.weight, rstd, mean, d_out,
        h, dz, d_weights, d_rest, partial, N, triton.cdiv(N, count), r.count,
        G=G, DV=D // G, C=C, K=K, BV=BV, BC=triton.next_power_of_2(C),
        BK=triton.next_power_of_2(max(K, 1)), ACC=ACC, START=start is not None,
        NORM=norm is not None, num_warps=min(max(BV // 512, 1), 8),
    )  # fmt: skip
    # one partial sum per program, added in order: the same from run to run
    d_norm = None if norm is None else partial.sum(0).to(norm.weight.dtype)
    return ReadGradients(h, d_weights, d_rest, d_norm)
