"""The passes over D-sized vectors, and what each must move; rows [N, ...] in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

RANK = 32
"""Width of a latent."""


@dataclass(frozen=True, kw_only=True)
class Sizes:
    """Of what the passes work on."""

    tokens: int = 16384
    width: int = 2048
    key_dim: int = 8
    groups: int = 4
    window: int = 8

    @property
    def seen(self) -> int:
        """Writes of the window that the timed read sees: the average."""
        return (self.window + 1) // 2


class Pass(NamedTuple):
    """A pass, and every tensor that it must read or write."""

    run: Callable[[], Any]
    moved: Iterable[Tensor | None]

    @property
    def bytes(self) -> int:
        """What must move."""
        return sum(tensor.nbytes for tensor in self.moved if tensor is not None)


class Maker:
    """Random tensors of the sizes. Final."""

    def __init__(self, sizes: Sizes, device: torch.device):
        self.sizes, self.device = sizes, device

    def vectors(self, *count: int) -> Tensor:
        """Of width D, in bfloat16: [*count, N, D]."""
        return self.values(*count, self.sizes.tokens, self.sizes.width).bfloat16()

    def values(self, *shape: int) -> Tensor:
        """In float32."""
        return torch.randn(shape, device=self.device)

    def per_group(self, *shape: int, count: int | None = None) -> Tensor:
        """In float32, for every token and group: [count, N, G, *shape]."""
        first = () if count is None else (count,)
        return self.values(*first, self.sizes.tokens, self.sizes.groups, *shape)


def copy(make: Maker) -> Pass:
    """What all else is compared with."""
    source = make.vectors(8)
    target = torch.empty_like(source)
    return Pass(lambda: target.copy_(source), (source, target))


def project_forward(make: Maker) -> Pass:
    """Add two vectors; the sum and its latent."""
    from depth_memory.ops.exchange.project import project_forward as run

    a, b, out = make.vectors(), make.vectors(), make.vectors()
    weight = make.values(RANK, make.sizes.width).bfloat16()
    latent, rstd = run(a, b, weight, out)
    return Pass(lambda: run(a, b, weight, out), (a, b, weight, out, latent, rstd))


def project_backward(make: Maker) -> Pass:
    """The gradient of the residual stream's sum, with that of one read."""
    from depth_memory.ops.exchange.project import project_backward as run

    s, d_in, d_read = make.vectors(), make.vectors(), make.vectors()
    weight = make.values(RANK, make.sizes.width).bfloat16()
    latent, d_latent = (make.values(make.sizes.tokens, RANK) for _ in range(2))
    rstd, groups = make.values(make.sizes.tokens).abs() + 1, make.sizes.groups
    found = run(s, weight, latent, rstd, d_latent, d_in, d_read, None, groups)
    moved = (s, d_in, d_read, weight, latent, rstd, d_latent, *found)
    return Pass(lambda: run(s, weight, latent, rstd, d_latent, d_in, d_read, None, groups), moved)


def return_backward(make: Maker) -> Pass:
    """The gradient of a value, from the reads of its window and the memory it was folded into."""
    from depth_memory.ops.exchange.project import Returns
    from depth_memory.ops.exchange.project import project_backward as run

    sizes = make.sizes
    n, K, half = sizes.window, sizes.key_dim, sizes.window - sizes.seen
    s, d_in, grads, base = make.vectors(), make.vectors(), make.vectors(n), make.vectors(K)
    weights, scales = make.per_group(n, count=n), make.per_group(count=n)
    fold = make.per_group(K, n)
    weight = make.values(RANK, sizes.width).bfloat16()
    latent, d_latent = (make.values(sizes.tokens, RANK) for _ in range(2))
    rstd = make.values(sizes.tokens).abs() + 1
    returns = Returns(grads, weights, scales, half, n, 0, fold, base)
    arguments = (s, weight, latent, rstd, d_latent, d_in, None, returns, sizes.groups)
    coefficients = (weights[half:, ..., 0], scales[half:], fold[..., 0])
    moved = (s, d_in, grads[half:], base, *coefficients, weight, latent, rstd, d_latent)
    return Pass(lambda: run(*arguments), (*moved, *run(*arguments)))


