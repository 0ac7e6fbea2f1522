"""PreLN: one residual stream, to which every sublayer adds its output."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple

from jaxtyping import Float
from torch import Tensor

from depth_memory.streams.base import Norm, Port, Stream


@dataclass(frozen=True, kw_only=True)
class PreLNConfig:
    """The ordinary residual stream; it has no choices."""

    name: ClassVar[str] = "preln"


class Residual(NamedTuple):
    """The residual stream, and the output that the next read adds to it while it norms the sum."""

    h: Float[Tensor, "*tokens D"]
    output: tuple[Float[Tensor, "*tokens D"], ...] = ()

    @property
    def sum(self) -> Float[Tensor, "*tokens D"]:
        """The residual stream with nothing left to add."""
        return self.h + self.output[0] if self.output else self.h


class PreLN(Stream):
    """`h <- h + f(norm(h))`."""

    def start(self, x: Tensor) -> Residual:
        return Residual(x)

    def finish(self, state: Residual, norm: Norm) -> Tensor:
        return norm(state.sum)

    def port(self, site: int) -> Port:
        del site
        return PreLNPort()


class PreLNPort(Port):
    """Reads the stream, adds to the stream."""

    variants = 2

    def read(self, state: Residual, norm: Norm) -> tuple[Tensor, Residual]:
        h = state.sum
        return norm(h), Residual(h)

    def write(self, state: Residual, y: Tensor) -> Residual:
        return Residual(state.h, (y,))

    def preserve_(self) -> None:
        """Nothing to change: this is the ordinary residual."""
