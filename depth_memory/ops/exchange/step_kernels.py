"""The kernels of `step.py`: latents over slices of the channels, and all else per token.

Names follow the reference. A program of `step_kernel` has one token: [BG, BK] for its keys and
queries, [BV, BK] for a piece of its memory.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def latents_kernel(
    h, y, a, b, write_weight, read_weight, total, partial, N,
    D: tl.constexpr, RW: tl.constexpr, RR: tl.constexpr, BW: tl.constexpr, BR: tl.constexpr,
    BD: tl.constexpr, ACC: tl.constexpr, ADD: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    i_n, i_s = tl.program_id(0).to(tl.int64), tl.program_id(1)
    o_d, o_w, o_r = i_s * BD + tl.arange(0, BD), tl.arange(0, BW), tl.arange(0, BR)
    m_d, o_nd = o_d < D, i_n * D + o_d
    b_h = tl.load(h + o_nd, mask=m_d, other=0.0)
    if ADD:
        b_y = tl.load(y + o_nd, mask=m_d, other=0.0)
        b_h = (b_h.to(ACC) + b_y.to(ACC)).to(total.dtype.element_ty)
    tl.store(total + o_nd, b_h, mask=m_d)
    b_v = tl.load(a + o_nd, mask=m_d, other=0.0)
    if SUM:
        b_b = tl.load(b + o_nd, mask=m_d, other=0.0)
        b_v = (b_v.to(ACC) + b_b.to(ACC)).to(total.dtype.element_ty)
    b_h, b_v = b_h.to(ACC), b_v.to(ACC)
    # rows of what each slice adds: latents of the value and of h, and their squares
    WIDTH: tl.constexpr = RW + RR + 2
    p_out = partial + (i_n * tl.num_programs(1) + i_s) * WIDTH
    m_wd = (o_w[:, None] < RW) & m_d[None, :]
    b_w = tl.load(write_weight + o_w[:, None] * D + o_d[None, :], mask=m_wd, other=0.0)
    tl.store(p_out + o_w, tl.sum(b_w.to(ACC) * b_v[None, :], 1), mask=o_w < RW)
    m_rd = (o_r[:, None] < RR) & m_d[None, :]
    b_r = tl.load(read_weight + o_r[:, None] * D + o_d[None, :], mask=m_rd, other=0.0)
    tl.store(p_out + RW + o_r, tl.sum(b_r.to(ACC) * b_h[None, :], 1), mask=o_r < RR)
    tl.store(p_out + RW + RR, tl.sum(b_v * b_v, 0))
    tl.store(p_out + RW + RR + 1, tl.sum(b_h * b_h, 0))


@triton.jit
def latent(
    partial, square, bias, i_n, R: tl.constexpr, B: tl.constexpr, S: tl.constexpr,
    BS: tl.constexpr, WIDTH: tl.constexpr, D: tl.constexpr, EPS: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """[B]: the slices added up, over the root mean square, plus the bias."""
    o_r, o_s = tl.arange(0, B), tl.arange(0, BS)
    p_s = (i_n * S + o_s) * WIDTH
    m_sr = (o_s[:, None] < S) & (o_r[None, :] < R)
    b_sum = tl.sum(tl.load(partial + p_s[:, None] + o_r[None, :], mask=m_sr, other=0.0), 0)
    b_square = tl.sum(tl.load(square + p_s, mask=o_s < S, other=0.0), 0)
    b_bias = tl.load(bias + o_r, mask=o_r < R, other=0.0).to(ACC)
    return b_sum * tl.rsqrt(b_square / D + EPS) + b_bias


@triton.jit
def mapped(
    x, weight, bias, G: tl.constexpr, K: tl.constexpr, R: tl.constexpr, BG: tl.constexpr,
    BK: tl.constexpr, B: tl.constexpr, EACH: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    """`W x + b` as [BG, BK]; the same row for every group unless EACH."""
    o_g, o_k, o_r = tl.arange(0, BG), tl.arange(0, BK), tl.arange(0, B)
    o_gk = o_g[:, None] * K * EACH + o_k[None, :]
    m_gk = (o_g[:, None] < G) & (o_k[None, :] < K)
    m_gkr = m_gk[:, :, None] & (o_r[None, None, :] < R)
    b_w = tl.load(weight + o_gk[:, :, None] * R + o_r[None, None, :], mask=m_gkr, other=0.0)
    b_b = tl.load(bias + o_gk, mask=m_gk, other=0.0).to(ACC)
    return tl.sum(b_w.to(ACC) * x[None, None, :], 2) + b_b


@triton.jit
def scalars(
    x, weight, bias, G: tl.constexpr, R: tl.constexpr, BG: tl.constexpr, B: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    """`W x + b` as [BG]."""
    o_g, o_r = tl.arange(0, BG), tl.arange(0, B)
    m_gr = (o_g[:, None] < G) & (o_r[None, :] < R)
    b_w = tl.load(weight + o_g[:, None] * R + o_r[None, :], mask=m_gr, other=0.0).to(ACC)
    return tl.sum(b_w * x[None, :], 1) + tl.load(bias + o_g, mask=o_g < G, other=0.0).to(ACC)


@triton.jit
def sigmoid(x):
    return 1.0 / (1.0 + tl.exp(-x))


@triton.jit
def softplus(x):
    return tl.maximum(x, 0.0) + tl.log(1.0 + tl.exp(-tl.abs(x)))


@triton.jit
def normed(x, NORM: tl.constexpr, K: tl.constexpr):
    """Rows of length 1, of root mean square 1, or as they are."""
    if NORM == 0:
        return x
    else:
        size = tl.maximum(tl.sqrt(tl.sum(x * x, 1)), 1e-6)
        unit = x / size[:, None]
        return unit if NORM == 1 else unit * K**0.5


@triton.jit
def observed(
    b_l, key, key_bias, weigh, weigh_bias, logit, log_floor, P, P_out, i_n,
    G: tl.constexpr, K: tl.constexpr, R: tl.constexpr, BG: tl.constexpr, BK: tl.constexpr,
    BR: tl.constexpr, ACC: tl.constexpr, RULE: tl.constexpr, NORM: tl.constexpr,
    WEIGH: tl.constexpr, EACH: tl.constexpr, FORGET: tl.constexpr,
):  # fmt: skip
    """Gain and erase [BG, BK] and keep [BG] of a write, from its latent; P moves on."""
    o_g, o_k = tl.arange(0, BG), tl.arange(0, BK)
    m_g, m_k = o_g < G, o_k < K
    b_k = normed(mapped(b_l, key, key_bias, G, K, R, BG, BK, BR, EACH, ACC), NORM, K)
    b_w = tl.full([BG], 1.0, ACC)
    if WEIGH:
        b_w = scalars(b_l, weigh, weigh_bias, G, R, BG, BR, ACC)
        b_w = sigmoid(b_w) if WEIGH == 1 else softplus(b_w)
    b_f = tl.full([BG], 1.0, ACC)
    if FORGET:
        b_f = tl.exp(log_floor * sigmoid(tl.load(logit + o_g, mask=m_g, other=0.0).to(ACC)))
    if RULE == 0:
        p_P = (i_n * G + o_g[:, None, None]) * K * K + o_k[None, :, None] * K + o_k[None, None, :]
        m_P = m_g[:, None, None] & m_k[None, :, None] & m_k[None, None, :]
        b_P = tl.load(P + p_P, mask=m_P, other=0.0)
        b_u = tl.sum(b_P * b_k[:, None, :], 2)
        b_b = b_w / (b_f + b_w * tl.sum(b_k * b_u, 1))
        # symmetric to the last bit, as the reference
        b_P = (b_P - b_b[:, None, None] * (b_u[:, :, None] * b_u[:, None, :])) / b_f[:, None, None]
        tl.store(P_out + p_P, b_P, mask=m_P)
        return b_b[:, None] * b_u, b_k, tl.full([BG], 1.0, ACC)
    elif RULE == 1:
        return b_w[:, None] * b_k, b_k, b_f
    else:
        return b_w[:, None] * b_k, tl.zeros([BG, BK], ACC), b_f


@triton.jit
def row_of(x, of):
    """The row [BK] of one group."""
    return tl.sum(tl.where(of[:, None], x, 0.0), 0)


@triton.jit
def advanced(
    h, a, b, M, M_out, out, b_gain, b_erase, b_keep, b_query, b_scale, i_n,
    G: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BG: tl.constexpr, BK: tl.constexpr,
    BV: tl.constexpr, ACC: tl.constexpr, FIRST: tl.constexpr, SUM: tl.constexpr,
):  # fmt: skip
    """Write the memory of a token and what it gives to `out`; returns the sum of its squares."""
    DV: tl.constexpr = D // G
    CHUNKS: tl.constexpr = (DV + BV - 1) // BV
    o_g, o_k = tl.arange(0, BG), tl.arange(0, BK)
    b_square = tl.zeros([BV], ACC)
    for i_c in range(0, G * CHUNKS):
        i_g = i_c // CHUNKS
        o_v = (i_c - i_g * CHUNKS) * BV + tl.arange(0, BV)
        m_v, o_nd, of = o_v < DV, i_n * D + i_g * DV + o_v, o_g == i_g
        b_v = tl.load(a + o_nd, mask=m_v, other=0.0)
        if SUM:
            b_b = tl.load(b + o_nd, mask=m_v, other=0.0)
            b_v = (b_v.to(ACC) + b_b.to(ACC)).to(h.dtype.element_ty)
        b_v, b_g = b_v.to(ACC), row_of(b_gain, of)
        p_M, m_M = o_nd[:, None] * K + o_k[None, :], m_v[:, None] & (o_k[None, :] < K)
        # M' = keep M + (v - keep M erase) gain'
        if FIRST:
            b_M = b_v[:, None] * b_g[None, :]
        else:
            keep = tl.sum(tl.where(of, b_keep, 0.0), 0)
            b_M = keep * tl.load(M + p_M, mask=m_M, other=0.0)
            b_kept = tl.sum(b_M * row_of(b_erase, of)[None, :], 1)
            b_M += (b_v - b_kept)[:, None] * b_g[None, :]
        tl.store(M_out + p_M, b_M, mask=m_M)
        # z = h + scale M' q
        b_y = tl.sum(b_M * row_of(b_query, of)[None, :], 1) * tl.sum(tl.where(of, b_scale, 0.0), 0)
        b_z = (tl.load(h + o_nd, mask=m_v, other=0.0).to(ACC) + b_y).to(out.dtype.element_ty)
        tl.store(out + o_nd, b_z, mask=m_v)
        b_square += b_z.to(ACC) * b_z.to(ACC)
    return tl.sum(b_square, 0)


@triton.jit
def step_kernel(
    h, a, b, partial, write_bias, key, key_bias, weigh, weigh_bias, logit, log_floor,
    read_bias, query, query_bias, gate, gate_bias, gain, M, P, norm, M_out, P_out, out, N, eps,
    G: tl.constexpr, K: tl.constexpr, D: tl.constexpr, RW: tl.constexpr, RR: tl.constexpr,
    S: tl.constexpr, BG: tl.constexpr, BK: tl.constexpr, BW: tl.constexpr, BR: tl.constexpr,
    BS: tl.constexpr, BV: tl.constexpr, EPS: tl.constexpr, ACC: tl.constexpr, RULE: tl.constexpr,
    KEY_NORM: tl.constexpr, QUERY_NORM: tl.constexpr, WEIGH: tl.constexpr, EACH: tl.constexpr,
    FORGET: tl.constexpr, GATE: tl.constexpr, FIRST: tl.constexpr, SUM: tl.constexpr,
    NORM: tl.constexpr,
):  # fmt: skip
    i_n = tl.program_id(0).to(tl.int64)
    WIDTH: tl.constexpr = RW + RR + 2
    b_l = latent(partial, partial + RW + RR, write_bias, i_n, RW, BW, S, BS, WIDTH, D, EPS, ACC)
    b_gain, b_erase, b_keep = observed(
        b_l, key, key_bias, weigh, weigh_bias, logit, log_floor, P, P_out, i_n,
        G, K, RW, BG, BK, BW, ACC, RULE, KEY_NORM, WEIGH, EACH, FORGET,
    )  # fmt: skip
    b_l = latent(
        partial + RW, partial + RW + RR + 1, read_bias, i_n, RR, BR, S, BS, WIDTH, D, EPS, ACC
    )
    b_q = normed(mapped(b_l, query, query_bias, G, K, RR, BG, BK, BR, 1, ACC), QUERY_NORM, K)
    b_scale = tl.load(gain + tl.arange(0, BG), mask=tl.arange(0, BG) < G, other=0.0).to(ACC)
    if GATE:
        b_scale *= sigmoid(scalars(b_l, gate, gate_bias, G, RR, BG, BR, ACC))
    square = advanced(
        h, a, b, M, M_out, out, b_gain, b_erase, b_keep, b_q, b_scale, i_n,
        G, K, D, BG, BK, BV, ACC, FIRST, SUM,
    )  # fmt: skip
    if NORM:
        # x = weight z / rms(z), of what the program has written
        tl.debug_barrier()
        rstd = tl.rsqrt(square / D + eps)
        for i_c in range(0, tl.cdiv(D, BV)):
            o_d = i_c * BV + tl.arange(0, BV)
            b_z = tl.load(out + i_n * D + o_d, mask=o_d < D, other=0.0).to(ACC)
            b_w = tl.load(norm + o_d, mask=o_d < D, other=0.0).to(ACC)
            b_x = (b_z * rstd).to(out.dtype.element_ty).to(ACC) * b_w
            tl.store(out + i_n * D + o_d, b_x.to(out.dtype.element_ty), mask=o_d < D)
