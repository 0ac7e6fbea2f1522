"""Each launcher of the exchange against its formula in plain torch, one by one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from torch import Tensor

from depth_memory.ops.exchange import fold, norm, project, read
from tests.ops.exchange import (
    DTYPES,
    DV,
    NORM_EPS,
    WINDOW,
    WRITES,
    D,
    G,
    Inputs,
    K,
    N,
    R,
    every_dtype,
    wide,
)
from tests.testing import assert_within_budget


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
        assert kernels >= 14
        # what a program may have on sm_89, the least of the three
        assert shared <= 99 * 1024
