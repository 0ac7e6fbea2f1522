"""The doubly stochastic matrix."""

from __future__ import annotations

import pytest
import torch

from depth_memory.ops import sinkhorn


def in_the_exponential_domain(logits, iterations):
    """Columns, then rows, as the definition has it."""
    S = logits.exp()
    for _ in range(iterations):
        S = S / S.sum(-2, keepdim=True)
        S = S / S.sum(-1, keepdim=True)
    return S


@pytest.mark.parametrize("n", [1, 3, 4])
@pytest.mark.parametrize("iterations", [1, 2, 20])
def test_equals_its_definition(n, iterations):
    logits = 3 * torch.randn(7, n, n).double()
    expected = in_the_exponential_domain(logits, iterations)
    torch.testing.assert_close(sinkhorn(logits, iterations), expected, rtol=0, atol=1e-13)


def test_rows_come_last():
    # after one pass the two orders differ: rows sum to 1, columns do not
    S = sinkhorn(torch.randn(5, 4, 4).double(), 1)
    torch.testing.assert_close(S.sum(-1), torch.ones(5, 4).double(), rtol=0, atol=1e-14)
    assert ((S.sum(-2) - 1).abs().amax(-1) > 1e-3).all()


def test_is_nearly_doubly_stochastic_by_default():
    S = sinkhorn(torch.randn(64, 4, 4))
    torch.testing.assert_close(S.sum(-1), torch.ones(64, 4), rtol=0, atol=1e-6)
    torch.testing.assert_close(S.sum(-2), torch.ones(64, 4), rtol=0, atol=1e-2)
    assert (S >= 0).all()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_extreme_logits_stay_finite(dtype):
    logits = (80 * torch.randn(64, 4, 4).sign()).to(dtype).requires_grad_()
    S = sinkhorn(logits)
    assert torch.isfinite(S).all()
    # a rounding in a sum of logits near 160 is what an entry of 1 may be off by
    allowed = 160 * 4 * torch.finfo(dtype).eps
    torch.testing.assert_close(S.sum(-1), torch.ones_like(S.sum(-1)), rtol=0, atol=allowed)
    (S**2).sum().backward()
    assert torch.isfinite(logits.grad).all()


def test_a_large_diagonal_is_the_identity():
    S = sinkhorn(60 * torch.eye(4).double())
    torch.testing.assert_close(S, torch.eye(4).double(), rtol=0, atol=4 * torch.tensor(-60.0).exp())


def test_a_doubly_stochastic_matrix_is_a_fixed_point():
    S = sinkhorn(torch.randn(4, 4).double(), 500)
    torch.testing.assert_close(sinkhorn(S.log(), 3), S, rtol=0, atol=1e-13)


def test_products_of_doubly_stochastic_matrices_stay_so():
    first, second = sinkhorn(torch.randn(2, 4, 4).double(), 500)
    product = first @ second
    torch.testing.assert_close(product.sum(-1), torch.ones(4).double(), rtol=0, atol=1e-13)
    torch.testing.assert_close(product.sum(-2), torch.ones(4).double(), rtol=0, atol=1e-10)


def test_low_precision_is_computed_in_float32():
    logits = torch.randn(5, 4, 4).bfloat16()
    assert torch.equal(sinkhorn(logits), sinkhorn(logits.float()).bfloat16())
