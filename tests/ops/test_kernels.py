"""The Triton kernels, on the CPU: against the reference and finite differences."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from depth_memory import ops
from depth_memory.errors import UserError
from depth_memory.ops import _impl
from depth_memory.ops.mixing import registered
from tests.testing import assert_within_budget, run_with_grads

DTYPES = [torch.float32, torch.bfloat16, torch.float16]
# N, R, S, D: one of everything, odd sizes, more sums than sources, several blocks of D
SHAPES = [(1, 1, 1, 30), (3, 1, 5, 96), (5, 3, 4, 100), (7, 8, 2, 33), (2, 1, 9, 1100)]
CPU = torch.device("cpu")


def mix_inputs(N, R, S, D, dtype):
    return [torch.randn(N, R, S), *(torch.randn(N, D).to(dtype) for _ in range(S))]


def mix(impl):
    return lambda coef, *sources: ops.mix(coef, list(sources), impl=impl)


def attnres_inputs(N, S, D, dtype):
    # logits of unit size: a saturated softmax has gradients that are all cancellation
    query = torch.randn(D) * D**-0.5
    return [query, torch.rand(D) + 0.5, *(torch.randn(N, D).to(dtype) for _ in range(S))]


def attnres(impl):
    return lambda query, weight, *sources: ops.attnres(query, list(sources), weight, impl=impl)


OPS = {"mix": mix, "attnres": attnres}


def run(function, inputs):
    """The output, and the gradient of every input."""
    outputs, gradients = run_with_grads(function, *inputs)
    return [*outputs, *gradients]


def compare(op, inputs):
    """Output and every gradient within twice the reference's own error, plus one rounding."""
    exact = run(OPS[op]("reference"), [x.double() for x in inputs])
    peer = run(OPS[op]("reference"), inputs)
    found = run(OPS[op]("triton"), inputs)
    assert len(found) == len(exact)
    for i, (actual, right, other) in enumerate(zip(found, exact, peer, strict=True)):
        assert actual.dtype == other.dtype
        assert_within_budget(actual, right, other, f"{op} {i}")


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_mix_equals_the_reference(shape, dtype):
    compare("mix", mix_inputs(*shape, dtype))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("shape", [(N, S, D) for N, _, S, D in SHAPES], ids=str)
def test_attnres_equals_the_reference(shape, dtype):
    compare("attnres", attnres_inputs(*shape, dtype))


@pytest.mark.parametrize("tokens", [0, 1, 3, 7])
def test_any_number_of_tokens(tokens):
    compare("mix", mix_inputs(tokens, 2, 3, 30, torch.float32)) if tokens else None
    query, weight, *sources = (
        x.requires_grad_() for x in attnres_inputs(tokens, 3, 30, torch.float32)
    )
    out = ops.attnres(query, sources, weight, impl="triton")
    assert out.shape == (tokens, 30)
    out.sum().backward()
    if tokens == 0:
        assert torch.equal(query.grad, torch.zeros(30))
        coef = torch.randn(0, 2, 3, requires_grad=True)
        ops.mix(coef, sources, impl="triton").sum().backward()
        assert coef.grad.shape == (0, 2, 3)


@pytest.mark.parametrize("op", OPS)
def test_gradients_pass_finite_differences(op):
    shape = (3, 2, 3, 5) if op == "mix" else (3, 3, 5)
    make = {"mix": mix_inputs, "attnres": attnres_inputs}[op]
    inputs = [x.double().requires_grad_() for x in make(*shape, torch.float32)]
    assert torch.autograd.gradcheck(OPS[op]("triton"), inputs)


def test_leading_axes_broadcast_and_sources_may_be_one_tensor():
    coef = torch.randn(2, 1, 4, 3)
    stacked = torch.randn(5, 3, 8)
    found = ops.mix(coef, stacked, impl="triton")
    assert_within_budget(
        found, (coef.double() @ stacked.double()), ops.mix(coef, stacked, impl="reference"), "mix"
    )
    single = ops.mix(torch.ones(1, 2), [torch.ones(4), torch.ones(4)], impl="triton")
    assert torch.equal(single, torch.full((1, 4), 2.0))


