"""How far float32 may be from the exact fit: a first-order bound, derived in ops/memory/README.md.

Both errors are measured in the norm of the fit itself, `|X|_A^2 = tr(X A X')` with A the weighted
Gram matrix plus its ridge, where the transitions of exact least squares cannot amplify anything.
"""

from __future__ import annotations

import torch
from torch import Tensor

from depth_memory.ops import rls_write
from tests.testing import Observations, condition, gram_matrices, write_all


def covariance_error(P: Tensor, exact: Tensor, A: Tensor) -> Tensor:
    """`|A^(1/2) (P - exact) A^(1/2)|_2`: below 1, `P` is positive definite."""
    L = torch.linalg.cholesky(A)
    return torch.linalg.matrix_norm(L.mT @ (P.double() - exact) @ L, 2)


def fit_error(M: Tensor, exact: Tensor, A: Tensor) -> Tensor:
    """`|M - exact|_A`."""
    return torch.linalg.matrix_norm((M.double() - exact) @ torch.linalg.cholesky(A))


def first_order_bounds(
    obs: Observations, alpha: float, unit_roundoff: float
) -> tuple[Tensor, Tensor]:
    """What `covariance_error` and `fit_error` may be after all writes.

    For P it is `u sqrt(4 + 4 Dk) sqrt(sum_j cond(A_j)^2)`. An entry of P' sees four roundings of
    its own (u u', b, minus, over forgetting) and those of the Dk products and sums in u = P k,
    which enter twice. Rounding errors are taken for independent and centred (Higham and Mary,
    2019), so they add in squares, within a write and over writes.

    For M it is that, times what an error in P does to the fit through the gains.
    """
    conditions = condition(torch.stack(gram_matrices(obs, alpha)))
    per_write = unit_roundoff * (4 + 4 * obs.keys.shape[-1]) ** 0.5
    covariance = per_write * conditions.square().sum(0).sqrt()
    return covariance, covariance * _sensitivity(obs, alpha)


def _sensitivity(obs: Observations, alpha: float) -> Tensor:
    states = write_all(rls_write, obs, alpha)
    M, gains, size = torch.zeros_like(states[0][0]), 0.0, 0.0
    for (k, v, f, w), (next_M, next_P) in zip(obs.steps(), states, strict=True):
        innovation = torch.linalg.vector_norm(v - (M * k[..., None, :]).sum(-1), dim=-1)
        leverage = w * torch.einsum("...i,...ij,...j->...", k, next_P, k)
        gains = f.sqrt() * gains + (w * leverage).sqrt() * innovation
        size = f * size + w * v.square().sum(-1)
        M = next_M
    return gains + size.sqrt()
