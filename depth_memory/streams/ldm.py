"""Linear Depth Memory: beside the residual stream, a regression memory kept exact over depth.

Every sublayer sees `norm(h + scale * M q)` and writes its output to `h` and, with a key of its own,
to the memory. The write rule is recursive least squares; the ablations take its place one by one.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, NamedTuple

from jaxtyping import Float
from torch import Tensor

from depth_memory.errors import UserError
from depth_memory.streams import ldm_fused, ldm_step
from depth_memory.streams.base import RESIDUAL, Fallback, Norm, Port, Stream, is_off
from depth_memory.streams.ldm_config import AbstractLDMConfig, auto_window
from depth_memory.streams.ldm_maps import Prior, Reader, Writer
from depth_memory.streams.memory import Memory, MemoryForm

RULES = {"ldm": "rls", "ldm_delta": "delta", "ldm_outer": "outer"}


class Streams(NamedTuple):
    """The residual stream, the memory, and what a later write will need.

    `pending` is what a block's attention produced, and `seen` the input that the sublayer saw.
    """

    h: Float[Tensor, "*tokens D"]
    memory: Memory
    pending: tuple[Float[Tensor, "*tokens D"], ...] = ()
    seen: tuple[Float[Tensor, "*tokens D"], ...] = ()


State = Streams | ldm_fused.Exchange | ldm_step.Stepping
"""By the reference, by kernels with gradients, or by kernels for few tokens without."""


def carrier(state: ldm_fused.Exchange | ldm_step.Stepping) -> Any:
    """The module whose kernels carry a state."""
    return ldm_fused if isinstance(state, ldm_fused.Exchange) else ldm_step


class LDM(Stream):
    """The residual stream and a memory; `config.name` names the write rule."""

    def __init__(self, config: AbstractLDMConfig, dim: int, sites: int):
        config.check_shape(dim, sites)
        self.writes = config.writes(sites)
        chosen = config.window
        window = auto_window(config.key_dim, self.writes) if isinstance(chosen, str) else chosen
        super().__init__(replace(config, window=window), dim, sites)
        # a window that no write can overflow is never folded: nothing would read the result
        fold_at = window if window < self.writes else self.writes + 1
        self.form = MemoryForm(RULES[config.name], fold_at, config.groups, config.state_dtype)
        self.prior = Prior(config) if self.form.has_covariance else None
        if config.embedding_write:
            self.embedding_writer = self._writer(first=True)
        if config.final_read:
            self.final_reader = Reader(config, dim)
        self.fallback = fallback(config, reads=config.final_read)

    def _writer(self, first: bool) -> Writer:
        forgets = not first or self.form.has_covariance
        return Writer(self.config, self.dim, self.writes, forgets)

    def kernels(self, x: Tensor) -> Any:
        """The module whose kernels carry a pass that begins with `x`; None for the reference."""
        return next((k for k in (ldm_step, ldm_fused) if k.applies(self, x)), None)

    def start(self, x: Tensor) -> State:
        kernels = self.kernels(x)
        if kernels is not None:
            return kernels.begin(self, x)
        memory = self.form.start(None if self.prior is None else self.prior(x))
        if self.config.embedding_write:
            memory = self.form.store(memory, x, self.embedding_writer(x))
        return Streams(x, memory)

    def finish(self, state: State, norm: Norm) -> Tensor:
        if not isinstance(state, Streams):
            return carrier(state).read(state, self.final_reader, norm)[0]
        if not self.config.final_read or is_off(self):
            return norm(state.h)
        return norm(retrieve(self.form, self.final_reader, state, self.config.residual))

    def port(self, site: int) -> Port:
        config = self.config
        per_block = config.sites == "block"
        reads = (site > 0 or config.embedding_write) and not (per_block and site % 2)
        # nothing reads after the last sublayer unless the head does
        writes = (site < self.sites - 1 or config.final_read) and (not per_block or site % 2 == 1)
        first = not config.embedding_write and site == (1 if per_block else 0)
        return LDMPort(
            self.form,
            config,
            Reader(config, self.dim) if reads else None,
            self._writer(first) if writes else None,
            keeps_output=per_block and site % 2 == 0,
            variants=self._variants(),
        )

    def _variants(self) -> int:
        # the window holds 1 to n - 1 writes before it is first folded, and 0 to n - 1 from then on
        windows = min(2 * self.form.window - 1, self.writes)
        ends = 2  # the first port may have nothing to read, the last nothing to write
        return windows * (2 if self.config.sites == "block" else 1) + ends

    def preserve_(self) -> None:
        if not self.config.residual:
            raise UserError("stream.residual: got False; allowed: True, to keep a model's function")
        if self.config.final_read:
            self.final_reader.silence_()


class LDMPort(Port):
    """Reads the memory into a sublayer's input; writes its output to both streams."""

    traced = ("plain_read", "plain_write")

    def __init__(
        self,
        form: MemoryForm,
        config: AbstractLDMConfig,
        reader: Reader | None,
        writer: Writer | None,
        *,
        keeps_output: bool,
        variants: int,
    ):
        super().__init__()
        self.form, self.config, self.variants = form, config, variants
        self.reader, self.writer, self.keeps_output = reader, writer, keeps_output
        self.fallback = fallback(config, reads=reader is not None)

    def read(self, state: State, norm: Norm) -> tuple[Tensor, State]:
        if isinstance(state, Streams):
            return self.plain_read(state, norm)
        return carrier(state).read(state, self.reader, norm)

    def write(self, state: State, y: Tensor) -> State:
        if isinstance(state, Streams):
            return self.plain_write(state, y)
        return carrier(state).write(state, y, self.writer)

    def plain_read(self, state: Streams, norm: Norm) -> tuple[Tensor, Streams]:
        """`read` by the reference operations."""
        x = state.h
        if self.reader is not None and not is_off(self):
            x = retrieve(self.form, self.reader, state, self.config.residual)
        x = norm(x)
        if self.writer is not None and self.config.latent_input == "input":
            state = Streams(state.h, state.memory, state.pending, (x,))
        return x, state

    def plain_write(self, state: Streams, y: Tensor) -> Streams:
        """`write` by the reference operations."""
        h = state.h + y if self.config.residual else y.to(state.h.dtype)
        if self.keeps_output:
            return Streams(h, state.memory, (y,))
        memory = state.memory
        if self.writer is not None:
            value = state.pending[0] + y if state.pending else y
            observation = self.writer(state.seen[0] if state.seen else value)
            memory = self.form.store(memory, value, observation)
        return Streams(h, memory)

    def compile(self, **options: Any) -> None:
        # kernels are launched as they are: around them, only the small maps are compiled
        super().compile(**options)
        for small in (self.reader, self.writer):
            if small is not None:
                small.compile_methods("complete", **options)

    def preserve_(self) -> None:
        if self.reader is not None:
            self.reader.silence_()


def fallback(config: AbstractLDMConfig, reads: bool) -> Fallback:
    """What is left of a read without the memory."""
    if not reads:
        return RESIDUAL
    if not config.residual:
        return Fallback(False, "the memory alone: there is no residual stream to fall back on")
    return Fallback(True, "the residual stream without the memory")


def retrieve(form: MemoryForm, reader: Reader, state: Streams, residual: bool) -> Tensor:
    """`h + scale * M q`, or the read alone, in the dtype of `h`."""
    query, scale = reader(state.h)
    y = (scale[..., None] * form.retrieve(state.memory, query)).flatten(-2)
    return (state.h + y if residual else y).to(state.h.dtype)
