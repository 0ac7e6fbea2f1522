"""Each launcher of the exchange against its formula in plain torch, one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

from depth_memory.ops._precision import compute_dtype
from depth_memory.ops.exchange import covariance, fold, norm, project, read, sweep
from tests.testing import assert_within_budget, unit

DTYPES = [torch.float64, torch.float32, torch.bfloat16]
N, G, DV, K, R = 12, 2, 21, 3, 5
D, WINDOW, WRITES = G * DV, 4, 3  # a window that is not full
NORM_EPS = 1e-6

every_dtype = pytest.mark.parametrize("dtype", DTYPES, ids=str)


def assert_close(actual: Tensor, exact: Tensor, peer: Tensor, name: str) -> None:
    """By budget; in float64, in which the peer is the exact result, to 1e-12."""
    if actual.dtype != torch.float64:
        return assert_within_budget(actual, exact, peer, name)
    atol = 1e-12 * exact.abs().max().item()
    return torch.testing.assert_close(actual, exact, rtol=1e-12, atol=atol, msg=name)


class Inputs:
    """Random tensors, the same for a kernel, for the formula, and for the formula in float64.

    Vectors of the model's width have the dtype under test; coefficients are float32 or float64.
    """

    def __init__(self, dtype: torch.dtype, shapes: dict[str, tuple[int, ...]], vectors: str):
        self.dtype, self.wide = dtype, compute_dtype((torch.empty(0, dtype=dtype),))
        self.values = {
            name: torch.randn(shape, dtype=torch.float64).to(
                dtype if name in vectors.split() else self.wide
            )
            for name, shape in shapes.items()
        }

    def run(self, formula: Callable, *, exact: bool, wanted: str) -> list[Tensor]:
        """The outputs, and the gradients of what is `wanted`, as plain torch computes them."""
        leaves = {n: x.double() if exact else x for n, x in self.values.items()}
        leaves = {n: x.detach().clone().requires_grad_() for n, x in leaves.items()}
        outputs = formula(**leaves)
        loss = sum(
            (y * d.to(y.dtype)).sum()
            for y, d in zip(outputs, self.cotangents(outputs), strict=True)
        )
        grads = torch.autograd.grad(loss, [leaves[name] for name in wanted.split()])
        return [*(y.detach() for y in outputs), *grads]

    def cotangents(self, outputs: tuple[Tensor, ...]) -> list[Tensor]:
        """What weighs every entry of the outputs differently, in a dtype that all can hold."""
        angles = (torch.arange(y.numel()).view(y.shape) * 1.7 for y in outputs)
        return [torch.cos(angle).bfloat16().double() for angle in angles]

    def compare(self, kernel: Callable, formula: Callable, wanted: str, names: str) -> None:
        exact = self.run(formula, exact=True, wanted=wanted)
        peer = self.run(formula, exact=False, wanted=wanted)
        weights = self.cotangents(tuple(peer[: -len(wanted.split())]))
        weights = [w.to(y.dtype) for w, y in zip(weights, peer, strict=False)]
        found = kernel(*weights, **self.values)
        for actual, right, other, name in zip(
            found, exact, peer, [*names.split(), *wanted.split()], strict=True
        ):
            assert_close(actual, right, other, name)


def wide(*xs: Tensor) -> list[Tensor]:
    return [x.to(compute_dtype((x,))) for x in xs]


def only_gradient(x: Tensor) -> Tensor:
    """0, with the gradient of `x`: what only a backward kernel computes."""
    return x - x.detach()


def project_formula(a, b, weight, grads, weights, scales, memory, fold_weights):
    """The sum goes on as it is, and to reads and a memory whose gradients are `grads`, `memory`."""
    s = a + b
    x, w, grads, memory = wide(s, weight, grads, memory)
    latent = (x @ w.mT) * torch.rsqrt(x.square().mean(-1, keepdim=True) + project.EPS)
    grouped = x.unflatten(-1, (G, DV))
    returned = weights[..., 1] * scales  # of the value in slot 1
    reads = (returned[..., None] * grouped) * grads.unflatten(-1, (G, DV))
    rows = fold_weights[..., 1].permute(2, 0, 1)[..., None] * grouped
    rows = rows * memory.unflatten(-1, (G, DV))
    # reads before the slot was written give it nothing
    return s, latent, only_gradient(reads[1:].sum() + rows.sum())


def project_kernel(d_s, d_latent, _, a, b, weight, grads, weights, scales, memory, fold_weights):
    s = torch.empty_like(a)
    latent, rstd = project.project_forward(a, b, weight, s)
    returns = project.Returns(
        grads, weights, scales, first=1, last=3, index=1, fold=fold_weights, base=memory
    )
    d, d_weight = project.project_backward(
        s, weight, latent, rstd, d_latent, d_s, None, returns, groups=G
    )
    return s, latent, latent.new_zeros(()), d, d, d_weight


@every_dtype
def test_project(dtype):
    shapes = {
        "a": (N, D), "b": (N, D), "weight": (R, D), "grads": (3, N, D),
        "weights": (3, N, G, WINDOW), "scales": (3, N, G), "memory": (K, N, D),
        "fold_weights": (N, G, K, WINDOW),
    }  # fmt: skip
    inputs = Inputs(dtype, shapes, "a b weight grads memory")
    inputs.compare(project_kernel, project_formula, "a b weight", "sum latent returned")


def test_project_of_one_vector_without_anything_else():
    inputs = Inputs(torch.float64, {"a": (20, D), "weight": (R, D)}, "a weight")

    def formula(a, weight):
        return ((a @ weight.mT) * torch.rsqrt(a.square().mean(-1, keepdim=True) + project.EPS),)

    def kernel(d_latent, a, weight):
        latent, rstd = project.project_forward(a, None, weight, None)
        d = project.project_backward(a, weight, latent, rstd, d_latent, None, None, None, G)
        return latent, *d

    inputs.compare(kernel, formula, "a weight", "latent")


def read_formula(h, values, base, weights, rest, scale, norm_weight=None):
    z, *rows = wide(h, values, base)
    values, base = (x.unflatten(-1, (G, DV)) for x in rows)
    found = torch.einsum("ngc,cngv->ngv", weights[..., :WRITES], values[:WRITES])
    found = found + torch.einsum("ngk,kngv->ngv", rest, base)
    z = z + (scale[..., None] * found).flatten(-2)
    if norm_weight is None:
        return (z.to(h.dtype),)
    z = (z * torch.rsqrt(z.square().mean(-1, keepdim=True) + NORM_EPS)).to(h.dtype)
    return (z * norm_weight,)


def read_kernel(d_out, h, values, base, weights, rest, scale, norm_weight=None):
    known = None if norm_weight is None else read.Norm(norm_weight, NORM_EPS)
    seen = read.Reading(values, WRITES, base, weights, rest, scale)
    out, rstd = read.read_forward(h, seen, known)
    # the backward pass builds `h` from where the window began
    start, dz = h.clone(), torch.empty_like(h)
    for value in values[:WRITES].flip(0):
        start = start - value
    grads = read.read_backward(start, seen, known, out, rstd, d_out, dz)
    assert grads.h.shape == h.shape
    d_weights = torch.where(torch.arange(WINDOW) < WRITES, grads.d_weights, 0)
    d_scale = (d_weights * weights).sum(-1) + (grads.d_rest * rest).sum(-1)
    found = [out, dz, d_weights * scale[..., None], grads.d_rest * scale[..., None], d_scale]
    return found if grads.d_norm is None else [*found, grads.d_norm]


READ = {
    "h": (N, D), "values": (WINDOW, N, D), "base": (K, N, D), "weights": (N, G, WINDOW),
    "rest": (N, G, K), "scale": (N, G),
}  # fmt: skip


@pytest.mark.parametrize("normed", [True, False], ids=["normed", "plain"])
@pytest.mark.parametrize("dtype", DTYPES[:2], ids=str)
def test_read(dtype, normed):
    shapes = {**READ, "norm_weight": (D,)} if normed else READ
    inputs = Inputs(dtype, shapes, "h values base norm_weight")
    wanted = "h weights rest scale" + (" norm_weight" if normed else "")
    inputs.compare(read_kernel, read_formula, wanted, "out")


@pytest.mark.parametrize("normed", [True, False], ids=["normed", "plain"])
def test_read_in_half_precision(normed):
    """Of integers, which bfloat16 adds exactly: `h` is what the backward pass builds again."""
    shapes = {**READ, "norm_weight": (D,)} if normed else READ
    inputs = Inputs(torch.bfloat16, shapes, "h values base norm_weight")
    for name in ("h", "values"):
        inputs.values[name] = (4 * inputs.values[name]).round()
    wanted = "h weights rest scale" + (" norm_weight" if normed else "")
    inputs.compare(read_kernel, read_formula, wanted, "out")


def fold_formula(base, values, rest, weights, grads, read_rests, scales, next_grad, next_rest):
    """The folded rows, and what reads and the next fold make of them."""
    rows, values, grads, next_grad = wide(base, values, grads, next_grad)
    rows, values = rows.unflatten(-1, (G, DV)), values.unflatten(-1, (G, DV))
    out = torch.einsum("ngkj,jngv->kngv", rest, rows)
    out = out + torch.einsum("ngkc,cngv->kngv", weights[..., :WRITES], values[:WRITES])
    seen = torch.einsum("mngk,kngv->mngv", scales[..., None] * read_rests, out)
    later = torch.einsum("ngkj,jngv->kngv", next_rest, out)
    used = (seen.flatten(-2) * grads).sum() + (later.flatten(-2) * next_grad).sum()
    return out.flatten(-2).detach().to(base.dtype), only_gradient(used)


def fold_kernel(_, d, base, values, rest, weights, grads, read_rests, scales, next_grad, next_rest):
    taken = fold.Fold(rest, weights)
    out = fold.fold_forward(base, values, WRITES, taken, base.dtype)
    following = fold.Fold(next_rest, weights)
    uses = fold.Uses(grads, read_rests, scales, 2, next_grad, following)
    _, d_fold = fold.fold_backward(base, values, WRITES, taken, uses, base.dtype)
    return out, rest.new_zeros(()), d * d_fold.rest, d * d_fold.weights


@every_dtype
def test_fold(dtype):
    shapes = {
        "base": (K, N, D), "values": (WINDOW, N, D), "rest": (N, G, K, K),
        "weights": (N, G, K, WINDOW), "grads": (2, N, D), "read_rests": (2, N, G, K),
        "scales": (2, N, G), "next_grad": (K, N, D), "next_rest": (N, G, K, K),
    }  # fmt: skip
    inputs = Inputs(dtype, shapes, "base values grads next_grad")
    inputs.compare(fold_kernel, fold_formula, "rest weights", "out used")


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


@every_dtype
def test_add_norm(dtype):
    def formula(h, y, weight):
        (x,) = wide(h + y)
        x = (x * torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS)).to(h.dtype)
        # `h` and `y` go on, too
        return x * weight, 1 * h, 1 * y

    def kernel(d_out, d_h, d_y, h, y, weight):
        known = read.Norm(weight, NORM_EPS)
        total, out = norm.add_norm_forward(h, y, known)
        assert_within_budget(total, h.double() + y.double(), h + y, "total")
        return out, h, y, *norm.add_norm_backward(total, known, d_out, d_h, d_y)

    inputs = Inputs(dtype, {"h": (N, D), "y": (N, D), "weight": (D,)}, "h y weight")
    inputs.compare(kernel, formula, "h y weight", "out h y")


def test_the_kernels_of_a_pass_compile_and_fit():
    """In a process of its own: the interpreter replaces the compiler when Triton is imported."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.ops.compile_exchange", "-q"],
        cwd=Path(__file__).parents[2],
        env={k: v for k, v in os.environ.items() if k != "TRITON_INTERPRET"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    found = [tuple(map(int, line.split())) for line in done.stdout.splitlines()]
    assert [target for target, _, _ in found] == [80, 89, 90]
    for _, kernels, shared in found:
        assert kernels >= 12
        # what a program may have on sm_89, the least of the three
        assert shared <= 99 * 1024
