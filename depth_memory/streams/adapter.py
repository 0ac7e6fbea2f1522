"""A control for LDM: the ordinary residual, and a low-rank map at the input of every sublayer.

    x = norm(h)        the sublayer sees x + U V x        h <- h + y

It adds parameters to a network and no way through its depth: what a stream gains over this control
is not owed to its parameters. The map follows the norm, so that what is read stays the plain sum.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar

from torch import Tensor, nn
from torch.nn import functional as F

from depth_memory.errors import Range, check_ranges
from depth_memory.streams import _init
from depth_memory.streams.base import MAX_RANK, Fallback, Norm, Port, Stream, StreamModule, is_off
from depth_memory.streams.preln import Residual


@dataclass(frozen=True, kw_only=True)
class PreLNAdapterConfig:
    """PreLN with a low-rank adapter per sublayer; at the start an ordinary residual. Ours."""

    name: ClassVar[str] = "preln_adapter"
    rank: Annotated[int, Range(1, MAX_RANK)] = 32
    """Rank r of the map, which has 2 r D parameters. `presets.counts.control` finds the one with
    which a network has as many new parameters as another stream gives it."""

    def __post_init__(self) -> None:
        check_ranges(self, "stream.")


class PreLNAdapter(Stream):
    """`h <- h + f(x + U V x)` with `x = norm(h)`."""

    def start(self, x: Tensor) -> Residual:
        return Residual(x)

    def finish(self, state: Residual, norm: Norm) -> Tensor:
        return norm(state.h)

    def port(self, site: int) -> Port:
        del site
        return AdapterPort(self.dim, self.config.rank)


class Adapter(StreamModule):
    """`x + U V x`; U starts at 0, V at unit scale."""

    def __init__(self, dim: int, rank: int):
        super().__init__()
        self.down = _init.empty(rank, dim)
        self.up = _init.empty(dim, rank)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.down, std=self.down.shape[1] ** -0.5)
        nn.init.zeros_(self.up)

    def forward(self, x: Tensor) -> Tensor:
        """The mapped vector, in the dtype of `x`."""
        mapped = F.linear(F.linear(x.to(self.down.dtype), self.down), self.up)
        return x + mapped.to(x.dtype)


class AdapterPort(Port):
    """Maps what it reads; adds to the stream."""

    fallback = Fallback(True, "the residual stream without the low-rank map")

    def __init__(self, dim: int, rank: int):
        super().__init__()
        self.adapter = Adapter(dim, rank)

    def read(self, state: Residual, norm: Norm) -> tuple[Tensor, Residual]:
        x = norm(state.h)
        return (x if is_off(self) else self.adapter(x)), state

    def write(self, state: Residual, y: Tensor) -> Residual:
        return Residual(state.h + y)

    def preserve_(self) -> None:
        nn.init.zeros_(self.adapter.up)
