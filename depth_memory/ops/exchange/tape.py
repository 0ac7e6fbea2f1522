"""What one pass over the depth keeps, so that the memory's gradient never has to be summed up.

The gradient of a memory is itself a memory in windowed form: a read adds one vector to it, and what
was written takes its share when the backward pass reaches it. No graph of tensors can carry a
gradient in that form, so the nodes of one pass share a tape, and hand on a token that puts them in
order.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from depth_memory.ops.exchange.fold import Fold
from depth_memory.ops.exchange.project import Returns
from depth_memory.ops.exchange.read import Reading
from depth_memory.ops.exchange.sweep import Swept, WriteGradients, Writes


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Sizes of one pass: writes to a window, groups, key width, keys per token, and the rule."""

    window: int
    groups: int
    key_dim: int
    keys: int
    erases: bool
    keeps: bool
    folds: bool
    """Whether a full window is folded; without, the window holds every write."""
    state_dtype: torch.dtype


@dataclass
class Window:
    """The writes between two folds and the reads that see them, in arrays of fixed size."""

    layout: Layout
    start: Tensor | None
    """The residual stream before the first value; None where that value began it."""
    base: Tensor | None
    """The memory before the window, [K, N, D]; None where it is empty."""
    values: Tensor
    writes: Writes
    weights: Tensor
    rests: Tensor
    scales: Tensor
    written: int = 0
    reads: list[int] = field(default_factory=list)
    """For each read, how many of the window's writes it saw."""
    fold: Fold | None = None
    grads: Tensor | None = None
    """The gradients of the reads, [n, N, D]."""
    arrived: set[int] = field(default_factory=set)
    """The reads whose gradient is there."""
    write_grads: WriteGradients | None = None
    base_grad: Tensor | None = None
    """The gradient of the memory that this window was folded into."""

    @classmethod
    def empty(
        cls, layout: Layout, like: Tensor, start: Tensor | None, base: Tensor | None
    ) -> Window:
        """A window of the given sizes for rows like `like` [N, D]."""
        (N, D), (n, G, K) = like.shape, (layout.window, layout.groups, layout.key_dim)
        dtype = torch.float64 if like.dtype == torch.float64 else torch.float32
        erase = like.new_empty(n, N, layout.keys, K, dtype=dtype) if layout.erases else None
        keep = like.new_empty(n, G, dtype=dtype) if layout.keeps else None
        return cls(
            layout,
            start,
            base,
            like.new_empty(n, N, D),
            Writes(like.new_empty(n, N, G, K, dtype=dtype), erase, keep),
            like.new_empty(n, N, G, n, dtype=dtype),
            like.new_empty(n, N, G, K, dtype=dtype),
            like.new_empty(n, N, G, dtype=dtype),
        )

    def begin_read(self, read: Read) -> int:
        """Number a read of what has been written so far."""
        read.window, read.index = self, len(self.reads)
        self.reads.append(self.written)
        return read.index

    def swept(self, i: int) -> Swept:
        """The coefficients of read `i`."""
        return Swept(self.weights[i], self.rests[i], self.scales[i])

    def reading(self, i: int) -> Reading:
        """What read `i` saw."""
        return Reading(
            self.values, self.reads[i], self.base, self.weights[i], self.rests[i], self.scales[i]
        )

    def gradients(self) -> WriteGradients:
        """Where the gradients of the writes are added up."""
        if self.write_grads is None:
            gain = self.writes.gain
            erase = torch.zeros_like(gain) if self.layout.erases else gain
            keep = gain.new_zeros(gain.shape[:-1]) if self.layout.keeps else gain
            self.write_grads = WriteGradients(torch.zeros_like(gain), erase, keep)
        return self.write_grads

    def gradient_of(self, read: int) -> Tensor:
        """Where the gradient of a read goes, [N, D]."""
        if self.grads is None:
            self.grads = torch.empty_like(self.values)
        self.arrived.add(read)
        return self.grads[read]

    def read_gradients(self, first: int = 0) -> Tensor:
        """The gradients of the reads from `first` on; zero where the loss did not depend on one."""
        for read in range(first, len(self.reads)):
            if read not in self.arrived:
                self.gradient_of(read).zero_()
        return self.values if self.grads is None else self.grads

    def returns(self, slot: int) -> Returns:
        """What the reads and the fold send back to the value in `slot`."""
        first = next((i for i, seen in enumerate(self.reads) if seen > slot), len(self.reads))
        fold = None if self.base_grad is None or self.fold is None else self.fold.weights
        base = None if fold is None else self.base_grad
        grads = self.read_gradients(first)
        return Returns(grads, self.weights, self.scales, first, len(self.reads), slot, fold, base)

    def forget(self) -> None:
        """Let go of the gradients, so that another backward pass starts from nothing."""
        self.grads = self.write_grads = self.base_grad = None
        self.arrived.clear()


@dataclass
class Tape:
    """The windows of one pass over the depth; only the last where no gradient will be asked for."""

    layout: Layout
    recording: bool
    windows: list[Window] = field(default_factory=list)

    @property
    def current(self) -> Window:
        """The window that is being written."""
        return self.windows[-1]

    @property
    def full(self) -> bool:
        """Whether the window has to be folded before the next read."""
        return self.layout.folds and self.current.written == self.layout.window

    def open(self, like: Tensor, start: Tensor | None, base: Tensor | None) -> Window:
        """Begin a window for rows like `like`."""
        if not self.recording:
            self.windows.clear()
        self.windows.append(Window.empty(self.layout, like, start, base))
        return self.current


@dataclass
class Read:
    """What ties the projection before a read to the read: where it is, and what it sends back."""

    window: Window | None = None
    index: int = 0
    sent: tuple[Tensor, Tensor] | None = None
    """The residual stream, and the read's gradient for it, once that has been computed."""

    def take(self) -> tuple[Tensor, Tensor | None]:
        """The residual stream [N, D], and the gradient that the read sent back to it."""
        window, sent = self.window, self.sent
        assert window is not None
        self.sent = None
        if sent is not None:
            return sent
        # the loss depends on the residual stream here, but not on this read
        h = window.start
        for value in window.values[: window.reads[self.index]].unbind():
            h = value if h is None else h + value
        assert h is not None
        return h, None
