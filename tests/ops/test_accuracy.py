"""float32 against float64 over the depth and the forgetting that a network may have."""

from __future__ import annotations

import itertools

import pytest
import torch

from depth_memory.ops import ridge_solve, rls_write
from tests.ops import error_table
from tests.ops.bounds import covariance_error, first_order_bounds, fit_error
from tests.testing import (
    KEY_KINDS,
    every_kind_of_key,
    gram_matrices,
    make_observations,
    relative_error,
    write_all,
)

ROUNDOFF = torch.finfo(torch.float32).eps / 2


@pytest.mark.parametrize(("alpha", "importance"), [(1.0, None), (10.0, None), (10.0, 1.0)])
@pytest.mark.parametrize("retention", error_table.RETENTIONS)
@pytest.mark.parametrize("n", error_table.WRITES)
def test_within_the_derived_bound(n, retention, alpha, importance):
    obs = every_kind_of_key(n, 8, retention=retention, importance=importance)
    exact_M, exact_P = write_all(rls_write, obs, alpha)[-1]
    states = write_all(rls_write, obs.to(torch.float32), alpha)
    M, P = states[-1]
    A = gram_matrices(obs, alpha)[-1]
    covariance_bound, fit_bound = first_order_bounds(obs, alpha, ROUNDOFF)
    assert (covariance_error(P, exact_P, A) <= covariance_bound).all()
    assert (fit_error(M, exact_M, A) <= fit_bound).all()
    covariances = torch.stack([P for _, P in states])
    assert torch.equal(covariances, covariances.mT)
    assert torch.linalg.eigvalsh(covariances.double()).min() > 0
    assert all(torch.isfinite(M).all() for M, _ in states)


@pytest.mark.parametrize(("retention", "limit"), [(1e-2, 3e-3), (1e-3, 2e-2)])
@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("n", error_table.WRITES)
def test_within_the_stated_limits(n, kind, retention, limit):
    assert error_table.fit_error(n, retention, kind, alpha=1.0) <= limit


@pytest.mark.parametrize("retention", error_table.RETENTIONS)
def test_random_keys_lose_nothing(retention):
    assert error_table.fit_error(56, retention, "random", alpha=1.0) <= 1e-6


@pytest.mark.parametrize("kind", KEY_KINDS)
@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_autocast_and_large_values_change_nothing(kind, alpha):
    obs = make_observations(160, 4, kind=kind, retention=1e-3).to(torch.float32)
    # a power of two, so that scaling commutes with every rounding
    large = obs._replace(values=obs.values * 2.0**17)
    M, P = write_all(rls_write, obs, alpha)[-1]
    with torch.autocast("cpu", torch.bfloat16):
        large_M, large_P = write_all(rls_write, large, alpha)[-1]
    assert torch.equal(large_M, M * 2.0**17)
    assert torch.equal(large_P, P)


@pytest.mark.parametrize("alpha", [1.0, 10.0])
def test_values_of_1e5_keep_the_relative_error(alpha):
    obs = make_observations(160, 4, kind="identical", retention=1.0)
    obs = obs._replace(values=obs.values * 1e5)
    _, bound = first_order_bounds(obs, alpha, ROUNDOFF)
    M, _ = write_all(rls_write, obs.to(torch.float32), alpha)[-1]
    A = gram_matrices(obs, alpha)[-1]
    assert (fit_error(M, ridge_solve(*obs, alpha), A) <= bound).all()


def test_the_bound_is_worth_something():
    """It notices a memory kept in bfloat16, and a covariance that was rounded to it once."""
    obs = make_observations(56, 8, retention=1e-1)
    A = gram_matrices(obs)[-1]
    M, P = write_all(rls_write, obs)[-1]
    covariance_bound, fit_bound = first_order_bounds(obs, 1.0, ROUNDOFF)
    assert (fit_error(M.bfloat16(), M, A) > fit_bound).all()
    assert (covariance_error(P.bfloat16(), P, A) > covariance_bound).all()


def test_table_has_a_row_per_case(monkeypatch):
    monkeypatch.setattr(error_table, "WRITES", (2, 3))
    monkeypatch.setattr(error_table, "RETENTIONS", (1.0, 0.5))
    rows = error_table.table(1.0).splitlines()[2:]
    cases = itertools.product((2, 3), (1.0, 0.5))
    assert [row.split(" | ")[:2] for row in rows] == [[f"| {n} writes", f"{r:g}"] for n, r in cases]


def test_the_dense_solve_is_no_better():
    """Nearly equal keys: the recursion in float32 is at least as good as a float32 solve."""
    obs = make_observations(56, 16, kind="near", retention=1e-2)
    exact = ridge_solve(*obs, 1.0)
    recursion = write_all(rls_write, obs.to(torch.float32))[-1][0]
    solve = ridge_solve(*obs.to(torch.float32), 1.0)
    assert relative_error(recursion, exact, 2) <= relative_error(solve, exact, 2)
