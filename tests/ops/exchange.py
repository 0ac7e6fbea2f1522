"""Inputs of the exchange's kernels, and the comparison of a launcher with its formula."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from depth_memory.ops._precision import compute_dtype
from tests.testing import assert_within_budget

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
