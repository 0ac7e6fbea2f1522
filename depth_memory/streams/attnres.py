"""Attention Residuals: every sublayer attends over what earlier ones produced.

Kimi team, arXiv 2603.15031. The input of a sublayer is a softmax-weighted sum of the embedding and
the earlier outputs (full), or of the embedding and sums of outputs over blocks (block). The query
of each sublayer is a learned vector that starts at 0: the start is a mean.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from depth_memory.errors import Range, check_ranges, choose
from depth_memory.ops import attnres_weights, mix
from depth_memory.ops._precision import compute_dtype
from depth_memory.streams import _init
from depth_memory.streams.base import (
    EPS,
    MAX_SITES,
    RESIDUAL,
    Fallback,
    Norm,
    Port,
    Stream,
    StreamModule,
    coefficient,
    is_off,
)


@dataclass(frozen=True, kw_only=True)
class AttnResConfig:
    """Full Attention Residuals."""

    name: ClassVar[str] = "attnres"
    eps: Annotated[float, EPS] = 1e-6
    """Added to the mean square of a key. The paper gives none; public code mostly uses 1e-6."""

    def __post_init__(self) -> None:
        check_ranges(self, "stream.")


@dataclass(frozen=True, kw_only=True)
class BlockAttnResConfig:
    """Block Attention Residuals."""

    name: ClassVar[str] = "block_attnres"
    blocks: Annotated[int, Range(1, MAX_SITES)] = 8
    """Number of blocks; block b of N starts at sublayer floor(b L / N). Paper: about 8. A network
    of fewer than N sublayers has one block per sublayer."""
    boundary: Literal["sublayer", "attention"] = "sublayer"
    """Where a block may start: at any sublayer, or at attention sublayers only (rounded down), as
    in public code. The paper cuts L sublayers into N equal blocks; where N does not divide L, and
    the default, are ours."""
    eps: Annotated[float, EPS] = 1e-6
    """As in `attnres`."""

    def __post_init__(self) -> None:
        check_ranges(self, "stream.")
        choose("stream.boundary", self.boundary, ("sublayer", "attention"))


class Sources(NamedTuple):
    """What can be attended to: finished sources, and the running sum of the open block, if any."""

    done: tuple[Float[Tensor, "*tokens D"], ...]
    open: tuple[Float[Tensor, "*tokens D"], ...]

    @property
    def all(self) -> tuple[Tensor, ...]:
        """Every source, oldest first."""
        return self.done + self.open


class DepthQuery(StreamModule):
    """A learned query over depth, with the weight of its key norm."""

    def __init__(self, dim: int, eps: float):
        super().__init__()
        self.eps = eps
        self.query = _init.empty(dim)
        self.key_norm = _init.empty(dim)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.query)
        nn.init.ones_(self.key_norm)

    def forward(self, sources: tuple[Tensor, ...]) -> Tensor:
        """The weighted sum of the sources, [*tokens, D]."""
        weights = attnres_weights(self.query, sources, self.key_norm, self.eps)
        return mix(coefficient(weights)[..., None, :], sources)[..., 0, :]


def attended(query: DepthQuery, reader: StreamModule, sources: tuple[Tensor, ...]) -> Tensor:
    """What a port or the stream reads: by its query, or the mean if it is switched off."""
    if not is_off(reader):
        return query(sources)
    dtype = compute_dtype(sources)
    weights = torch.full(
        (1, len(sources)), 1.0 / len(sources), dtype=dtype, device=sources[0].device
    )
    return mix(weights, sources)[..., 0, :]


def block_starts(config: AttnResConfig | BlockAttnResConfig, sites: int) -> frozenset[int]:
    """The sublayers that start a block; full attention has one block per sublayer."""
    if isinstance(config, AttnResConfig):
        return frozenset(range(sites))
    count = min(config.blocks, sites)
    starts = (block * sites // count for block in range(count))
    step = 2 if config.boundary == "attention" else 1
    return frozenset(start // step * step for start in starts)


EVENLY = Fallback(True, "the mean of its sources, which the norm takes for their sum")


class AttnRes(Stream):
    """Attention over depth, full or in blocks; the output is one more attention."""

    fallback = EVENLY

    def __init__(self, config: AttnResConfig | BlockAttnResConfig, dim: int, sites: int):
        super().__init__(config, dim, sites)
        self.starts = block_starts(config, sites)
        self.head = DepthQuery(dim, config.eps)

    def start(self, x: Tensor) -> Sources:
        return Sources((x,), ())

    def finish(self, state: Sources, norm: Norm) -> Tensor:
        return norm(attended(self.head, self, state.all))

    def port(self, site: int) -> Port:
        query = DepthQuery(self.dim, self.config.eps) if site > 0 else None
        # a state is told apart by its number of finished blocks and by whether one is open
        return AttnResPort(query, site in self.starts, variants=2 * len(self.starts))


class AttnResPort(Port):
    """Attends over the sources; the first sublayer sees the embedding, its only source."""

    def __init__(self, query: DepthQuery | None, starts_block: bool, variants: int):
        super().__init__()
        self.attend = query
        self.fallback = RESIDUAL if query is None else EVENLY
        self.starts_block = starts_block
        self.variants = variants

    def read(self, state: Sources, norm: Norm) -> tuple[Tensor, Sources]:
        if self.starts_block:
            state = Sources(state.all, ())
        if self.attend is None:
            return norm(state.done[0]), state
        return norm(attended(self.attend, self, state.all)), state

    def write(self, state: Sources, y: Tensor) -> Sources:
        running = state.open[0] + y if state.open else y
        return Sources(state.done, (running,))
