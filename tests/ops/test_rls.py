"""The recursion against direct solves in float64, and what must hold for any input."""

from __future__ import annotations

from fractions import Fraction

import pytest
import torch
from torch import Tensor

from depth_memory import ops
from depth_memory.errors import UserError
from depth_memory.ops import ridge_solve, rls_write
from tests.testing import (
    KEY_KINDS,
    Observations,
    condition,
    empty_memory,
    every_kind_of_key,
    gram_matrices,
    make_observations,
    relative_error,
    write_all,
)

TOLERANCE = 1e-13
"""Times the condition number of the regularised Gram matrix: 450 units of rounding in float64."""


def stacked_least_squares(obs: Observations, alpha: float) -> Tensor:
    """The fit by QR on weighted rows, without normal equations."""
    later = [obs.forgetting[i + 1 :].prod() for i in range(obs.count)]
    root = (torch.stack(later) * obs.importance).sqrt()[:, None]
    ridge = (obs.forgetting.prod() / alpha).sqrt() * torch.eye(obs.keys.shape[-1]).double()
    rows = torch.cat([root * obs.keys, ridge])
    targets = torch.cat([root * obs.values, torch.zeros(len(ridge), obs.values.shape[-1]).double()])
    return torch.linalg.lstsq(rows, targets).solution.mT


def exact_fit(obs: Observations, alpha: float) -> Tensor:
    """The fit in rational arithmetic, by elimination: no rounding at all."""
    keys, values, forgetting, importance = (
        [[Fraction(x) for x in row] if isinstance(row, list) else Fraction(row) for row in t]
        for t in (x.tolist() for x in obs)
    )
    width, weight, rows = len(keys[0]), Fraction(1), []
    A = [[Fraction(0)] * (width + len(values[0])) for _ in range(width)]
    for k, v, f, w in reversed(list(zip(keys, values, forgetting, importance, strict=True))):
        for i in range(width):
            for j, x in enumerate(k + v):
                A[i][j] += weight * w * k[i] * x
        weight *= f
    for i in range(width):
        A[i][i] += weight / Fraction(alpha)
    for i in range(width):
        rows.append([x / A[i][i] for x in A[i]])
        A[i] = rows[-1]
        for r in range(width):
            if r != i:
                A[r] = [x - A[r][i] * y for x, y in zip(A[r], A[i], strict=True)]
    return torch.tensor([[float(x) for x in row[width:]] for row in A], dtype=torch.float64).mT


@pytest.mark.parametrize("alpha", [0.25, 1.0, 10.0])
@pytest.mark.parametrize("n", [1, 3, 9])
def test_ridge_solve_is_the_exact_minimiser(n, alpha):
    obs = make_observations(n, key_dim=3, value_dim=2)
    tolerance = TOLERANCE * condition(gram_matrices(obs, alpha)[-1]).item()
    assert relative_error(ridge_solve(*obs, alpha), exact_fit(obs, alpha), 2) <= tolerance


@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("retention", [1.0, 1e-3])
def test_ridge_solve_equals_stacked_least_squares(kind, retention):
    obs = make_observations(56, kind=kind, retention=retention)
    tolerance = TOLERANCE * condition(gram_matrices(obs)[-1]).item()
    assert relative_error(ridge_solve(*obs, 1.0), stacked_least_squares(obs, 1.0), 2) <= tolerance


def test_ridge_solve_without_writes_is_the_empty_memory():
    M = ridge_solve(*make_observations(0, 2), 1.0)
    assert torch.equal(M, torch.zeros(2, 4, 8, dtype=torch.float64))