def test_strided_sources_are_read_as_they_stand():
    sources = [x.mT for x in torch.randn(2, 6, 3)]
    coef = torch.randn(3, 1, 2)
    assert torch.equal(
        ops.mix(coef, sources, impl="triton"),
        ops.mix(coef, [s.contiguous() for s in sources], impl="triton"),
    )


def test_only_what_is_asked_for_gets_a_gradient():
    coef, source = torch.randn(3, 1, 1), torch.randn(3, 8)
    wanted = coef.clone().requires_grad_()
    ops.mix(wanted, [source], impl="triton").sum().backward()
    torch.testing.assert_close(wanted.grad[:, 0, 0], source.sum(-1))
    source.requires_grad_()
    ops.mix(coef, [source], impl="triton").sum().backward()
    torch.testing.assert_close(source.grad, coef[:, 0].expand(3, 8))


def test_nothing_is_left_unwritten_and_runs_repeat_to_the_bit():
    inputs = attnres_inputs(9, 4, 40, torch.float32)
    first, second = (run(attnres("triton"), inputs) for _ in range(2))
    assert all(torch.equal(a, b) and a.isfinite().all() for a, b in zip(first, second, strict=True))


def test_operators_pass_torchs_own_checks():
    coef, *sources = (x.requires_grad_() for x in mix_inputs(2, 2, 3, 8, torch.float32))
    torch.library.opcheck(registered.mix_rows, (coef, sources, torch.float32))
    query = torch.randn(8, requires_grad=True)
    torch.library.opcheck(registered.attnres_rows, (query, sources, 1e-6))
    plain = [s.detach() for s in sources]
    arguments = (coef.detach(), plain, torch.randn(2, 2, 8), True, True)
    torch.library.opcheck(registered.mix_rows_backward, arguments)
    _, weights, rstd = registered.attnres_rows(query.detach(), plain, 1e-6)
    arguments = (query.detach(), plain, weights, rstd, torch.randn(2, 8))
    torch.library.opcheck(registered.attnres_rows_backward, arguments)


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
@pytest.mark.parametrize("op", OPS)
def test_compiles_as_one_graph(op):
    torch._dynamo.reset()
    make = {"mix": mix_inputs, "attnres": attnres_inputs}[op]
    inputs = make(*((3, 2, 3, 8) if op == "mix" else (3, 3, 8)), torch.float32)
    compiled = torch.compile(OPS[op]("triton"), fullgraph=True, backend="aot_eager")
    eager, found = (run(f, inputs) for f in (OPS[op]("triton"), compiled))
    assert all(torch.equal(a, b) for a, b in zip(eager, found, strict=True))


def test_a_kernel_that_cannot_run_here_is_an_error(monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(UserError, match=r"^impl of mix: got 'triton'; allowed: auto, reference \("):
        ops.mix(torch.ones(1, 1), [torch.ones(3)], impl="triton")
    assert _impl.resolve("mix", "auto", CPU) == "reference"
    assert _impl.explain("mix", CPU) == "reference: Triton has no cpu backend"


def test_auto_takes_a_kernel_once_it_was_measured(monkeypatch):
    gpu = torch.device("cuda")
    assert _impl.resolve("mix", "auto", gpu) == "reference"
    assert _impl.explain("mix", gpu) == "reference: its kernel was not measured on a GPU yet"
    monkeypatch.setattr(_impl, "MEASURED", frozenset({"mix"}))
    assert _impl.resolve("mix", "auto", gpu) == "triton"
    assert _impl.explain("mix", gpu) == "triton: measured to be faster"
    assert _impl.explain("mix", CPU) == "reference: the interpreter is for tests"


def test_kernels_compile_for_the_gpus_that_people_have():
    """In a process of its own: the interpreter replaces the compiler when Triton is imported."""
    environment = {k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.compile_kernels"],
        cwd=Path(__file__).parents[2],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout.split() == ["80", "89", "90"]
