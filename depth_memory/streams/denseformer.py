"""DenseFormer: after each block, a learned weighted average over all block outputs so far.

Pagliardini et al., arXiv 2402.02622. With X_0 the embedding and X_j the raw output of block j:

    Y_i = sum_j alpha_{i,j} X_j,    j <= i + 1 and j congruent to i + 1 modulo the dilation
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor

from depth_memory.errors import Range, check_ranges
from depth_memory.ops import mix
from depth_memory.streams import _init
from depth_memory.streams.base import (
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
class DenseFormerConfig:
    """Depth-weighted averages with static weights; at the start an ordinary residual."""

    name: ClassVar[str] = "denseformer"
    dilation: Annotated[int, Range(1, MAX_SITES)] = 1
    """Average every k-th block output only. Paper: 1, in practice 4."""
    period: Annotated[int, Range(1, MAX_SITES)] = 1
    """Average after every p-th block only. Paper: 1, in practice 5."""

    def __post_init__(self) -> None:
        check_ranges(self, "stream.")


class Dense(NamedTuple):
    """The residual stream, and the raw outputs of the blocks so far, the embedding first."""

    h: Float[Tensor, "*tokens D"]
    outputs: tuple[Float[Tensor, "*tokens D"], ...]


def after(config: DenseFormerConfig, sites: int) -> Fallback:
    """What is left of a read after `sites` sublayers without the average that came before it."""
    if sites == 0 or sites % 2 or (sites // 2) % config.period:
        return RESIDUAL
    return Fallback(True, "the last block's output in place of the average over depth")


class DenseFormer(Stream):
    """The residual stream of a block starts from an average over depth."""

    def __init__(self, config: DenseFormerConfig, dim: int, sites: int):
        super().__init__(config, dim, sites)
        self.fallback = after(config, sites)

    def start(self, x: Tensor) -> Dense:
        return Dense(x, (x,))

    def finish(self, state: Dense, norm: Norm) -> Tensor:
        return norm(state.outputs[-1] if is_off(self) else state.h)

    def port(self, site: int) -> Port:
        blocks = (self.sites + 1) // 2  # the state holds one more output after each
        if site % 2 == 0:
            return InnerPort(after(self.config, site), blocks)
        return BlockPort(self.config, site // 2, blocks)


class InnerPort(Port):
    """The attention sublayer: an ordinary residual inside its block."""

    def __init__(self, fallback: Fallback, variants: int):
        super().__init__()
        self.fallback, self.variants = fallback, variants

    def read(self, state: Dense, norm: Norm) -> tuple[Tensor, Dense]:
        return norm(state.outputs[-1] if is_off(self) else state.h), state

    def write(self, state: Dense, y: Tensor) -> Dense:
        return Dense(state.h + y, state.outputs)

    def preserve_(self) -> None:
        """Nothing to change."""


class Average(StreamModule):
    """The weights of the block outputs after one block; at the start the last one alone."""

    def __init__(self, size: int, dilation: int):
        super().__init__()
        self.dilation = dilation
        self.weights = _init.empty(size)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        size = self.weights.shape[0]
        _init.set_(self.weights, _init.one_hot(size - 1, size))

    def forward(self, outputs: tuple[Tensor, ...]) -> Tensor:
        """The weighted sum of every k-th output, counted back from the last."""
        chosen = outputs[(len(outputs) - 1) % self.dilation :: self.dilation]
        return mix(coefficient(self.weights)[None, :], chosen)[..., 0, :]


class BlockPort(Port):
    """The MLP sublayer: ends its block, with an average after every p-th."""

    def __init__(self, config: DenseFormerConfig, block: int, variants: int):
        super().__init__()
        self.variants = variants
        size = (block + 1) // config.dilation + 1
        averages = (block + 1) % config.period == 0
        self.average = Average(size, config.dilation) if averages else None

    def read(self, state: Dense, norm: Norm) -> tuple[Tensor, Dense]:
        return norm(state.h), state

    def write(self, state: Dense, y: Tensor) -> Dense:
        h = state.h + y
        outputs = (*state.outputs, h)
        return Dense(h if self.average is None else self.average(outputs), outputs)

    def preserve_(self) -> None:
        if self.average is not None:
            self.average.reset_parameters()
