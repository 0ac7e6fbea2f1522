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
from torch._C import _current_graph_task_id
from torch._C._autograd import _get_current_graph_task_keep_graph

from depth_memory.ops.exchange.fold import Fold, Uses, fold_backward, fold_forward
from depth_memory.ops.exchange.project import Returns
from depth_memory.ops.exchange.read import Reading
from depth_memory.ops.exchange.sweep import (
    Swept,
    WriteGradients,
    Writes,
    sweep_backward,
    sweep_forward,
)


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
    following: Window | None = None
    """The window that began with what this one was folded into."""
    task: int = -1
    """The backward pass that the gradients below belong to."""
    closed: bool = False
    """Whether the arrays are gone, as saved tensors are after the last backward pass."""
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
        self.enter()
        if self.write_grads is None:
            gain = self.writes.gain
            erase = torch.zeros_like(gain) if self.layout.erases else gain
            keep = gain.new_zeros(gain.shape[:-1]) if self.layout.keeps else gain
            self.write_grads = WriteGradients(torch.zeros_like(gain), erase, keep)
        return self.write_grads

    def gradient_of(self, read: int) -> Tensor:
        """Where the gradient of a read goes, [N, D]."""
        self.enter()
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
        self.enter()
        first = next((i for i, seen in enumerate(self.reads) if seen > slot), len(self.reads))
        fold = None if self.base_grad is None or self.fold is None else self.fold.weights
        base = None if fold is None else self.base_grad
        grads = self.read_gradients(first)
        return Returns(grads, self.weights, self.scales, first, len(self.reads), slot, fold, base)

    def fold_up(self) -> Tensor:
        """The memory once the window is part of it, [K, N, D]; the coefficients are kept."""
        n, N, G, K = self.writes.gain.shape
        gain = self.writes.gain
        self.fold = Fold(gain.new_empty(N, G, K, K), gain.new_empty(N, G, K, n))
        sweep_forward(None, None, self.writes, n, Swept(self.fold.weights, self.fold.rest, None))
        return fold_forward(self.base, self.values, n, self.fold, self.layout.state_dtype)

    def enter(self) -> None:
        """In each backward pass begin with what the following window sends back, and no more.

        Nodes run from the latest to the first, so whatever follows the window is done by then. A
        pass need not visit every node: what an earlier one has left behind would be counted again.
        """
        if self.closed:
            raise RuntimeError("backward through a graph again: the first needs retain_graph=True")
        task = _current_graph_task_id()
        if self.task == task:
            return
        self.forget()
        self.task = task
        if self.following is not None:
            self.following.enter()
            self._unfold(self.following)

    def _unfold(self, following: Window) -> None:
        """The gradient of the memory that this was folded into, from all that used it."""
        assert self.fold is not None
        n = self.layout.window
        uses = Uses(
            following.read_gradients(), following.rests, following.scales,
            len(following.reads), following.base_grad, following.fold,
        )  # fmt: skip
        self.base_grad, d_fold = fold_backward(
            self.base, self.values, n, self.fold, uses, self.layout.state_dtype
        )
        d_rest = None if self.base is None else d_fold.rest
        swept = Swept(self.fold.weights, self.fold.rest, None)
        sweep_backward(self.writes, n, swept, d_fold.weights, d_rest, self.gradients())
        following.close()

    def close(self) -> None:
        """Let go of the gradients, and of everything else unless the graph is kept."""
        self.forget()
        if _get_current_graph_task_keep_graph():
            return
        self.closed, none = True, self.values.new_empty(0)
        self.values = self.weights = self.rests = self.scales = none
        self.writes = Writes(none, None, None)
        self.start = self.base = self.fold = self.following = None

    def forget(self) -> None:
        """Let go of the gradients."""
        self.grads = self.write_grads = self.base_grad = None
        self.arrived.clear()


@dataclass
class Tape:
    """The windows of one pass over the depth; only the last where no gradient will be asked for."""

    layout: Layout
    recording: bool
    windows: list[Window] = field(default_factory=list)
    steps: int = 0
    """How many states the pass has gone through; only the last may be used."""

    @property
    def current(self) -> Window:
        """The window that is being written."""
        return self.windows[-1]

    @property
    def full(self) -> bool:
        """Whether the window has to be folded before the next read."""
        return self.layout.folds and self.current.written == self.layout.window

    def open(self, like: Tensor) -> None:
        """Begin the first window, for rows like `like`."""
        self.windows.append(Window.empty(self.layout, like, None, None))

    def turn(self, h: Tensor) -> None:
        """Fold the window up, and begin the next at the residual stream `h`."""
        full = self.current
        following = Window.empty(self.layout, h, h.detach(), full.fold_up())
        if self.recording:
            full.following = following
        else:
            self.windows.clear()
        self.windows.append(following)


@dataclass
class Read:
    """What ties the projection before a read to the read: where it is, and what it sends back."""

    window: Window | None = None
    index: int = 0
    sent: tuple[int, Tensor, Tensor] | None = None
    """The backward pass, the residual stream, and the read's gradient for it in that pass."""

    def send(self, h: Tensor, d_h: Tensor) -> None:
        """Leave the residual stream and the read's gradient for `take`."""
        self.sent = (_current_graph_task_id(), h, d_h)

    def take(self) -> tuple[Tensor, Tensor | None]:
        """The residual stream [N, D], and the gradient that the read sent back to it."""
        window, sent = self.window, self.sent
        assert window is not None
        self.sent = None
        window.enter()
        if sent is not None and sent[0] == _current_graph_task_id():
            return sent[1:]
        # the loss depends on the residual stream here, but not on this read
        h = window.start
        for value in window.values[: window.reads[self.index]].unbind():
            h = value if h is None else h + value
        assert h is not None
        return h, None