def test_ridge_solve_takes_one_alpha_per_token():
    # as many alphas as there are key and value dimensions: nothing may be taken for a vector
    obs = make_observations(6, key_dim=4, value_dim=4)
    alphas = torch.tensor([0.1, 1.0, 2.0, 10.0], dtype=torch.float64)
    apart = torch.stack([ridge_solve(*obs, a.item()) for a in alphas])
    torch.testing.assert_close(ridge_solve(*obs, alphas), apart, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("alpha", [1.0, 10.0])
@pytest.mark.parametrize("retention", [None, 1.0, 1e-3])
@pytest.mark.parametrize("n", [1, 24, 56, 160])
def test_write_equals_ridge_solve(n, retention, alpha):
    obs = every_kind_of_key(n, 3, retention=retention)
    M, P = write_all(rls_write, obs, alpha)[-1]
    A = gram_matrices(obs, alpha)[-1]
    exact = ridge_solve(*obs, alpha)
    error = torch.linalg.matrix_norm(M - exact) / torch.linalg.matrix_norm(exact)
    assert (error <= TOLERANCE * condition(A)).all()
    residual = torch.linalg.matrix_norm(P @ A - torch.eye(8), 2)
    assert (residual <= TOLERANCE * condition(A)).all()


def test_order_does_not_matter_without_forgetting():
    obs = make_observations(20, 3, retention=1.0)
    order = torch.randperm(20)
    shuffled = Observations(
        obs.keys[:, order], obs.values[:, order], obs.forgetting, obs.importance[:, order]
    )
    M, P = write_all(rls_write, obs)[-1]
    other_M, other_P = write_all(rls_write, shuffled)[-1]
    torch.testing.assert_close(M, other_M, rtol=0, atol=1e-13)
    torch.testing.assert_close(P, other_P, rtol=0, atol=1e-13)


def test_a_duplicate_key_is_one_key_of_twice_the_importance():
    k, v, f, w = next(iter(make_observations(1, 5).steps()))
    one = torch.ones_like(f)
    start = write_all(rls_write, make_observations(6, 5))[-1]
    twice = rls_write(*rls_write(*start, k, v, f, w), k, v, one, w)
    once = rls_write(*start, k, v, f, 2 * w)
    for a, b in zip(twice, once, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("silent", ["importance", "key"])
def test_a_write_of_importance_0_or_key_0_only_forgets(silent, dtype):
    obs = make_observations(7, 5).to(dtype)
    M, P = write_all(rls_write, obs)[-1]
    k, v, f, w = next(iter(obs.steps()))
    k, w = (0 * k, w) if silent == "key" else (k, 0 * w)
    next_M, next_P = rls_write(M, P, k, v, f, w)
    assert torch.equal(next_M, M)
    assert torch.equal(next_P, P / f[..., None, None])


def test_a_large_importance_interpolates():
    obs = make_observations(4, key_dim=8)
    M, _ = write_all(rls_write, obs._replace(importance=torch.full((4,), 1e9).double()))[-1]
    torch.testing.assert_close(obs.keys @ M.mT, obs.values, rtol=0, atol=1e-6)


def test_one_unit_write_into_an_empty_memory():
    M, P = empty_memory(make_observations(1), alpha=2.0)
    k, v = torch.eye(8).double()[0], torch.arange(4).double()
    M, P = rls_write(M, P, k, v, 0.5, 3.0)
    # gain 3 * 2 / (0.5 + 3 * 2) = 12 / 13; P along k (1 / 2 * 0.5 + 3)^-1 = 4 / 13, elsewhere 4
    torch.testing.assert_close(M, 12 / 13 * torch.outer(v, k), rtol=1e-15, atol=0)
    expected = torch.full((8,), 4.0).double()
    expected[0] = 4 / 13
    torch.testing.assert_close(P, torch.diag(expected), rtol=1e-15, atol=0)


def test_the_direct_fit_is_float32_under_autocast():
    obs = make_observations(12, 3).to(torch.float32)
    plain = ops.ridge_solve(*obs, 1.0)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(ops.ridge_solve(*obs, 1.0), plain)


def test_integers_are_refused():
    for call in (
        lambda: ops.mix(torch.ones(1, 2), torch.ones(2, 3, dtype=torch.int64)),
        lambda: ops.read(torch.ones(2, 3, dtype=torch.int64), torch.ones(3)),
        lambda: ops.sinkhorn(torch.zeros(2, 2, dtype=torch.int64)),
    ):
        with pytest.raises(UserError, match=r"^dtype: got 'torch.int64'; allowed: a floating"):
            call()
