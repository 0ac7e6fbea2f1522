"""One write and one read of few tokens, whose gradient nobody asks for, in two launches.

The memory is kept as it is, M [N, D, K], and moves on with every write: few tokens move few bytes,
and what takes time is the launches. `latents` is spread over the channels; `step` has one program
per token, which makes keys, weights and queries of the latents, and then passes over the channels:

    M' = keep M + (v - keep M erase) gain'        z = h + scale M' q        x = weight z / rms(z)
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
import triton
from torch import Tensor

from depth_memory.ops import _launch
from depth_memory.ops.exchange.project import EPS
from depth_memory.ops.exchange.read import Norm
from depth_memory.ops.exchange.step_kernels import latents_kernel, step_kernel

SLICE = 256
"""Most channels of a program that forms latents."""
ROWS = 4096
"""Most entries of the memory that a program holds at a time."""
LARGEST = 16384
"""Most entries of a small map, or of P, that a program can hold."""
RULES = {"ldm": 0, "ldm_delta": 1, "ldm_outer": 2}
NORMS = {"none": 0, "unit": 1, "rms": 2}
IMPORTANCE = {"one": 0, "sigmoid": 1, "softplus": 2}


class Map(NamedTuple):
    """An affine map `W x + b`."""

    weight: Tensor
    bias: Tensor


class Maps(NamedTuple):
    """What a write and the read after it learned; a map that is missing is None."""

    write_latent: Map
    key: Map
    importance: Map | None
    forgetting: Tensor | None
    """Logits [G]; forgetting is `exp(log_floor sigmoid(logit))`."""
    log_floor: float
    read_latent: Map
    query: Map
    gate: Map | None
    gain: Tensor


class Form(NamedTuple):
    """The choices of a stream."""

    rule: str
    groups: int
    key_dim: int
    shared_keys: bool
    key_norm: str
    query_norm: str
    importance: str

    @classmethod
    def of(cls, config: Any) -> Form:
        """The choices of an LDM configuration."""
        return cls(config.name, *(getattr(config, name) for name in cls._fields[1:]))


class Values(NamedTuple):
    """What lies between two reads, rows [N, D]."""

    h: Tensor
    add: Tensor | None
    """What the residual stream gains; nothing for an embedding."""
    first: Tensor
    """The value to write, or its first part."""
    second: Tensor | None


class State(NamedTuple):
    """M [N, D, K], nothing before the first write, and P [N, G, K, K] for least squares."""

    M: Tensor | None
    P: Tensor | None


def fits(groups: int, key_dim: int, ranks: tuple[int, int]) -> bool:
    """Whether a program can hold the small maps in registers."""
    G, K = triton.next_power_of_2(groups), triton.next_power_of_2(key_dim)
    return G * K * max(K, *map(triton.next_power_of_2, ranks)) <= LARGEST


def step(
    values: Values, state: State, maps: Maps, form: Form, norm: Norm | None
) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
    """Write a value, read, and norm.

    Returns:
        The residual stream with what was added; the read, normed if there is a norm; M and P.
        Nothing is changed in place.
    """
    h = values.h
    N, D = h.shape
    widths = maps.write_latent.weight.shape[0], maps.read_latent.weight.shape[0]
    accumulate, dtype = _launch.accumulator((h,)), _launch.compute_dtype((h,))
    total, out = torch.empty_like(h), torch.empty_like(h)
    M = torch.empty(N, D, form.key_dim, dtype=dtype, device=h.device)
    P = None if state.P is None else torch.empty_like(state.P)
    if N:
        BD = _launch.block_of(D, SLICE)
        slices = triton.cdiv(D, BD)
        sizes = {"RW": widths[0], "RR": widths[1], "D": D, "ACC": accumulate}
        sizes |= {"BW": triton.next_power_of_2(widths[0]), "BR": triton.next_power_of_2(widths[1])}
        partial = torch.empty(N, slices, sum(widths) + 2, dtype=dtype, device=h.device)
        latents_kernel[(N, slices)](
            h, _or(values.add, h), values.first, _or(values.second, h),
            maps.write_latent.weight, maps.read_latent.weight, total, partial, N,
            BD=BD, ADD=values.add is not None, SUM=values.second is not None, num_warps=4, **sizes,
        )  # fmt: skip
        step_kernel[(N,)](
            total, values.first, _or(values.second, h), partial, *_small(maps, total),
            _or(state.M, total), _or(state.P, total), total if norm is None else norm.weight,
            M, _or(P, total), out, N, 0.0 if norm is None else norm.eps,
            S=slices, BS=triton.next_power_of_2(slices), EPS=EPS, **sizes, **_choices(form, maps),
            BV=_launch.block_of(D // form.groups, ROWS // triton.next_power_of_2(form.key_dim)),
            FIRST=state.M is None, SUM=values.second is not None, NORM=norm is not None,
            num_warps=8,
        )  # fmt: skip
    return total, out, M, P


def _small(maps: Maps, like: Tensor) -> tuple[object, ...]:
    """The arguments for the small maps; one that is missing is not looked at."""
    weigh, gate = maps.importance or (like, like), maps.gate or (like, like)
    return (
        maps.write_latent.bias, *maps.key, *weigh, _or(maps.forgetting, like), maps.log_floor,
        maps.read_latent.bias, *maps.query, *gate, maps.gain,
    )  # fmt: skip


def _choices(form: Form, maps: Maps) -> dict[str, object]:
    """The constants of the kernel that say what it computes."""
    return {
        "G": form.groups,
        "K": form.key_dim,
        "BG": triton.next_power_of_2(form.groups),
        "BK": triton.next_power_of_2(form.key_dim),
        "RULE": RULES[form.rule],
        "KEY_NORM": NORMS[form.key_norm],
        "QUERY_NORM": NORMS[form.query_norm],
        "WEIGH": IMPORTANCE[form.importance],
        "EACH": 0 if form.shared_keys else 1,
        "FORGET": maps.forgetting is not None,
        "GATE": maps.gate is not None,
    }


def _or(tensor: Tensor | None, other: Tensor) -> Tensor:
    """A pointer for an argument that the kernel does not look at."""
    return other if tensor is None else tensor
