"""The protocol: what a stream is, and what every stream promises.

A *stream* carries representations across the depth of a network. A sublayer reads its input from
the stream and writes its output back; the layer that owns the sublayer never asks which stream it
has. State is a NamedTuple of tensors, or of tuples of them, threaded from call to call; nothing is
kept on a module, so that checkpointing, compilation and batching need no care. Where kernels run,
the state also holds the tape that they share, and a state that was used twice is an error.

Laws, held by `tests/streams/test_laws.py` for every stream:

1. Tokens do not mix: changing one token changes nothing at another.
2. Shape, dtype and device of the input are kept, and float64 stays float64.
3. Every parameter receives a gradient.
4. State is linear: each state is used once, by the next port.
5. A read is a sum of what was written, weighted by coefficients that are the same for all the
   channels of a group. `frozen_coefficients` makes these weights observable.
"""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from depth_memory.errors import Range, UserError, invalid

Norm = Callable[[Tensor], Tensor]
State = Any  # a NamedTuple of tensors or tuples of tensors, owned by the stream

MAX_WIDTH, MAX_SITES, MAX_RANK = 2**17, 2**14, 2**16
"""Largest width and number of sublayers of a network, and largest rank of a map in its stream."""

EPS = Range(1e-30, 1.0)
"""What may be added to a mean square: in float32 it is above 0, and divides 0 without a fault."""

MAX_VARIANTS = 16
"""Forms of state up to which compiling a port pays."""

CONTEXTS = 4
"""How often a form is compiled anew: to train, to evaluate, for a prompt, for one token."""

_frozen: ContextVar[bool] = ContextVar("frozen_coefficients", default=False)
_off: ContextVar[frozenset[int] | None] = ContextVar("switched_off", default=None)


@contextmanager
def frozen_coefficients() -> Generator[None]:
    """Detach every mixing coefficient, so that gradients show how D-sized vectors are mixed.

    With the coefficients held fixed a sublayer's input is linear in what was written, and its
    derivative with respect to an earlier output is exactly the weight with which it is retrieved.
    """
    token = _frozen.set(True)
    try:
        # a compiled port has `coefficient` as it was when it was traced: run it uncompiled
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        _frozen.reset(token)


def coefficient(value: Tensor) -> Tensor:
    """Mark `value` as a mixing coefficient: itself, or detached inside `frozen_coefficients`."""
    if torch.compiler.is_compiling():
        return value
    return value.detach() if _frozen.get() else value


class Fallback(NamedTuple):
    """What a sublayer sees while its read is switched off."""

    exists: bool
    """Whether that is anything else than what it sees otherwise."""
    words: str
    """What it sees; or why there is nothing to switch off."""


RESIDUAL = Fallback(False, "an ordinary residual already")


@contextmanager
def switched_off(*readers: StreamModule) -> Generator[None]:
    """Let what these ports and streams read fall back on an ordinary residual.

    A port then shows its sublayer, and a stream the final norm, what `fallback` says, which has
    nothing of what the stream learned for that read. No parameter changes, and the state goes on as
    it would: what later reads find differs only through what the sublayers make of theirs.

    Inside it the reference implementation runs, whatever `impl` says, and nothing compiled does;
    without readers it switches nothing off, which is what to compare with.

    Args:
        readers: Ports and streams of a model; contexts within one another add up.

    Raises:
        UserError: One of them reads an ordinary residual already, or has none to fall back on.
    """
    for reader in readers:
        if not reader.fallback.exists:
            raise invalid("readers", type(reader).__name__, f"another; {reader.fallback.words}")
    token = _off.set((_off.get() or frozenset()) | {id(reader) for reader in readers})
    try:
        with torch.compiler.set_stance("force_eager"):
            yield
    finally:
        _off.reset(token)


def is_off(reader: StreamModule) -> bool:
    """Whether `reader` is switched off."""
    if torch.compiler.is_compiling():
        return False
    return id(reader) in (_off.get() or ())


def is_observed() -> bool:
    """Whether coefficients are frozen, or reads may be off: kernels know nothing of either."""
    return _frozen.get() or _off.get() is not None