def _reading(make: Maker) -> tuple[Any, Any]:
    """A read of a window that is as full as on average, and the norm after it."""
    from depth_memory.ops.exchange.read import Norm, Reading

    sizes = make.sizes
    values, base = make.vectors(sizes.seen), make.vectors(sizes.key_dim)
    weights, rest, scale = (make.per_group(n) for n in (sizes.window, sizes.key_dim, 1))
    weight = make.values(sizes.width).bfloat16()
    reading = Reading(values, sizes.seen, base, weights, rest, scale[..., 0].contiguous())
    return reading, Norm(weight, 1e-6)


def _read(reading: Any) -> tuple[Tensor, ...]:
    """What a read must read."""
    weights = reading.weights[..., : reading.count]
    return reading.values, reading.base, weights, reading.rest, reading.scale


def read_forward(make: Maker) -> Pass:
    """Read a window and the memory before it, add the residual stream, norm."""
    from depth_memory.ops.exchange.read import read_forward as run

    h, (reading, norm) = make.vectors(), _reading(make)
    out, rstd = run(h, reading, norm)
    return Pass(lambda: run(h, reading, norm), (h, *_read(reading), norm.weight, out, rstd))


def read_backward(make: Maker) -> Pass:
    """The gradients of a read; the residual stream is built again."""
    from depth_memory.ops.exchange.read import read_backward as run
    from depth_memory.ops.exchange.read import read_forward

    h, d_out, dz, (reading, norm) = make.vectors(), make.vectors(), make.vectors(), _reading(make)
    out, rstd = read_forward(h, reading, norm)
    found = run(h, reading, norm, out, rstd, d_out, dz)
    coefficients = (found.d_weights[..., : reading.count], found.d_rest)
    moved = (h, *_read(reading), norm.weight, rstd, out, d_out, dz, found.h, *coefficients)
    return Pass(lambda: run(h, reading, norm, out, rstd, d_out, dz), moved)


def _fold(make: Maker) -> Any:
    from depth_memory.ops.exchange.fold import Fold

    sizes = make.sizes
    K = sizes.key_dim
    return Fold(make.per_group(K, K), make.per_group(K, sizes.window))


def fold_forward(make: Maker) -> Pass:
    """Fold a full window into the memory."""
    from depth_memory.ops.exchange.fold import fold_forward as run

    n = make.sizes.window
    base, values, fold = make.vectors(make.sizes.key_dim), make.vectors(n), _fold(make)
    out = run(base, values, n, fold, base.dtype)
    return Pass(lambda: run(base, values, n, fold, base.dtype), (base, values, *fold, out))


def fold_backward(make: Maker) -> Pass:
    """The gradient of a memory from a window of reads and the next fold, and of what made it."""
    from depth_memory.ops.exchange.fold import Uses
    from depth_memory.ops.exchange.fold import fold_backward as run

    n, K = make.sizes.window, make.sizes.key_dim
    base, values, fold, after = make.vectors(K), make.vectors(n), _fold(make), _fold(make)
    rests, scales = make.per_group(K, count=n), make.per_group(count=n)
    uses = Uses(make.vectors(n), rests, scales, n, make.vectors(K), after)
    d_out, d_fold = run(base, values, n, fold, uses, base.dtype)
    used = (uses.grads, rests, scales, uses.next_grad, after.rest)
    moved = (base, values, *used, d_out, *d_fold)
    return Pass(lambda: run(base, values, n, fold, uses, base.dtype), moved)


