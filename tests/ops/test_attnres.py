"""Attention over depth against its definition."""

from __future__ import annotations

import math

import pytest
import torch

from depth_memory.ops import attnres, attnres_weights
from tests.testing import assert_within_budget, run_with_grads


def by_definition(query, sources, norm_weight, eps=1e-6):
    """One token and one source at a time."""
    out = torch.empty(len(sources), sources.shape[-1]).double()
    for t, token in enumerate(sources):
        scores = []
        for v in token:
            rms = math.sqrt(sum(x * x for x in v.tolist()) / len(v) + eps)
            scores.append(math.exp(float(query @ (norm_weight * v / rms))))
        out[t] = sum(s / sum(scores) * v for s, v in zip(scores, token, strict=True))
    return out


@pytest.mark.parametrize("eps", [1e-6, 1e-1])
@pytest.mark.parametrize("count", [1, 2, 5])
@pytest.mark.parametrize("width", [30, 96])
def test_equals_its_definition(count, width, eps):
    query, norm_weight = torch.randn(2, width).double()
    sources = torch.randn(3, count, width).double()
    expected = by_definition(query, sources, norm_weight, eps)
    out = attnres(query, sources, norm_weight, eps)
    torch.testing.assert_close(out, expected, rtol=0, atol=1e-12)
    listed = attnres(query, list(sources.unbind(-2)), norm_weight, eps)
    torch.testing.assert_close(listed, expected, rtol=0, atol=1e-12)


def test_one_source_is_the_identity():
    source = torch.randn(4, 1, 30)
    assert torch.equal(attnres(torch.randn(30), source, torch.randn(30)), source[:, 0])


def test_a_query_of_zeros_gives_the_mean():
    sources = torch.randn(4, 6, 30).double()
    out = attnres(torch.zeros(30).double(), sources, torch.randn(30).double())
    torch.testing.assert_close(out, sources.mean(-2), rtol=0, atol=1e-15)


def test_weights_are_a_distribution_even_for_long_queries():
    weights = attnres_weights(1e4 * torch.randn(30), torch.randn(4, 6, 30), torch.ones(30))
    assert torch.isfinite(weights).all()
    assert (weights >= 0).all()
    torch.testing.assert_close(weights.sum(-1), torch.ones(4))


def test_the_order_of_sources_does_not_matter():
    query, norm_weight = torch.randn(2, 30).double()
    sources, order = torch.randn(4, 6, 30).double(), torch.randperm(6)
    weights = attnres_weights(query, sources, norm_weight)
    shuffled = attnres_weights(query, sources[:, order], norm_weight)
    torch.testing.assert_close(shuffled, weights[:, order], rtol=0, atol=1e-15)
    same = attnres(query, sources[:, order], norm_weight)
    torch.testing.assert_close(same, attnres(query, sources, norm_weight), rtol=0, atol=1e-14)


def test_keys_are_normalised_and_values_are_not():
    query, norm_weight = torch.randn(2, 30).double()
    sources = torch.randn(4, 6, 30).double()
    # scaling every source leaves the weights alone (eps 0) and scales the result
    weights = attnres_weights(query, sources, norm_weight, eps=0.0)
    torch.testing.assert_close(attnres_weights(query, 7 * sources, norm_weight, eps=0.0), weights)
    out = attnres(query, sources, norm_weight, eps=0.0)
    torch.testing.assert_close(attnres(query, 7 * sources, norm_weight, eps=0.0), 7 * out)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_low_precision_is_computed_in_float32(dtype):
    # logits of order 1, so that no softmax is saturated
    query, norm_weight = (torch.randn(30) / 30**0.5).to(dtype), torch.rand(30).to(dtype)
    sources = torch.randn(32, 4, 30).to(dtype)
    assert attnres_weights(query, sources, norm_weight).dtype == torch.float32
    exact, exact_grads = run_with_grads(
        attnres, query.double(), sources.double(), norm_weight.double()
    )

    # the peer computes everything in float32 by another route, and rounds once
    def peer(q, s, w):
        q, s, w = q.float(), s.float(), w.float()
        keys = torch.nn.functional.rms_norm(s, s.shape[-1:], w, 1e-6)
        return torch.einsum("ts,tsd->td", (keys @ q).softmax(-1), s).to(dtype)

    other, other_grads = run_with_grads(peer, query, sources, norm_weight)
    out, grads = run_with_grads(attnres, query, sources, norm_weight)
    assert_within_budget(out[0], exact[0], other[0], "out")
    names = ("query", "sources", "norm_weight")
    for name, *triple in zip(names, grads, exact_grads, other_grads, strict=True):
        assert_within_budget(*triple, name)