class StreamModule(nn.Module):
    """A module of a stream with parameters of its own and a start that it alone knows."""

    fallback: Fallback = RESIDUAL
    """What is read while it is switched off, for a port or a stream."""

    compiled: tuple[str, ...] = ()
    """The methods that have been replaced by compiled ones."""

    keeps_float32: bool = False
    """Whether the module's own parameters stay float32 when the model is cast to less."""

    def reset_parameters(self) -> None:
        """Set the module's own parameters (not its children's) to their documented start."""

    def compile_methods(self, *names: str, **options: Any) -> None:
        """Put compiled forms in the place of the methods named."""
        for name in names:
            setattr(self, name, torch.compile(getattr(self, name), **options))
        self.compiled = names

    def __getstate__(self) -> dict[str, Any]:
        # a compiled method is bound to this module: a copy must not run with its parameters
        state = super().__getstate__()
        return {name: value for name, value in state.items() if name not in self.compiled}

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> nn.Module:
        if not self.keeps_float32:
            return super()._apply(fn, recurse)

        def cast(tensor: Tensor) -> Tensor:
            result = fn(tensor)
            return result if result.itemsize >= 4 else tensor.to(result.device)

        return super()._apply(cast, recurse)


class Port(StreamModule, ABC):
    """One sublayer's connection to the stream; owns that sublayer's parameters."""

    traced: tuple[str, ...] = ("read", "write")
    """The methods that compiling replaces."""

    variants: int = 1
    """How many structures of state the port can meet over the sites of one model."""

    @abstractmethod
    def read(self, state: State, norm: Norm) -> tuple[Float[Tensor, "*tokens D"], State]:
        """What the sublayer sees.

        Args:
            state: The stream's state, used here and nowhere else.
            norm: The sublayer's own pre-norm; it stays the layer's module.

        Returns:
            The normed input, and the state with whatever `write` will need.
        """

    @abstractmethod
    def write(self, state: State, y: Float[Tensor, "*tokens D"]) -> State:
        """The state once the sublayer has produced `y`."""

    def preserve_(self) -> None:
        """Change the parameters in place so that the port acts as an ordinary residual addition.

        Raises:
            UserError: No parameters of this port do that.
        """
        raise UserError(f"{type(self).__name__}: no parameters make it an ordinary residual")

    def compile(self, **options: Any) -> None:
        """Compile `read` and `write`, unless their state takes more forms than compiling pays for.

        A port whose state grows with depth would be compiled once per layer; it stays eager. All
        ports of a class share what is compiled. Past its limit torch goes on uncompiled with no
        more than a log line, so `torch._dynamo.config.recompile_limit`, which is one for the whole
        process, is raised to what the forms need and stays so; a higher one is left alone.
        """
        if self.variants > MAX_VARIANTS:
            return
        config = torch._dynamo.config
        limit = max(config.recompile_limit, CONTEXTS * self.variants)
        config.recompile_limit = limit  # ty: ignore[invalid-assignment]
        self.compile_methods(*self.traced, **options)


class Stream(StreamModule, ABC):
    """What carries information across depth. One per model.

    Constructed from its configuration, the width and the number of sublayers; `config` is what was
    built, with `auto` values resolved.
    """

    output_init_scale: float = 1.0
    """Factor on the initial standard deviation of each sublayer's output projection."""

    def __init__(self, config: Any, dim: int, sites: int):
        super().__init__()
        self.config, self.dim, self.sites = config, dim, sites

    @abstractmethod
    def start(self, x: Float[Tensor, "*tokens D"]) -> State:
        """The state after the embedding, before the first sublayer."""

    @abstractmethod
    def finish(self, state: State, norm: Norm) -> Float[Tensor, "*tokens D"]:
        """The output of the trunk: what the stream holds at the end, through the final norm."""

    @abstractmethod
    def port(self, site: int) -> Port:
        """A new port for sublayer `site` (attention 2i, MLP 2i + 1); the layer owns it.

        Raises:
            UserError: There is no such sublayer.
        """

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        if "port" in vars(cls):
            cls.port = _within_sites(cls.port)  # ty: ignore[invalid-assignment]
        if "start" in vars(cls):
            cls.start = _of_width(cls.start)  # ty: ignore[invalid-assignment]

    def preserve_(self) -> None:
        """As `Port.preserve_`, for what the stream itself owns; nothing by default."""


def _of_width(begin: Callable[[Any, Tensor], State]) -> Callable[[Any, Tensor], State]:
    """A stream's `start` that refuses tokens of another width."""

    @functools.wraps(begin)
    def start(self: Stream, x: Tensor) -> State:
        if x.ndim == 0 or x.shape[-1] != self.dim:
            raise invalid("x: shape", list(x.shape), f"[..., {self.dim}], the width of the stream")
        return begin(self, x)

    return start


def _within_sites(make: Callable[[Any, int], Port]) -> Callable[[Any, int], Port]:
    """A stream's `port` that refuses a sublayer which its network does not have."""

    @functools.wraps(make)
    def port(self: Stream, site: int) -> Port:
        allowed = Range(0, self.sites - 1)
        if not isinstance(site, int) or not allowed.allows(site):
            raise invalid("site", site, f"a whole number, {allowed}")
        return make(self, site)

    return port
