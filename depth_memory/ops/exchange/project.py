"""Add two vectors and project the sum to a latent, in one pass; and the gradient of both.

    s = a + b        latent = (s W') / rms(s)

The backward pass also adds up everything that reads of the sum sent back: gradients of reads by the
coefficient each gave it, and the gradient of the memory it was folded into.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from depth_memory.ops import _launch

EPS = 1e-6
"""Added to the mean square of what a latent sees."""


SHARED = 96 * 1024
"""Bytes of shared memory that a program may take: sm_89 has the least, 99 KiB."""


@triton.jit
def product(x, w, ACC: tl.constexpr, HALF: tl.constexpr):
    """`x @ w`, added up in ACC; on matrix units where the operands are half precision."""
    if HALF:
        return tl.dot(x, w)
    elif ACC == tl.float64:  # noqa: SIM300 - a constant of the compiler, not of Python
        return tl.sum(x.to(ACC)[:, :, None] * w.to(ACC)[None, :, :], 1)
    else:
        return tl.dot(x.to(ACC), w.to(ACC), input_precision="ieee")


@triton.jit(do_not_specialize=["N"])
def project_fwd_kernel(
    a, b, out, weight, latent, rstd, N, eps,
    D: tl.constexpr, R: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
    ACC: tl.constexpr, HALF: tl.constexpr, ADD: tl.constexpr, STORE: tl.constexpr,
):  # fmt: skip
    i_n = tl.program_id(0).to(tl.int64)
    o_n, o_r = i_n * BN + tl.arange(0, BN), tl.arange(0, BR)
    # [BN, BR]
    b_p = tl.zeros([BN, BR], ACC)
    b_square = tl.zeros([BN, BD], ACC)
    for i_d in range(0, tl.cdiv(D, BD)):
        o_d = i_d * BD + tl.arange(0, BD)
        m_nd = (o_n[:, None] < N) & (o_d[None, :] < D)
        o_nd = o_n[:, None] * D + o_d[None, :]
        b_s = tl.load(a + o_nd, mask=m_nd, other=0.0)
        if ADD:
            b_b = tl.load(b + o_nd, mask=m_nd, other=0.0)
            b_s = (b_s.to(ACC) + b_b.to(ACC)).to(a.dtype.element_ty)
        if STORE:
            tl.store(out + o_nd, b_s, mask=m_nd)
        m_w = (o_d[:, None] < D) & (o_r[None, :] < R)
        b_w = tl.load(weight + o_r[None, :] * D + o_d[:, None], mask=m_w, other=0.0)
        b_p += product(b_s, b_w, ACC, HALF)
        b_square += b_s.to(ACC) * b_s.to(ACC)
    # latent = (s W') / rms(s)
    b_scale = tl.rsqrt(tl.sum(b_square, 1) / D + eps)
    m_nr = (o_n[:, None] < N) & (o_r[None, :] < R)
    tl.store(latent + o_n[:, None] * R + o_r[None, :], b_p * b_scale[:, None], mask=m_nr)
    tl.store(rstd + o_n, b_scale, mask=o_n < N)


@triton.jit(do_not_specialize=["N", "first", "last", "index"])
def project_bwd_kernel(
    s, weight, latent, rstd, d_latent, d_in, d_read, grads, weights, scales, fold, d_base,
    out, pull, N, first, last, index,
    G: tl.constexpr, DV: tl.constexpr, D: tl.constexpr, C: tl.constexpr, K: tl.constexpr,
    R: tl.constexpr, BN: tl.constexpr, BR: tl.constexpr, BD: tl.constexpr,
    ACC: tl.constexpr, HALF: tl.constexpr, IN: tl.constexpr, READ: tl.constexpr,
):  # fmt: skip
    i_c, i_n = tl.program_id(0), tl.program_id(1).to(tl.int64)
    CHUNKS: tl.constexpr = (DV + BD - 1) // BD
    i_g, i_d = i_c // CHUNKS, i_c % CHUNKS
    o_n, o_v, o_r = i_n * BN + tl.arange(0, BN), i_d * BD + tl.arange(0, BD), tl.arange(0, BR)
    o_d, m_d, m_n, plane = i_g * DV + o_v, o_v < DV, o_n < N, N.to(tl.int64) * D
    m_nd, o_nd = m_n[:, None] & m_d[None, :], o_n[:, None] * D + o_d[None, :]
    m_nr, o_nr = m_n[:, None] & (o_r[None, :] < R), o_n[:, None] * R + o_r[None, :]
    b_dl = tl.load(d_latent + o_nr, mask=m_nr, other=0.0).to(ACC)
    b_l = tl.load(latent + o_nr, mask=m_nr, other=0.0).to(ACC)
    b_scale = tl.load(rstd + o_n, mask=m_n, other=0.0).to(ACC)
    b_a = (b_dl * b_scale[:, None]).to(s.dtype.element_ty)
    if i_c == 0:
        tl.store(pull + o_nr, b_a, mask=m_nr)
    # ds = (d_latent / rms) W - (d_latent . latent) s / (D rms^2)
    b_back = tl.sum(b_dl * b_l, 1) * b_scale * b_scale / D
    b_ds = -b_back[:, None] * tl.load(s + o_nd, mask=m_nd, other=0.0).to(ACC)
    if IN:
        b_ds += tl.load(d_in + o_nd, mask=m_nd, other=0.0).to(ACC)
    if READ:
        b_ds += tl.load(d_read + o_nd, mask=m_nd, other=0.0).to(ACC)
    o_g = o_n * G + i_g
    for i in range(first, last):
        # ds += coefficient in read i * gradient of read i
        p_row = i * N.to(tl.int64) * G + o_g
        b_c = tl.load(weights + p_row * C + index, mask=m_n, other=0.0).to(ACC)
        b_c *= tl.load(scales + p_row, mask=m_n, other=0.0).to(ACC)
        b_g = tl.load(grads + i * plane + o_nd, mask=m_nd, other=0.0).to(ACC)
        b_ds += b_c[:, None] * b_g
    for k in tl.static_range(K):
        # ds += coefficient in row k of the memory * gradient of row k
        b_c = tl.load(fold + (o_g * K + k) * C + index, mask=m_n, other=0.0).to(ACC)
        b_g = tl.load(d_base + k * plane + o_nd, mask=m_nd, other=0.0).to(ACC)
        b_ds += b_c[:, None] * b_g
    # the product last: what comes from matrix units lies differently in registers
    m_w = (o_r[:, None] < R) & m_d[None, :]
    b_w = tl.load(weight + o_r[:, None] * D + o_d[None, :], mask=m_w, other=0.0)
    b_ds += product(b_a, b_w, ACC, HALF)
    tl.store(out + o_nd, b_ds.to(out.dtype.element_ty), mask=m_nd)


class Returns(NamedTuple):
    """What reads of a vector send back to it, in a form that is never expanded.

    Reads `first` to `last` of a window gave the vector the coefficients `weights[i, ..., index]`
    times `scales[i]` and have the gradients `grads[i]`; the memory that it was folded into has the
    gradient `base`, row by row, and took it with the coefficients `fold[..., index]`.
    """

    grads: Tensor
    weights: Tensor
    scales: Tensor
    first: int
    last: int
    index: int
    fold: Tensor | None = None
    base: Tensor | None = None


def is_half(x: Tensor) -> bool:
    """Whether products go to the matrix units as they are; the interpreter has none."""
    return x.is_cuda and x.dtype in (torch.bfloat16, torch.float16)


def block_of_channels(width: int, bytes_each: int, taken: int = 0) -> int:
    """The block of `width` channels, at most 128, whose operands leave room for what is `taken`."""
    room = max((SHARED - taken) // bytes_each, 16)
    return _launch.block_of(width, min(1 << (room.bit_length() - 1), 128))


def project_forward(
    a: Tensor, b: Tensor | None, weight: Tensor, out: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Latent [N, R] and 1 / rms [N] of `a + b`, rows [N, D]; the sum goes to `out`, if given."""
    (N, D), R = a.shape, weight.shape[0]
    dtype = _launch.compute_dtype((a, weight))
    latent, rstd = a.new_empty(N, R, dtype=dtype), a.new_empty(N, dtype=dtype)
    BN, BR, stages = 64 if N > 16 else 16, _launch.block_of(R, 4096), 3
    # a stage of the pipeline holds a block of each operand; the last is in registers
    BD = block_of_channels(D, (2 * BN + BR) * a.element_size() * (stages - 1))
    project_fwd_kernel[(triton.cdiv(N, BN),)](
        a, a if b is None else b, a if out is None else out, weight, latent, rstd, N, EPS,
        D=D, R=R, BN=BN, BR=BR, BD=BD,
        ACC=_launch.ACC[dtype], HALF=is_half(a), ADD=b is not None, STORE=out is not None,
        num_warps=4, num_stages=stages,
    )  # fmt: skip
    return latent, rstd


