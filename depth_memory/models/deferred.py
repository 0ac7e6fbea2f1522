"""Models too large for one memory: built without numbers, which come later, module by module.

The numbers are those of an ordinary build, to the bit. While the model is built on the meta device,
whatever would have been drawn is drawn on the CPU, one tensor at a time, and thrown away, so that
torch's generator takes the same course; its state is noted where each module starts. From there a
module's start can be repeated on its own, whenever there is a place for it.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.utils._python_dispatch import TorchDispatchMode

Model = TypeVar("Model", bound=nn.Module)
Starts = dict[nn.Module, Tensor]
"""Module -> the generator's state when its own parameters start, in the order of their starts."""

_starts: ContextVar[Starts | None] = ContextVar("starts", default=None)

_ATEN = torch.ops.aten
DRAWS = (_ATEN.normal_.default, _ATEN.uniform_.default)
"""The draws of `torch.nn.init`."""


class _Drawing(TorchDispatchMode):
    """Draws for tensors without numbers what a build with numbers would have drawn. Final."""

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        del types
        options = kwargs or {}
        if func in DRAWS:
            drawn, *how = args
            func(torch.empty(drawn.shape, dtype=drawn.dtype, device="cpu"), *how, **options)
        return func(*args, **options)


def build(make: Callable[[], Model], *, fresh: bool = True) -> tuple[Model, Starts]:
    """What `make` builds, on the meta device, and how to start it.

    Args:
        make: Builds a model of this package from torch's global generator.
        fresh: Whether its first weights will be wanted. Drawing takes a while; without it they
            would be others.
    """
    starts: Starts = {}
    token = _starts.set(starts)
    try:
        with torch.device("meta"), _Drawing() if fresh else torch.no_grad():
            return make(), starts
    finally:
        _starts.reset(token)


def is_deferred() -> bool:
    """Whether a model is being built without numbers, to be started later."""
    return _starts.get() is not None


def note(module: nn.Module) -> None:
    """Note that the parameters of a module start now, if they are to start later."""
    starts = _starts.get()
    if starts is not None:
        starts[module] = torch.get_rng_state()


def start(model: nn.Module, starts: Starts, fill: Callable[[Tensor, Tensor], None]) -> None:
    """Give every parameter and buffer of `model` its first value, one module at a time.

    Args:
        model: What `build` returned; its tensors have a place by now, sharded or not.
        starts: What `build` returned beside it.
        fill: Copies a whole tensor from the CPU into a tensor of the model.
    """
    done: set[int] = set()
    with torch.random.fork_rng([]), torch.no_grad():
        for module, state in starts.items():
            owned = dict(_own_tensors(module))
            if not owned or all(id(tensor) in done for tensor in owned.values()):
                continue  # a head that is its embedding has started with it
            torch.set_rng_state(state)
            with _whole(module, owned):
                model._init_weights(module)  # ty: ignore[not-callable]
                values = dict(_own_tensors(module))
            for name, tensor in owned.items():
                fill(tensor, values[name])
                done.add(id(tensor))


def _own_tensors(module: nn.Module) -> Iterator[tuple[str, Tensor]]:
    yield from module.named_parameters(recurse=False)
    yield from module.named_buffers(recurse=False)


@contextmanager
def _whole(module: nn.Module, owned: dict[str, Tensor]) -> Generator[None]:
    """Let a module have whole tensors on the CPU for a while."""
    held = dict(module._parameters), dict(module._buffers)
    for name, tensor in owned.items():
        whole = torch.empty(tensor.shape, dtype=tensor.dtype)
        if name in module._parameters:
            module._parameters[name] = nn.Parameter(whole, tensor.requires_grad)
        else:
            module._buffers[name] = whole
    try:
        yield
    finally:
        module._parameters.update(held[0])
        module._buffers.update(held[1])
