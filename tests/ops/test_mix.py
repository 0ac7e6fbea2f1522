"""The mixing primitive."""

from __future__ import annotations

import pytest
import torch

from depth_memory.ops import mix
from tests.testing import assert_within_budget, run_with_grads


@pytest.mark.parametrize("rows", [1, 4])
@pytest.mark.parametrize("listed", [False, True])
@pytest.mark.parametrize("count", [1, 3, 4, 7])
def test_mix_is_the_sum_by_hand(rows, listed, count):
    coef, sources = torch.randn(5, rows, count).double(), torch.randn(5, count, 30).double()
    expected = torch.zeros(5, rows, 30).double()
    for r in range(rows):
        for s in range(count):
            expected[:, r] += coef[:, r, s, None] * sources[:, s]
    out = mix(coef, list(sources.unbind(-2)) if listed else sources)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_both_forms_are_within_budget_of_one_another(dtype):
    coef, sources = torch.randn(9, 3, 5).to(dtype), torch.randn(9, 5, 30).to(dtype)
    exact, exact_grads = run_with_grads(mix, coef.double(), sources.double())
    tensor, tensor_grads = run_with_grads(mix, coef, sources)
    listed, listed_grads = run_with_grads(lambda c, s: mix(c, list(s.unbind(-2))), coef, sources)
    assert_within_budget(listed[0], exact[0], tensor[0], "out")
    for name, *grads in zip(
        ("coef", "sources"), listed_grads, exact_grads, tensor_grads, strict=True
    ):
        assert_within_budget(*grads, name)


def test_a_list_is_not_copied():
    """Backward keeps the sources themselves, and nothing else of their size."""
    sources = [torch.randn(6, 100, requires_grad=True) for _ in range(5)]
    coef = torch.randn(6, 2, 5, requires_grad=True)
    saved = []
    with torch.autograd.graph.saved_tensors_hooks(lambda t: saved.append(t) or t, lambda t: t):
        mix(coef, sources)
    large = {t.untyped_storage().data_ptr() for t in saved if t.numel() >= sources[0].numel()}
    assert large <= {s.untyped_storage().data_ptr() for s in sources}


def test_one_hot_rows_select():
    sources = torch.randn(4, 3, 30)
    assert torch.equal(mix(torch.eye(3).expand(4, 3, 3), list(sources.unbind(-2))), sources)


def test_dtype_is_that_of_the_sources_unless_asked():
    coef, sources = torch.rand(2, 1, 3), torch.randn(2, 3, 8).bfloat16()
    assert mix(coef, sources).dtype == torch.bfloat16
    kept = mix(coef, sources, dtype=torch.float32)
    assert torch.equal(kept, mix(coef, sources.float()))
    assert torch.equal(mix(coef, sources), kept.bfloat16())


def test_coefficients_broadcast_over_tokens():
    coef, sources = torch.rand(2, 3), torch.randn(4, 5, 3, 8)
    expected = torch.einsum("rs,...sd->...rd", coef, sources)
    torch.testing.assert_close(mix(coef, sources), expected)
    torch.testing.assert_close(mix(coef, list(sources.unbind(-2))), expected)
    torch.testing.assert_close(mix(coef, sources[0, 0]), expected[0, 0])


def test_autocast_does_not_reach_the_sum():
    coef, sources = torch.rand(4, 2, 3), torch.randn(4, 3, 8)
    with torch.autocast("cpu", torch.bfloat16):
        inside = mix(coef, sources)
    assert torch.equal(inside, mix(coef, sources))
