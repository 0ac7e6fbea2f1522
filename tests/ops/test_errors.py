"""A mistake in the input is one line that names the field, what it got and what is allowed."""

from __future__ import annotations

import re

import pytest
import torch

from depth_memory import ops
from depth_memory.errors import UserError
from depth_memory.ops import _impl

M, P, K, V = torch.zeros(4, 8), torch.eye(8), torch.zeros(8), torch.zeros(4)
KEYS, VALUES, ONES = torch.zeros(5, 8), torch.zeros(5, 4), torch.ones(5)
WRITES = (ops.rls_write, ops.delta_write, ops.outer_write)
NAN, INF = float("nan"), float("inf")
STEP = ops.outer_transition(K, torch.ones(()), torch.ones(()))


def refused(call, field, got, allowed):
    with pytest.raises(UserError) as caught:
        call()
    message = str(caught.value)
    assert "\n" not in message
    assert message == f"{field}: got {got}; allowed: {allowed}"


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("value", [0.0, 1.1, -0.5, NAN, INF, 2])
def test_forgetting_out_of_range(write, value):
    call = lambda: write(M, P, K, V, value, 1.0)  # noqa: E731
    refused(call, "forgetting", repr(value), "0 < forgetting <= 1")


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize("value", [-1.0, INF, -INF, NAN])
def test_importance_out_of_range(write, value):
    upper = " <= 1" if write is ops.delta_write else ""
    call = lambda: write(M, P, K, V, 1.0, value)  # noqa: E731
    refused(call, "importance", repr(value), f"finite, 0 <= importance{upper}")


def test_delta_importance_is_at_most_1():
    call = lambda: ops.delta_write(M, P, K, V, 1.0, 1.5)  # noqa: E731
    refused(call, "importance", "1.5", "finite, 0 <= importance <= 1")
    ops.rls_write(M, P, K, V, 1.0, 1.5)


@pytest.mark.parametrize("alpha", [0.0, -1.0, INF, NAN])
def test_alpha_out_of_range(alpha):
    allowed = "finite, alpha > 0"
    refused(lambda: ops.ridge_solve(KEYS, VALUES, ONES, ONES, alpha), "alpha", repr(alpha), allowed)
    refused(lambda: ops.depth_weights(KEYS, ONES, ONES, alpha, K), "alpha", repr(alpha), allowed)


@pytest.mark.parametrize("write", WRITES)
@pytest.mark.parametrize(
    ("field", "arguments"),
    [
        ("M", (torch.zeros(8), P, K, V)),
        ("P", (M, torch.eye(7), K, V)),
        ("P", (M, torch.zeros(7, 8), K, V)),
        ("P", (M, torch.zeros(8), K, V)),
        ("key", (M, P, torch.zeros(7), V)),
        ("key", (M, P, torch.zeros(()), V)),
        ("value", (M, P, K, torch.zeros(8))),
    ],
)
def test_shapes_of_a_write(write, field, arguments):
    with pytest.raises(UserError, match=rf"^{field}: got \(.*; allowed: .*(axis|axes)"):
        write(*arguments, 1.0, 1.0)


@pytest.mark.parametrize(
    ("field", "call"),
    [
        ("query", lambda: ops.read(M, torch.zeros(7))),
        ("M", lambda: ops.read(K, K)),
        ("values", lambda: ops.ridge_solve(KEYS, torch.zeros(4, 4), ONES, ONES, 1.0)),
        ("forgetting", lambda: ops.ridge_solve(KEYS, VALUES, ONES[:4], ONES, 1.0)),
        ("importance", lambda: ops.ridge_solve(KEYS, VALUES, ONES, ONES[:4], 1.0)),
        ("keys", lambda: ops.ridge_solve(K, VALUES, ONES, ONES, 1.0)),
        ("query", lambda: ops.depth_weights(KEYS, ONES, ONES, 1.0, torch.zeros(7))),
        ("forgetting", lambda: ops.depth_weights(KEYS, ONES[:4], ONES, 1.0, K)),
        ("values", lambda: ops.window_read(M, [STEP], [], K)),
        ("values", lambda: ops.window_fold(M, [STEP], [V, V])),
        ("query", lambda: ops.window_read(M, [STEP], [V], torch.zeros(7))),
        ("M", lambda: ops.window_read(torch.zeros(4, 7), [STEP], [V], K)),
        ("M", lambda: ops.window_fold(torch.zeros(4, 7), [STEP], [V])),
        ("window", lambda: ops.window_read(None, [], [], K)),
        ("window", lambda: ops.window_fold(M, [], [])),
        ("sources", lambda: ops.mix(torch.zeros(1, 3), torch.zeros(4, 8))),
        ("sources", lambda: ops.mix(torch.zeros(1, 3), [K, K])),
        ("sources", lambda: ops.mix(torch.zeros(1, 0), [])),
        ("sources", lambda: ops.mix(torch.zeros(1, 2), [K, torch.zeros(1)])),
        ("coef", lambda: ops.mix(torch.zeros(3), torch.zeros(3, 8))),
        ("sources", lambda: ops.attnres(K, [], K)),
        ("sources", lambda: ops.attnres(K, torch.zeros(0, 8), K)),
        ("sources", lambda: ops.attnres(K, [K, torch.zeros(1)], K)),
        ("query", lambda: ops.attnres(torch.zeros(7), KEYS, K)),
        ("norm_weight", lambda: ops.attnres(K, KEYS, torch.zeros(1))),
        ("logits", lambda: ops.sinkhorn(K)),
        ("iterations", lambda: ops.sinkhorn(P, 0)),
    ],
)
def test_shapes_and_counts(field, call):
    with pytest.raises(UserError, match=rf"^{field}: got .*; allowed: \S") as caught:
        call()
    assert "\n" not in str(caught.value)


def test_unknown_rule():
    call = lambda: ops.depth_weights(KEYS, ONES, ONES, 1.0, K, rule="lms")  # noqa: E731
    refused(call, "rule", "'lms'", "delta, outer, rls")


IMPL_CALLS = {
    "rls_write": lambda impl: ops.rls_write(M, P, K, V, 1.0, 1.0, impl=impl),
    "delta_write": lambda impl: ops.delta_write(M, P, K, V, 1.0, 1.0, impl=impl),
    "outer_write": lambda impl: ops.outer_write(M, P, K, V, 1.0, 1.0, impl=impl),
    "read": lambda impl: ops.read(M, K, impl=impl),
    "sinkhorn": lambda impl: ops.sinkhorn(P, impl=impl),
}


@pytest.mark.parametrize("op", IMPL_CALLS)
def test_a_kernel_that_cannot_run_is_an_error(op):
    """Never a fallback: what was asked for by name runs, or nothing does."""
    call = IMPL_CALLS[op]
    assert op not in _impl.KERNELS
    refused(
        lambda: call("triton"),
        f"impl of {op}",
        "'triton'",
        "auto, reference (this op has no Triton kernel)",
    )
    refused(lambda: call("cuda"), "impl", "'cuda'", "auto, reference, triton")
    call("auto"), call("reference")
    assert re.fullmatch(r"reference: \S.*", _impl.explain(op, torch.device("cpu")))


def test_tensors_are_never_synchronised():
    """Ranges are checked for Python floats; a tensor's values are not looked at."""
    meta = [x.to("meta") for x in (M, P, K, V, torch.zeros(()), torch.zeros(()))]
    for write in WRITES:
        out, _ = write(*meta)
        assert out.shape == (4, 8)
