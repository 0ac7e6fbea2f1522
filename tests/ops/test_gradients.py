"""Gradients of every op against finite differences in float64, first and second order."""

from __future__ import annotations

import pytest
import torch

from depth_memory import ops
from tests.ops.cases import NAMES, make_calls
from tests.testing import make_observations, write_all


def differentiable(function, inputs):
    """`function` over the inputs that its output depends on."""
    leaves = [x.detach().clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    total = sum(y.sum() for y in (out if isinstance(out, tuple) else (out,)))
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    return [leaf.requires_grad_(g is not None) for leaf, g in zip(leaves, grads, strict=True)]


def test_every_case_is_named():
    assert tuple(sorted(make_calls())) == tuple(sorted(NAMES))
    called = {name.split(" ")[0] for name in NAMES} | {
        f"{r}_transition" for r in ("rls", "delta", "outer")
    }
    assert called | {"Transition"} == set(ops.__all__)


@pytest.mark.parametrize("name", NAMES)
def test_gradient(name):
    function, inputs = make_calls()[name]
    assert torch.autograd.gradcheck(function, differentiable(function, inputs))


@pytest.mark.parametrize("name", NAMES)
def test_second_gradient(name):
    function, inputs = make_calls(tokens=1, key_dim=2, value_dim=1, writes=2)[name]
    assert torch.autograd.gradgradcheck(function, differentiable(function, inputs))


def test_what_an_op_ignores_gets_no_gradient():
    """The first-order rules do not look at P; nothing else has an unused input."""
    unused = {}
    for name, (function, inputs) in make_calls().items():
        needed = [x.requires_grad for x in differentiable(function, inputs)]
        if not all(needed):
            unused[name] = [i for i, x in enumerate(needed) if not x]
    first_order = {f"{op}_write": [1] for op in ("delta", "outer")}
    windows = {
        f"{op} of {rule}": [1]
        for op in ("window_read", "window_fold")
        for rule in ("delta", "outer")
    }
    weights = {f"depth_weights of {rule}": [3] for rule in ("delta", "outer")}
    assert unused == first_order | windows | weights


@pytest.mark.parametrize("importance", [0.0, 1e-30, 1.0])
def test_float32_gradients_stay_finite_at_any_importance(importance):
    obs = make_observations(56, 4, kind="identical", retention=1e-3).to(torch.float32)
    obs = obs._replace(importance=torch.full_like(obs.importance, importance))
    leaves = [x.clone().requires_grad_() for x in obs]
    M, _ = write_all(ops.rls_write, type(obs)(*leaves))[-1]
    grads = torch.autograd.grad(M.sum(), leaves)
    assert all(torch.isfinite(g).all() for g in grads)
