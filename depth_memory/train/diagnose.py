"""Where a number that is not finite came from."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves

from depth_memory.train.loss import summed_loss
from depth_memory.train.parallel import World, is_sharded


def blame_loss(
    model: nn.Module,
    named: Mapping[str, nn.Parameter],
    inputs: Tensor,
    targets: Tensor,
    world: World,
) -> str:
    """What made the loss of these rows non-finite.

    Args:
        model: The network, unchanged since.
        named: Its weights, looked at first.
        inputs: This process's token ids [rows, length].
        targets: The ids that follow [rows, length].
        world: All processes must ask.

    Returns:
        The first bad weight, or the first module, in the order in which they run, that returned or
        was given something non-finite.
    """
    names = list(named)
    weight = _first([_local(p) for p in named.values()], world)
    if weight is not None:
        return f"weight {names[weight]}"
    visited, bad = _watch(model, inputs, targets)
    index = _smallest(bad, world)
    return "the loss itself" if index is None else visited[index]


def blame_gradient(
    model: nn.Module,
    named: Mapping[str, nn.Parameter],
    inputs: Tensor,
    targets: Tensor,
    world: World,
) -> str:
    """The parameter with a non-finite gradient that the backward pass reached first.

    That is the one used last; from there the damage spreads to all that were used before.

    Args:
        model: The network, unchanged since.
        named: Its weights, with their gradients.
        inputs: This process's token ids [rows, length].
        targets: The ids that follow [rows, length].
        world: All processes must ask.
    """
    visited, _ = _watch(model, inputs, targets)
    order = {place: i for i, place in enumerate(visited)}
    graded = {name: p.grad for name, p in named.items() if p.grad is not None}
    names = sorted(graded, key=lambda n: -order.get(f"output of {n.rpartition('.')[0]}", -1))
    index = _first([_local(graded[name]) for name in names], world)
    return "the norm itself" if index is None else f"gradient of {names[index]}"


def _watch(model: nn.Module, inputs: Tensor, targets: Tensor) -> tuple[list[str], int | None]:
    """Run the network once; every place looked at, and the index of the first bad one."""
    visited: list[str] = []
    bad: list[int] = []

    def look(place: str, values: Any) -> None:
        if not all(_finite(value) for value in tree_leaves(values)):
            bad.append(len(visited))
        visited.append(place)

    handles = list(_hooks(model, look))
    try:
        with torch.no_grad():
            look("the loss itself", summed_loss(model, inputs, targets))
    finally:
        for handle in handles:
            handle.remove()
    return visited, bad[0] if bad else None


def _hooks(model: nn.Module, look: Any) -> Iterator[Any]:
    for name, module in model.named_modules():
        if name:
            before, after = f"input of {name}", f"output of {name}"
            yield module.register_forward_pre_hook(
                lambda _, args, options, place=before: look(place, (args, options)),
                with_kwargs=True,
            )
            yield module.register_forward_hook(lambda _, a, out, place=after: look(place, out))


def _finite(value: Any) -> bool:
    """Whether a leaf of a pytree is free of nan and infinity; masks hold -inf and do not count."""
    if not isinstance(value, Tensor) or not value.is_floating_point():
        return True
    return not bool(value.isnan().any() or (value == torch.inf).any())


def _local(tensor: Tensor) -> Tensor:
    return tensor.to_local() if is_sharded(tensor) else tensor


def _first(tensors: list[Tensor], world: World) -> int | None:
    """Index of the first non-finite tensor on any process."""
    bad = (i for i, tensor in enumerate(tensors) if not bool(tensor.isfinite().all()))
    return _smallest(next(bad, None), world)


def _smallest(index: int | None, world: World) -> int | None:
    """The smallest index that any process has."""
    found = [i for i in world.gather(-1 if index is None else index) if i >= 0]
    return min(found, default=None)
