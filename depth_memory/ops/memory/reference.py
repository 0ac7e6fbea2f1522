"""The write rules as rank-one transitions, in plain PyTorch. The derivation is in README.md.

Every rule is `M' = M T + v g'` with `T = keep (I - erase g')`:

    rls     g = b u        erase = k    keep = 1         u = P k, b = w / (forgetting + w k'u)
    delta   g = w k        erase = k    keep = forgetting
    outer   g = w k        erase = 0    keep = forgetting
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor


class Transition(NamedTuple):
    """What one write does to the memory, apart from its value: `T = keep (I - erase gain')`."""

    gain: Float[Tensor, "*tokens Dk"]
    erase: Float[Tensor, "*tokens Dk"]
    keep: Float[Tensor, "*tokens"]


def rls_transition(
    P: Tensor, key: Tensor, forgetting: Tensor, importance: Tensor
) -> tuple[Transition, Tensor]:
    """One step of recursive least squares on the inverse covariance."""
    u = (P * key[..., None, :]).sum(-1)
    b = importance / (forgetting + importance * (key * u).sum(-1))
    # outer(u, u), not outer(gain, u): symmetric to the last bit, else P loses positivity
    P = (P - b[..., None, None] * (u[..., :, None] * u[..., None, :])) / forgetting[..., None, None]
    gain = b[..., None] * u
    return Transition(gain, key.expand_as(gain), torch.ones_like(b)), P


def delta_transition(key: Tensor, forgetting: Tensor, importance: Tensor) -> Transition:
    """One gradient step of size `importance` on the squared error of the newest observation."""
    importance, keep = torch.broadcast_tensors(importance, _per_key(forgetting, key))
    gain = importance[..., None] * key
    return Transition(gain, key.expand_as(gain), keep)


def outer_transition(key: Tensor, forgetting: Tensor, importance: Tensor) -> Transition:
    """The sum of outer products: the Gram matrix taken for the identity."""
    importance, keep = torch.broadcast_tensors(importance, _per_key(forgetting, key))
    gain = importance[..., None] * key
    return Transition(gain, torch.zeros_like(gain), keep)


def _per_key(scalar: Tensor, key: Tensor) -> Tensor:
    return scalar.expand(torch.broadcast_shapes(scalar.shape, key.shape[:-1]))


def apply(M: Tensor, transition: Transition, value: Tensor) -> Tensor:
    """`M T + v g'`."""
    gain, erase, keep = transition
    kept = keep[..., None] * (M * erase[..., None, :]).sum(-1)
    update = (value - kept)[..., :, None] * gain[..., None, :]
    return keep[..., None, None] * M + update


def sweep(
    transitions: Sequence[Transition], queries: Float[Tensor, "*tokens R Dk"]
) -> tuple[list[Tensor], Tensor]:
    """Carry queries back through a window of writes, newest first.

    Returns:
        The weight of each write in each query's read, oldest first, each [*tokens, R]; and the
        query that is left for the memory as it was before the window, [*tokens, R, Dk].
    """
    weights: list[Tensor] = []
    x = queries
    for gain, erase, keep in reversed(transitions):
        c = (x * gain[..., None, :]).sum(-1)
        x = keep[..., None, None] * (x - c[..., None] * erase[..., None, :])
        weights.append(c)
    return weights[::-1], x


def scan(
    rule: str, P: Tensor, keys: Tensor, forgetting: Tensor, importance: Tensor
) -> list[Transition]:
    """The transitions of a whole depth, for keys [..., n, Dk] and scalars [..., n]."""
    transitions = []
    for k, f, w in zip(keys.unbind(-2), forgetting.unbind(-1), importance.unbind(-1), strict=True):
        if rule == "rls":
            transition, P = rls_transition(P, k, f, w)
        else:
            transition = {"delta": delta_transition, "outer": outer_transition}[rule](k, f, w)
        transitions.append(transition)
    return transitions


def ridge(
    keys: Tensor, values: Tensor, forgetting: Tensor, importance: Tensor, alpha: Tensor
) -> Tensor:
    """The minimiser by its normal equations, with no recursion."""
    width = keys.shape[-1]
    ones = forgetting.new_ones((*forgetting.shape[:-1], 1))
    # remaining[..., i] = prod_{j >= i} forgetting_j, and 1 after the last
    remaining = torch.cat([forgetting, ones], -1).flip(-1).cumprod(-1).flip(-1)
    weight = remaining[..., 1:] * importance
    weighted = weight[..., None] * keys
    prior = remaining[..., 0] / alpha
    gram = weighted.mT @ keys + prior[..., None, None] * torch.eye(
        width, dtype=keys.dtype, device=keys.device
    )
    moment = weighted.mT @ values
    # the same leading axes on both sides: solve() may take a matrix for a batch of vectors
    tokens = torch.broadcast_shapes(gram.shape[:-2], moment.shape[:-2])
    return torch.linalg.solve(gram, moment.expand(*tokens, *moment.shape[-2:])).mT
