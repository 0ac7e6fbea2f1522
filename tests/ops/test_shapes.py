"""Leading axes, odd sizes and precisions: whatever the batch, each token is on its own."""

from __future__ import annotations

import pytest
import torch

from depth_memory import ops
from tests.ops.cases import NAMES, make_calls
from tests.testing import make_observations, run_with_grads

WRITES = {"rls": ops.rls_write, "delta": ops.delta_write, "outer": ops.outer_write}
TOKENS = (0, 1, 3, 5, 7, 127, 129)
EVERY_WRITE = pytest.mark.parametrize("rule", WRITES)


def naive_write(rule, M, P, k, v, f, w):
    """One token and group, by matrix algebra."""
    I = torch.eye(len(k), dtype=k.dtype)
    if rule == "delta":
        return f * M @ (I - w * torch.outer(k, k)) + w * torch.outer(v, k), P
    if rule == "outer":
        return f * M + w * torch.outer(v, k), P
    A = f * torch.linalg.inv(P) + w * torch.outer(k, k)
    P_next = torch.linalg.inv(A)
    return (f * M @ torch.linalg.inv(P) + w * torch.outer(v, k)) @ P_next, P_next


def write_and_read(write, M, P, k, v, f, w, q):
    M, P = write(M, P, k, v, f, w)
    return ops.read(M, q), M, P