def add_norm_forward(make: Maker) -> Pass:
    """Add to the residual stream and norm."""
    from depth_memory.ops.exchange.norm import add_norm_forward as run
    from depth_memory.ops.exchange.read import Norm

    h, y, norm = (
        make.vectors(),
        make.vectors(),
        Norm(make.values(make.sizes.width).bfloat16(), 1e-6),
    )
    return Pass(lambda: run(h, y, norm), (h, y, norm.weight, *run(h, y, norm)))


def add_norm_backward(make: Maker) -> Pass:
    """The gradients of that, with what came by other ways."""
    from depth_memory.ops.exchange.norm import add_norm_backward as run
    from depth_memory.ops.exchange.read import Norm

    total, d_out, d_h, d_y = (make.vectors() for _ in range(4))
    norm = Norm(make.values(make.sizes.width).bfloat16(), 1e-6)
    found = run(total, norm, d_out, d_h, d_y)
    moved = (total, norm.weight, d_out, d_h, d_y, *found)
    return Pass(lambda: run(total, norm, d_out, d_h, d_y), moved)


def _mixing(make: Maker) -> tuple[Tensor, list[Tensor]]:
    """One set of coefficients over as many vectors as a window holds; and the vectors."""
    n = make.sizes.window
    return make.values(make.sizes.tokens, 1, n), list(make.vectors(n))


def mix_forward(make: Maker) -> Pass:
    """A weighted sum of vectors."""
    from depth_memory.ops.mixing.triton import mix_forward as run

    coef, sources = _mixing(make)
    dtype = sources[0].dtype
    return Pass(lambda: run(coef, sources, dtype), (coef, *sources, run(coef, sources, dtype)))


def mix_backward(make: Maker) -> Pass:
    """The gradients of a weighted sum."""
    from depth_memory.ops.mixing.triton import mix_backward as run

    (coef, sources), d_out = _mixing(make), make.vectors(1).transpose(0, 1).contiguous()
    d_coef, d_sources = run(coef, sources, d_out, (True, True))
    moved = (coef, *sources, d_out, d_coef, *d_sources)
    return Pass(lambda: run(coef, sources, d_out, (True, True)), moved)


def attnres_forward(make: Maker) -> Pass:
    """Attention over as many vectors as a window holds."""
    from depth_memory.ops.mixing.triton import attnres_forward as run

    direction, (_, sources) = make.values(make.sizes.width), _mixing(make)
    return Pass(
        lambda: run(direction, sources, 1e-6), (direction, *sources, *run(direction, sources, 1e-6))
    )


def attnres_backward(make: Maker) -> Pass:
    """The gradients of that attention."""
    from depth_memory.ops.mixing.triton import attnres_backward as run
    from depth_memory.ops.mixing.triton import attnres_forward

    direction, (_, sources) = make.values(make.sizes.width), _mixing(make)
    _, weights, rstd = attnres_forward(direction, sources, 1e-6)
    d_out = make.vectors()
    d_direction, d_sources = run(direction, sources, weights, rstd, d_out)
    moved = (direction, *sources, weights, rstd, d_out, d_direction, *d_sources)
    return Pass(lambda: run(direction, sources, weights, rstd, d_out), moved)


PASSES: dict[str, tuple[str | None, Callable[[Maker], Pass]]] = {
    "copy": (None, copy),
    "project forward": ("exchange", project_forward),
    "project backward": ("exchange", project_backward),
    "return backward": ("exchange", return_backward),
    "read forward": ("exchange", read_forward),
    "read backward": ("exchange", read_backward),
    "fold forward": ("exchange", fold_forward),
    "fold backward": ("exchange", fold_backward),
    "add_norm forward": ("exchange", add_norm_forward),
    "add_norm backward": ("exchange", add_norm_backward),
    "mix forward": ("mix", mix_forward),
    "mix backward": ("mix", mix_backward),
    "attnres forward": ("attnres", attnres_forward),
    "attnres backward": ("attnres", attnres_backward),
}
"""Name of a pass -> the op whose kernel it is, and what makes it."""
