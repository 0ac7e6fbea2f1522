"""What tests share: inputs, oracles, budgets. Random inputs draw on the seeded global state."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Literal, NamedTuple

import torch
from torch import Tensor

KeyKind = Literal["random", "near", "identical"]
KEY_KINDS: tuple[KeyKind, ...] = ("random", "near", "identical")


class Observations(NamedTuple):
    """What is written over depth: keys [..., n, Dk], values [..., n, Dv], and scalars [..., n]."""

    keys: Tensor
    values: Tensor
    forgetting: Tensor
    importance: Tensor

    @property
    def count(self) -> int:
        return self.keys.shape[-2]

    def to(self, dtype: torch.dtype) -> Observations:
        return Observations(*(x.to(dtype) for x in self))

    def steps(self) -> Iterable[tuple[Tensor, Tensor, Tensor, Tensor]]:
        k, v, f, w = self
        return zip(k.unbind(-2), v.unbind(-2), f.unbind(-1), w.unbind(-1), strict=True)


def unit(x: Tensor) -> Tensor:
    """`x` with length 1 along the last axis."""
    return torch.nn.functional.normalize(x, dim=-1)


def make_keys(kind: KeyKind, *shape: int) -> Tensor:
    """Unit keys [..., n, Dk] in float64: random, one repeated, or one repeated with 0.005 noise."""
    keys = torch.randn(*shape, dtype=torch.float64)
    if kind == "random":
        return unit(keys)
    first = unit(keys[..., :1, :]).expand(shape)
    return first if kind == "identical" else unit(first + 0.005 * keys)


def make_observations(
    n: int,
    *tokens: int,
    key_dim: int = 8,
    value_dim: int = 4,
    kind: KeyKind = "random",
    retention: float | None = None,
    importance: float | None = None,
) -> Observations:
    """Observations in float64 that float32 holds exactly, so that both precisions see the same.

    Without `retention` every write has a forgetting of its own in [0.7, 1]; with it all have the
    same, and their product is `retention`. Importance is random in [0, 1] unless given.
    """
    forgetting = 0.7 + 0.3 * torch.rand(*tokens, n, dtype=torch.float64)
    if retention is not None:
        forgetting = torch.full_like(forgetting, retention ** (1 / max(n, 1)))
    values = torch.randn(*tokens, n, value_dim, dtype=torch.float64)
    weights = torch.rand(*tokens, n, dtype=torch.float64)
    if importance is not None:
        weights = torch.full_like(weights, importance)
    keys = make_keys(kind, *tokens, n, key_dim)
    return Observations(keys, values, forgetting, weights).to(torch.float32).to(torch.float64)


def every_kind_of_key(n: int, *tokens: int, **options: float | None) -> Observations:
    """Observations [kinds, ...], one batch for each of `KEY_KINDS`."""
    batches = [make_observations(n, *tokens, kind=kind, **options) for kind in KEY_KINDS]
    return Observations(*map(torch.stack, zip(*batches, strict=True)))


def empty_memory(obs: Observations, alpha: float = 1.0) -> tuple[Tensor, Tensor]:
    """The state before the first write, in the dtype of the keys."""
    *tokens, _, width = obs.keys.shape
    M = obs.values.new_zeros(*tokens, obs.values.shape[-1], width)
    return M, alpha * torch.eye(width, dtype=obs.keys.dtype).expand(*tokens, width, width)


def write_all(
    write: Callable, obs: Observations, alpha: float = 1.0
) -> list[tuple[Tensor, Tensor]]:
    """The states after each write."""
    states = [empty_memory(obs, alpha)]
    for step in obs.steps():
        states.append(write(*states[-1], *step))
    return states[1:]


def gram_matrices(obs: Observations, alpha: float = 1.0) -> list[Tensor]:
    """The inverse of P after each write, accumulated directly."""
    A = torch.eye(obs.keys.shape[-1], dtype=obs.keys.dtype) / alpha
    out = []
    for k, _, f, w in obs.steps():
        A = f[..., None, None] * A + w[..., None, None] * k[..., :, None] * k[..., None, :]
        out.append(A)
    return out


def condition(A: Tensor) -> Tensor:
    """`|A| |A^-1|` of a symmetric positive matrix."""
    eigenvalues = torch.linalg.eigvalsh(A)
    return eigenvalues[..., -1] / eigenvalues[..., 0]


def relative_error(actual: Tensor, exact: Tensor, axes: int) -> float:
    """Largest |actual - exact| / |exact|, each a Euclidean norm over the last `axes` axes."""
    dims = tuple(range(-axes, 0))
    error = torch.linalg.vector_norm(actual.double() - exact.double(), dim=dims)
    return (error / torch.linalg.vector_norm(exact.double(), dim=dims)).max().item()


def assert_within_budget(actual: Tensor, exact: Tensor, peer: Tensor, name: str) -> None:
    """Error against float64: at most twice that of an independent run in the same precision."""
    assert actual.dtype == peer.dtype, f"{name}: {actual.dtype} against {peer.dtype}"
    assert actual.shape == exact.shape, f"{name}: {actual.shape} against {exact.shape}"
    if not exact.numel():
        return
    exact = exact.double()
    ulp = torch.finfo(actual.dtype).eps * exact.abs().max()
    error = (actual.double() - exact).abs().max()
    allowed = 2 * ((peer.double() - exact).abs().max() + ulp)
    assert error <= allowed, f"{name}: error {error:.2e} over budget {allowed:.2e}"


def run_with_grads(
    function: Callable, *inputs: Tensor | float, cotangents: Sequence[Tensor] | None = None
) -> tuple[tuple[Tensor, ...], list[Tensor | None]]:
    """Outputs, and the gradient of each input (None for one that is not a tensor).

    The same code for a reference and what is held against it. The scalar that is differentiated
    weights every output entry differently, or by the given cotangents.
    """
    leaves = [x.detach().clone().requires_grad_() if isinstance(x, Tensor) else x for x in inputs]
    out = function(*leaves)
    outputs = tuple(out) if isinstance(out, tuple | list) else (out,)
    if cotangents is None:
        cotangents = [torch.cos(torch.arange(y.numel()).view(y.shape) * 1.7) for y in outputs]
    loss = sum((y * c.to(y.dtype)).sum() for y, c in zip(outputs, cotangents, strict=True))
    wanted = [x for x in leaves if isinstance(x, Tensor)]
    grads = iter(torch.autograd.grad(loss, wanted))
    return tuple(y.detach() for y in outputs), [
        next(grads) if isinstance(x, Tensor) else None for x in leaves
    ]


def seed_all(seed: int) -> None:
    """Seed every generator that a test may draw from."""
    import numpy as np

    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002 - libraries under test draw from the global state
    torch.manual_seed(seed)