@EVERY_WRITE
@pytest.mark.parametrize(
    ("width", "groups", "key_dim"),
    [(30, 1, 1), (30, 3, 1), (30, 1, 3), (30, 3, 3), (30, 3, 8), (96, 3, 8), (100, 1, 8)],
)
def test_odd_shapes(rule, width, groups, key_dim):
    """A key shared by the groups, forgetting shared by the tokens, and every gradient."""
    for tokens in TOKENS:
        obs = make_observations(1, tokens, groups, key_dim=key_dim, value_dim=width // groups)
        root = torch.randn(tokens, groups, key_dim, key_dim).double()
        P = torch.eye(key_dim).double() + root @ root.mT
        M = torch.randn(tokens, groups, width // groups, key_dim).double()
        k, q = torch.randn(2, tokens, 1, key_dim).double()
        f = torch.linspace(0.5, 1, groups).double()
        inputs = (M, P, k, obs.values[..., 0, :], f, obs.importance[..., 0], q)
        shapes = [(tokens, groups, width // groups), M.shape, P.shape]
        cotangents = [torch.randn(shape) for shape in shapes]
        outputs, grads = run_with_grads(
            lambda *a: write_and_read(WRITES[rule], *a), *inputs, cotangents=cotangents
        )
        assert [y.shape for y in outputs] == shapes
        if tokens == 0:
            assert [g.shape for g in grads] == [x.shape for x in inputs]
            assert torch.equal(grads[4], torch.zeros(groups).double())
        for t, g in {(0, 0), (tokens - 1, groups - 1)} if tokens else ():
            own = (M[t, g], P[t, g], k[t, 0], inputs[3][t, g], f[g], inputs[5][t, g], q[t, 0])
            own_cotangents = [c[t, g] for c in cotangents]
            _check_token(rule, own, own_cotangents, t, g, outputs, grads)


def _check_token(rule, own, cotangents, t, g, outputs, grads):
    def naive(M, P, k, v, f, w, q):
        M, P = naive_write(rule, M, P, k, v, f, w)
        return M @ q, M, 1 * P

    expected, expected_grads = run_with_grads(naive, *own, cotangents=cotangents)
    for actual, y in zip(outputs, expected, strict=True):
        torch.testing.assert_close(actual[t, g], y, rtol=1e-10, atol=1e-10)
    tokens, groups = outputs[0].shape[:2]
    # what is shared sums over its users, and is compared where there is one
    alone = {2: groups == 1, 6: groups == 1, 4: tokens == 1}
    for i, (actual, wanted) in enumerate(zip(grads, expected_grads, strict=True)):
        if alone.get(i, True):
            part = actual[g] if i == 4 else actual[t, 0 if i in (2, 6) else g]
            if i == 1:  # P is symmetric: nothing else of its gradient has a meaning
                part, wanted = part + part.mT, wanted + wanted.mT
            torch.testing.assert_close(part, wanted, rtol=1e-9, atol=1e-9)


@pytest.mark.parametrize("width", [30, 96, 100])
@pytest.mark.parametrize("streams", [3, 4])
def test_odd_shapes_of_mixing(streams, width):
    for tokens in TOKENS:
        coef = torch.randn(tokens, streams, streams).double()
        sources = torch.randn(tokens, streams, width).double()
        query, weight = torch.randn(2, width).double()

        def definition(logits, s, q, w):
            S = logits.exp()
            for _ in range(5):
                S = S / S.sum(-2, keepdim=True)
                S = S / S.sum(-1, keepdim=True)
            keys = w * s / (s.square().mean(-1, keepdim=True) + 1e-6).sqrt()
            a = torch.einsum("tsd,d->ts", keys, q).softmax(-1)
            mixed = torch.einsum("trs,tsd->trd", logits, s)
            return mixed, torch.einsum("ts,tsd->td", a, s), S

        def ours(logits, s, q, w):
            return (
                ops.mix(logits, list(s.unbind(-2))),
                ops.attnres(q, s, w),
                ops.sinkhorn(logits, 5),
            )

        results = [run_with_grads(f, coef, sources, query, weight) for f in (ours, definition)]
        for part in zip(*results, strict=True):
            for actual, expected in zip(*part, strict=True):
                torch.testing.assert_close(actual, expected, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("tokens", [0, 1, 7])
def test_tokens_are_independent(name, tokens):
    """Each token of a batch gets what it gets alone, without a batch axis."""
    function, inputs = make_calls(tokens)[name]
    shared = name.startswith("attnres")
    out = function(*inputs)
    for part in out if isinstance(out, tuple) else (out,):
        assert part.shape[0] == tokens
    for t in range(tokens):
        alone = function(*(x if shared and x.dim() == 1 else x[t] for x in inputs))
        pair = zip(*((y if isinstance(y, tuple) else (y,)) for y in (alone, out)), strict=True)
        for y, batched in pair:
            torch.testing.assert_close(y, batched[t], rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize("name", NAMES)
def test_no_tokens_give_zero_gradients(name):
    function, inputs = make_calls(0)[name]
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    total = sum(y.sum() for y in (out if isinstance(out, tuple) else (out,)))
    grads = torch.autograd.grad(total, leaves, allow_unused=True)
    for x, g in zip(inputs, grads, strict=True):
        assert g is None or torch.equal(g, torch.zeros_like(x))
    assert grads[0] is not None


@EVERY_WRITE
def test_any_argument_may_carry_the_groups(rule):
    """Forgetting or importance per group with everything else shared."""
    M, P = torch.randn(4, 8).double(), torch.eye(8).double()
    k, v = torch.randn(8).double(), torch.randn(4).double()
    per_group = torch.tensor([0.2, 0.5, 1.0]).double()
    for f, w in ((per_group, 0.5), (0.9, per_group), (per_group, per_group)):
        out, _ = WRITES[rule](M, P, k, v, f, w)
        for g in range(3):
            own = [x[g].item() if isinstance(x, torch.Tensor) else x for x in (f, w)]
            torch.testing.assert_close(out[g], WRITES[rule](M, P, k, v, *own)[0])


@pytest.mark.parametrize("rule", WRITES)
def test_depth_weights_broadcast(rule):
    keys, query = torch.randn(5, 3).double(), torch.randn(2, 1, 3).double()
    forgetting, importance = torch.rand(4, 5).double() + 0.1, torch.rand(5).double()
    c = ops.depth_weights(keys, forgetting, importance, 1.0, query, rule=rule)
    assert c.shape == (2, 4, 5)
    for i, g in ((0, 0), (1, 3)):
        own = ops.depth_weights(keys, forgetting[g], importance, 1.0, query[i, 0], rule=rule)
        torch.testing.assert_close(c[i, g], own)


@EVERY_WRITE
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_python_floats_equal_tensors(rule, dtype):
    M, P = torch.randn(3, 4, 8, dtype=dtype), torch.eye(8, dtype=dtype)
    k, v = torch.randn(3, 8, dtype=dtype), torch.randn(3, 4, dtype=dtype)
    full = [torch.full((3,), x, dtype=dtype) for x in (0.9, 0.3)]
    pair = zip(WRITES[rule](M, P, k, v, 0.9, 0.3), WRITES[rule](M, P, k, v, *full), strict=True)
    for a, b in pair:
        assert torch.equal(a.expand_as(b), b)


@pytest.mark.parametrize("name", NAMES)
def test_float64_stays_float64(name):
    function, inputs = make_calls()[name]
    out = function(*inputs)
    assert {y.dtype for y in (out if isinstance(out, tuple) else (out,))} == {torch.float64}


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("name", NAMES)
def test_low_precision_is_computed_in_float32_and_rounded_once(name, dtype):
    function, inputs = make_calls()[name]
    low = [x.to(dtype) for x in inputs]
    if "window" in name:
        # transitions are float32 by contract: only the memory and the values are low
        low = [x if i in (0, 3) else x.float() for i, x in enumerate(low)]
    out, expected = function(*low), function(*(x.float() for x in low))
    pair = zip(*((y if isinstance(y, tuple) else (y,)) for y in (out, expected)), strict=True)
    for actual, wide in pair:
        assert torch.equal(actual, wide.to(actual.dtype))
    kept = name.startswith(("window", "depth_weights", "ridge_solve", "attnres_weights"))
    first = out[0] if isinstance(out, tuple) else out
    assert first.dtype == (torch.float32 if kept else dtype)


def test_the_covariance_keeps_its_own_dtype():
    _, (M, P, k, v, f, w) = make_calls()["rls_write"]
    low = (M.bfloat16(), P.float(), k.bfloat16(), v.bfloat16(), f.float(), w.float())
    next_M, next_P = ops.rls_write(*low)
    exact_M, exact_P = ops.rls_write(*(x.float() for x in low))
    assert torch.equal(next_M, exact_M.bfloat16())
    assert torch.equal(next_P, exact_P)


@EVERY_WRITE
def test_float64_anywhere_is_computed_in_float64(rule):
    _, (M, P, k, v, f, w) = make_calls()["rls_write"]
    out = WRITES[rule](M.float(), P.float(), k.float(), v.float(), f, w)
    wide = WRITES[rule](*(x.float().double() for x in (M, P, k, v)), f, w)
    for a, b in zip(out, wide, strict=True):
        assert a.dtype == torch.float32
        assert torch.equal(a, b.float())