def project_backward(
    s: Tensor,
    weight: Tensor,
    latent: Tensor,
    rstd: Tensor,
    d_latent: Tensor,
    d_in: Tensor | None,
    d_read: Tensor | None,
    returns: Returns | None,
    groups: int,
) -> tuple[Tensor, Tensor]:
    """Gradients of the sum [N, D] and of the weight [R, D]."""
    (N, D), R = s.shape, weight.shape[0]
    out, pull, dtype = torch.empty_like(s), s.new_empty(N, R), latent.dtype
    DV, none = D // groups, latent
    BN, BR, size = 16, _launch.block_of(R, 4096), s.element_size()
    BD = block_of_channels(DV, BR * size, BN * BR * size)
    r = returns or Returns(none, none, none, 0, 0, 0)
    project_bwd_kernel[(groups * triton.cdiv(DV, BD), triton.cdiv(N, BN))](
        s, weight, latent, rstd, d_latent.contiguous(),
        none if d_in is None else d_in.contiguous(), none if d_read is None else d_read,
        r.grads, r.weights, r.scales,
        none if r.fold is None else r.fold, none if r.base is None else r.base,
        out, pull, N, r.first, r.last, r.index,
        G=groups, DV=DV, D=D, C=r.weights.shape[-1], K=0 if r.base is None else r.base.shape[0],
        R=R, BN=BN, BR=BR, BD=BD,
        ACC=_launch.ACC[dtype], HALF=is_half(s), IN=d_in is not None, READ=d_read is not None,
        num_warps=4,
    )  # fmt: skip
    return out, pull.mT @ s
