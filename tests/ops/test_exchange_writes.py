"""The launchers that step the covariance and sweep through writes, against plain torch."""

from __future__ import annotations

import pytest
import torch

from depth_memory.ops.exchange import covariance, sweep
from tests.ops.exchange import DTYPES, WINDOW, WRITES, G, Inputs, K, N
from tests.testing import unit


def rls_formula(P, key, forgetting, importance):
    key = key.expand(N, G, K)
    u = (P @ key[..., None])[..., 0]
    b = importance / (forgetting + importance * (key * u).sum(-1))
    out = (P - b[..., None, None] * u[..., :, None] * u[..., None, :]) / forgetting[:, None, None]
    return out, b[..., None] * u, key[:, : key.shape[1]]


def rls_kernel(d_out, d_gain, d_erase, P, key, forgetting, importance):
    gain, erase = P.new_empty(N, G, K), torch.empty_like(key)
    out = covariance.rls_forward(P, key, forgetting, importance, gain, erase)
    assert torch.equal(erase, key)
    d_P, d_key, d_forgetting, d_importance = covariance.rls_backward(
        P, key, forgetting, importance, d_gain, d_erase, d_out
    )
    d_key = d_key if key.shape[1] == G else d_key.sum(1, keepdim=True)
    return out, gain, erase.expand(N, G, K), d_P, d_key, d_forgetting, d_importance


@pytest.mark.parametrize("keys", [1, G], ids=["shared", "own"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_rls(dtype, keys):
    shapes = {"P": (N, G, K, K), "key": (N, keys, K), "forgetting": (G,), "importance": (N, G)}
    inputs = Inputs(dtype, shapes, "")
    P = inputs.values["P"]
    inputs.values["P"] = P @ P.mT + torch.eye(K, dtype=dtype)
    for name in ("forgetting", "importance"):
        inputs.values[name] = inputs.values[name].sigmoid()
    inputs.compare(rls_kernel, rls_formula, "P key forgetting importance", "P_out gain erase")


def sweep_formula(gain, erase=None, keep=None, query=None, scale=None):
    """Scaled coefficients; of the unit vectors, not scaled, where there is no query."""
    unit = query is None
    x = torch.eye(K, dtype=gain.dtype).expand(N, G, K, K) if unit else query[:, :, None]
    weights = []
    for i in reversed(range(WRITES)):
        c = (gain[i][:, :, None] * x).sum(-1)
        weights.insert(0, c)
        if erase is not None:
            x = x - c[..., None] * erase[i][:, :, None]
        if keep is not None:
            x = keep[i][:, None, None] * x
    weights = torch.stack(weights, -1)
    if unit:
        return weights, x
    return scale[..., None] * weights[:, :, 0], scale[..., None] * x[:, :, 0]


def sweep_kernel(d_weights, d_rest, gain, erase=None, keep=None, query=None, scale=None):
    rows = (N, G) if scale is not None else (N, G, K)
    writes = sweep.Writes(gain, erase, keep)
    kept = None if scale is None else torch.empty_like(scale)
    out = sweep.Swept(gain.new_empty(*rows, WINDOW), gain.new_empty(*rows, K), kept)
    sweep.sweep_forward(query, scale, writes, WRITES, out)
    # gradients are added to what is there; in float64 something is, and is taken off again
    there = 1.0 if gain.dtype == torch.float64 else 0.0
    shapes = (gain.shape, gain.shape, (WINDOW, N, G))
    grads = sweep.WriteGradients(*(gain.new_full(shape, there) for shape in shapes))
    padded = torch.nn.functional.pad(d_weights, (0, 1))
    d_query, d_scale = sweep.sweep_backward(writes, WRITES, out, padded, d_rest, grads)
    assert all((g[WRITES:] == there).all() for g in grads)
    factor = 1.0 if kept is None else kept[..., None]
    found = [factor * out.weights[..., :WRITES], factor * out.rest, grads.gain - there]
    if erase is not None:
        d_erase = grads.erase - there
        found.append(d_erase if erase.shape[2] == G else d_erase.sum(2, keepdim=True))
    found += [] if keep is None else [(grads.keep - there).sum(1)]
    return found if query is None else [*found, d_query, d_scale]


RULES = {"rls": "erase keep", "outer": "keep", "kept": "erase", "sum": ""}


@pytest.mark.parametrize("queries", ["query scale", ""], ids=["read", "fold"])
@pytest.mark.parametrize("parts", RULES.values(), ids=RULES.keys())
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_sweep(dtype, parts, queries):
    shapes = {
        "gain": (WINDOW, N, G, K), "erase": (WINDOW, N, 1, K), "keep": (WINDOW, G),
        "query": (N, G, K), "scale": (N, G),
    }  # fmt: skip
    names = f"gain {parts} {queries}".split()
    inputs = Inputs(dtype, {name: shapes[name] for name in names}, "")
    # of the size that writes have: the backward pass divides by `keep`
    if "keep" in names:
        inputs.values["keep"] = 0.7 + 0.3 * inputs.values["keep"].sigmoid()
    if "erase" in names:
        inputs.values["erase"] = unit(inputs.values["erase"])
        inputs.values["gain"] = inputs.values["erase"] + 0.1 * inputs.values["gain"]
    inputs.compare(sweep_kernel, sweep_formula, " ".join(names), "weights rest")
