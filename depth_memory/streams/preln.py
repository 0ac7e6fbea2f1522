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
    """The residual stream."""

    h: Float[Tensor, "*tokens D"]


class PreLN(Stream):
    """`h <- h + f(norm(h))`."""

    def start(self, x: Tensor) -> Residual:
        return Residual(x)

    def finish(self, state: Residual, norm: Norm) -> Tensor:
        return norm(state.h)

    def port(self, site: int) -> Port:
        del site
        return PreLNPort()


class PreLNPort(Port):
    """Reads the stream, adds to the stream."""

    def read(self, state: Residual, norm: Norm) -> tuple[Tensor, Residual]:
        return norm(state.h), state

    def write(self, state: Residual, y: Tensor) -> Residual:
        return Residual(state.h + y)

    def preserve_(self) -> None:
        """Nothing to change: this is the ordinary residual."""
