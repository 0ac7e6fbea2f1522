"""The step of the inverse covariance, which the keys alone decide; and its gradient.

    u = P k    b = importance / (forgetting + importance k'u)    gain = b u
    P' = (P - b u u') / forgetting

Rows are pairs of a token and a group.
"""

from __future__ import annotations

import torch
import triton
import triton.language as tl
from torch import Tensor

from depth_memory.ops import _launch


@triton.jit(do_not_specialize=["ROWS"])
def rls_fwd_kernel(
    P, key, forgetting, importance, gain, erase, P_out, ROWS,
    G: tl.constexpr, KEYS: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ACC: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)
    m_n = o_n < ROWS
    m_nk = m_n[:, None] & (o_k[None, :] < K)
    m_P = m_nk[:, :, None] & (o_k[None, None, :] < K)
    o_P = (o_n[:, None, None] * K + o_k[None, :, None]) * K + o_k[None, None, :]
    i_key = o_n // G * KEYS + (o_n % G) * (KEYS // G)
    b_P = tl.load(P + o_P, mask=m_P, other=0.0).to(ACC)
    b_k = tl.load(key + i_key[:, None] * K + o_k[None, :], mask=m_nk, other=0.0).to(ACC)
    b_f = tl.load(forgetting + o_n % G, mask=m_n, other=1.0).to(ACC)
    b_w = tl.load(importance + o_n, mask=m_n, other=0.0).to(ACC)
    # every group of a token stores the same where they share a key
    tl.store(erase + i_key[:, None] * K + o_k[None, :], b_k, mask=m_nk)
    # u = P k
    b_u = tl.sum(b_P * b_k[:, None, :], 2)
    b_b = b_w / (b_f + b_w * tl.sum(b_k * b_u, 1))
    tl.store(gain + o_n[:, None] * K + o_k[None, :], b_b[:, None] * b_u, mask=m_nk)
    # outer(u, u), not outer(gain, u): symmetric to the last bit, else P loses positivity
    b_P = (b_P - b_b[:, None, None] * (b_u[:, :, None] * b_u[:, None, :])) / b_f[:, None, None]
    tl.store(P_out + o_P, b_P, mask=m_P)


@triton.jit(do_not_specialize=["ROWS"])
def rls_bwd_kernel(
    P, key, forgetting, importance, d_gain, d_erase, d_P_out,
    d_P, d_key, d_forgetting, d_importance, ROWS,
    G: tl.constexpr, KEYS: tl.constexpr, K: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr,
    ACC: tl.constexpr, LAST: tl.constexpr,
):  # fmt: skip
    o_n = tl.program_id(0).to(tl.int64) * BN + tl.arange(0, BN)
    o_k = tl.arange(0, BK)
    m_n = o_n < ROWS
    m_nk = m_n[:, None] & (o_k[None, :] < K)
    m_P = m_nk[:, :, None] & (o_k[None, None, :] < K)
    o_P = (o_n[:, None, None] * K + o_k[None, :, None]) * K + o_k[None, None, :]
    o_nk = o_n[:, None] * K + o_k[None, :]
    i_key = o_n // G * KEYS + (o_n % G) * (KEYS // G)
    b_P = tl.load(P + o_P, mask=m_P, other=0.0).to(ACC)
    b_k = tl.load(key + i_key[:, None] * K + o_k[None, :], mask=m_nk, other=0.0).to(ACC)
    b_f = tl.load(forgetting + o_n % G, mask=m_n, other=1.0).to(ACC)
    b_w = tl.load(importance + o_n, mask=m_n, other=0.0).to(ACC)
    b_u = tl.sum(b_P * b_k[:, None, :], 2)
    b_ku = tl.sum(b_k * b_u, 1)
    b_den = b_f + b_w * b_ku
    b_b = b_w / b_den
    b_dg = tl.load(d_gain + o_nk, mask=m_nk, other=0.0).to(ACC)
    # gain = b u
    b_db = tl.sum(b_dg * b_u, 1)
    b_du = b_b[:, None] * b_dg
    b_df = tl.zeros([BN], ACC)
    b_dP = tl.zeros([BN, BK, BK], ACC)
    if not LAST:
        # P' = (P - b u u') / forgetting
        b_dP = tl.load(d_P_out + o_P, mask=m_P, other=0.0).to(ACC) / b_f[:, None, None]
        b_Pu = tl.sum(b_dP * b_u[:, None, :], 2)
        b_uP = tl.sum(b_dP * b_u[:, :, None], 1)
        b_uPu = tl.sum(b_u * b_Pu, 1)
        b_df -= (tl.sum(tl.sum(b_dP * b_P, 2), 1) - b_b * b_uPu) / b_f
        b_db -= b_uPu
        b_du -= b_b[:, None] * (b_Pu + b_uP)
    # b = importance / den, den = forgetting + importance k'u
    b_dden = -b_db * b_b / b_den
    b_df += b_dden
    b_dw = b_db / b_den + b_dden * b_ku
    b_c = b_dden * b_w
    b_du += b_c[:, None] * b_k
    # u = P k
    b_dk = b_c[:, None] * b_u + tl.sum(b_P * b_du[:, :, None], 1)
    b_dk += tl.load(d_erase + o_nk, mask=m_nk, other=0.0).to(ACC)
    b_dP += b_du[:, :, None] * b_k[:, None, :]
    tl.store(d_P + o_P, b_dP, mask=m_P)
    tl.store(d_key + o_nk, b_dk, mask=m_nk)
    tl.store(d_forgetting + o_n, b_df, mask=m_n)
    tl.store(d_importance + o_n, b_dw, mask=m_n)


def _tiles(K: int, key: Tensor, groups: int) -> dict[str, int]:
    BK = triton.next_power_of_2(K)
    tiles = {"G": groups, "KEYS": key.shape[1], "K": K, "BK": BK}
    return {**tiles, "BN": min(max(2048 // (BK * BK), 1), 128), "num_warps": 4}


def rls_forward(
    P: Tensor, key: Tensor, forgetting: Tensor, importance: Tensor, gain: Tensor, erase: Tensor
) -> Tensor:
    """The next P [N, G, K, K]; the gain goes to `gain` [N, G, K] and a copy of the key to `erase`.

    Key [N, G or 1, K], forgetting [G] and importance [N, G], all contiguous.
    """
    N, G, K = gain.shape
    out, tiles = torch.empty_like(P), _tiles(K, key, G)
    rls_fwd_kernel[(triton.cdiv(N * G, tiles["BN"]),)](
        P, key, forgetting, importance, gain, erase, out, N * G, ACC=_launch.ACC[P.dtype], **tiles
    )
    return out


def rls_backward(
    P: Tensor,
    key: Tensor,
    forgetting: Tensor,
    importance: Tensor,
    d_gain: Tensor,
    d_erase: Tensor,
    d_out: Tensor | None,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of P, of the key for each group [N, G, K], of forgetting [G] and importance."""
    N, G, K, _ = P.shape
    tiles = _tiles(K, key, G)
    d_P, d_key = torch.empty_like(P), torch.empty_like(d_gain)
    d_forgetting, d_importance = torch.empty_like(importance), torch.empty_like(importance)
    rls_bwd_kernel[(triton.cdiv(N * G, tiles["BN"]),)](
        P, key, forgetting, importance, d_gain, d_erase,
        d_gain if d_out is None else d_out.contiguous(),
        d_P, d_key, d_forgetting, d_importance, N * G,
        ACC=_launch.ACC[P.dtype], LAST=d_out is None, **tiles,
    )  # fmt: skip
    return d_P, d_key, d_forgetting.sum(0), d_importance
