"""Every public op is one graph."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch

from tests.ops.cases import NAMES, make_calls


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", [n for n in NAMES if " at " not in n and not n.endswith("outer")])
def test_compiled_equals_eager(name):
    function, inputs = make_calls()[name]
    compiled = torch.compile(function, fullgraph=True, backend="aot_eager")
    for a, b in zip(_run(compiled, inputs), _run(function, inputs), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-13, atol=1e-13)


def _run(function, inputs):
    """Outputs and the gradients that there are."""
    leaves = [x.clone().requires_grad_() for x in inputs]
    out = function(*leaves)
    outputs = out if isinstance(out, tuple) else (out,)
    grads = torch.autograd.grad(sum(y.sum() for y in outputs), leaves, allow_unused=True)
    return [y.detach() for y in outputs] + [g for g in grads if g is not None]
