"""The loop that the method was published with runs as it stands with our write."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from depth_memory.ops import ridge_solve, rls_write
from tests.testing import condition, gram_matrices, make_observations, relative_error


# fmt: off
def depth_memory_loop(observations, Dv, Dk, alpha, rls_write):
    # Single-group state; observations arrive in layer order.
    M = torch.zeros(Dv, Dk)
    P = alpha * torch.eye(Dk)

    for k, v, forgetting, importance in observations:
        # Both previous states participate in the regression update.
        next_M, next_P = rls_write(
            M, P, k, v, forgetting, importance
        )

        # These, not a cache of all previous pairs, survive to next layer.
        M = next_M
        P = next_P

    return M, P
# fmt: on


@pytest.fixture
def float64_by_default() -> Iterator[None]:
    torch.set_default_dtype(torch.float64)
    yield
    torch.set_default_dtype(torch.float32)


@pytest.mark.usefixtures("float64_by_default")
@pytest.mark.parametrize("scalars", ["tensors", "floats"])
def test_the_published_loop_is_the_ridge_fit(scalars):
    obs = make_observations(24, key_dim=8, value_dim=5)
    steps = list(obs.steps())
    if scalars == "floats":
        steps = [(k, v, f.item(), w.item()) for k, v, f, w in steps]
    M, P = depth_memory_loop(steps, 5, 8, 2.0, rls_write)
    A = gram_matrices(obs, 2.0)[-1]
    assert relative_error(M, ridge_solve(*obs, 2.0), 2) <= 1e-13 * condition(A)
    assert relative_error(P, torch.linalg.inv(A), 2) <= 1e-13 * condition(A)


def test_the_published_loop_in_float32():
    obs = make_observations(24, key_dim=8, value_dim=5)
    M, P = depth_memory_loop(obs.to(torch.float32).steps(), 5, 8, 1.0, rls_write)
    assert M.dtype == P.dtype == torch.float32
    A = gram_matrices(obs)[-1]
    limit = 24 * torch.finfo(torch.float32).eps * condition(A)
    assert relative_error(M, ridge_solve(*obs, 1.0), 2) <= limit
