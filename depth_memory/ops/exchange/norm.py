"""Add a sublayer's output to the residual stream and norm the sum, where nothing is read."""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from depth_memory.ops import _launch
from depth_memory.ops.exchange.read import Norm


@triton.jit
def add_norm_fwd_kernel(
    h, y, norm, total, out, eps, D: tl.constexpr, BD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    i_n, o_d = tl.program_id(0).to(tl.int64), tl.arange(0, BD)
    o_nd, m_d = i_n * D + o_d, o_d < D
    b_h = tl.load(h + o_nd, mask=m_d, other=0.0).to(ACC)
    b_h += tl.load(y + o_nd, mask=m_d, other=0.0).to(ACC)
    b_h = b_h.to(total.dtype.element_ty)
    tl.store(total + o_nd, b_h, mask=m_d)
    b_h = b_h.to(ACC)
    # x = weight * h / rms(h)
    rstd = tl.rsqrt(tl.sum(b_h * b_h, 0) / D + eps)
    b_w = tl.load(norm + o_d, mask=m_d, other=0.0).to(ACC)
    b_x = (b_h * rstd).to(out.dtype.element_ty).to(ACC) * b_w
    tl.store(out + o_nd, b_x.to(out.dtype.element_ty), mask=m_d)


@triton.jit(do_not_specialize=["N", "ROWS"])
def add_norm_bwd_kernel(
    total, norm, d_out, d_h, d_y, dh_out, dy_out, d_norm, N, ROWS, eps,
    D: tl.constexpr, BD: tl.constexpr, ACC: tl.constexpr,
):  # fmt: skip
    i_p, o_d = tl.program_id(0).to(tl.int64), tl.arange(0, BD)
    m_d = o_d < D
    b_w = tl.load(norm + o_d, mask=m_d, other=0.0).to(ACC)
    b_dw = tl.zeros([BD], ACC)
    for i_n in range(i_p * ROWS, tl.minimum((i_p + 1) * ROWS, N)):
        o_nd = i_n * D + o_d
        b_z = tl.load(total + o_nd, mask=m_d, other=0.0).to(ACC)
        b_d = tl.load(d_out + o_nd, mask=m_d, other=0.0).to(ACC)
        rstd = tl.rsqrt(tl.sum(b_z * b_z, 0) / D + eps)
        b_z = b_z * rstd
        b_dw += b_d * b_z.to(total.dtype.element_ty).to(ACC)
        b_d = b_d * b_w
        b_d = (b_d - b_z * (tl.sum(b_d * b_z, 0) / D)) * rstd
        b_dh = b_d + tl.load(d_h + o_nd, mask=m_d, other=0.0).to(ACC)
        b_dy = b_d + tl.load(d_y + o_nd, mask=m_d, other=0.0).to(ACC)
        tl.store(dh_out + o_nd, b_dh.to(dh_out.dtype.element_ty), mask=m_d)
        tl.store(dy_out + o_nd, b_dy.to(dy_out.dtype.element_ty), mask=m_d)
    tl.store(d_norm + i_p * D + o_d, b_dw, mask=m_d)


def _tiles(D: int, like: Tensor) -> dict[str, object]:
    BD, ACC = triton.next_power_of_2(D), _launch.accumulator((like,))
    return {"D": D, "BD": BD, "ACC": ACC, "num_warps": min(max(BD // 512, 1), 16)}


def add_norm_forward(h: Tensor, y: Tensor, norm: Norm) -> tuple[Tensor, Tensor]:
    """`h + y` and its norm, rows [N, D]."""
    N, D = h.shape
    total, out = torch.empty_like(h), torch.empty_like(h)
    add_norm_fwd_kernel[(N,)](h, y, norm.weight, total, out, norm.eps, **_tiles(D, h))
    return total, out


def add_norm_backward(
    total: Tensor, norm: Norm, d_out: Tensor, d_h: Tensor, d_y: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients of `h`, `y` and the norm's weight; `d_h` and `d_y` are what came by other ways."""
    N, D = total.shape
    dh, dy = torch.empty_like(total), torch.empty_like(total)
    rows = max(triton.cdiv(N, 2 * _launch.programs(total.device)), 1)
    count = max(triton.cdiv(N, rows), 1)
    partial = total.new_empty(count, D, dtype=_launch.compute_dtype((total,)))
    add_norm_bwd_kernel[(count,)](
        total, norm.weight, d_out.contiguous(), d_h.contiguous(), d_y.contiguous(),
        dh, dy, partial, N, rows, norm.eps, **_tiles(D, total),
    )  # fmt: skip
    # one partial sum per program, added in order: the same from run to run
    return dh, dy, partial.sum(0).to(norm.weight.dtype)
