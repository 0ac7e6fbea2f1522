"""What each read is worth: the loss with that one switched off."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depth_memory.errors import invalid
from depth_memory.inspect.probe import evaluating, names, trunk_of
from depth_memory.streams import StreamModule, switched_off

PORTS = ("attn_port", "mlp_port")


@dataclass(frozen=True, kw_only=True)
class Ablated:
    """One read switched off."""

    read: str
    loss: float
    """In nats per token."""
    difference: float
    """From the loss with nothing switched off."""
    instead: str
    """What the sublayer saw."""


@dataclass(frozen=True, kw_only=True)
class Ablation:
    """The losses of one model on one text, in nats per token."""

    loss: float
    """With nothing switched off."""
    every: float | None
    """With every read switched off that can be; None where none can."""
    tokens: int
    """How many were predicted."""
    rows: list[Ablated]
    left_out: dict[str, str]
    """Read -> why it has nothing to switch off."""


def readers(model: nn.Module) -> dict[str, StreamModule]:
    """Name of each read -> the port, or for `output` the stream, that makes it.

    Raises:
        UserError: The model has no stream.
    """
    trunk = trunk_of(model)
    modules = [layer.get_submodule(port) for layer in trunk.layers for port in PORTS]
    found = [module for module in (*modules, trunk.stream) if isinstance(module, StreamModule)]
    return dict(zip(names(len(modules))[0], found, strict=True))


def ablation(
    model: nn.Module, input_ids: Tensor, on_progress: Callable[[int, int], None] | None = None
) -> Ablation:
    """The loss of a model on some text with each of its reads switched off, one at a time.

    A read that is switched off falls back as its stream's `fallback` says; see
    `streams.switched_off`. The parameters are not touched. Every loss is of the reference
    implementation, so that the differences are of the reads alone.

    Args:
        model: A causal language model of this package.
        input_ids: Token ids [batch, length], at least two in a row.
        on_progress: Called with how many forward passes are done, and of how many.

    Raises:
        UserError: The model has no stream, no token has one before it, or a loss is not finite.
    """
    if input_ids.shape[-1] < 2:
        raise invalid("tokens", input_ids.shape[-1], "at least 2, of which one predicts the next")
    found = readers(model)
    able = {name: reader for name, reader in found.items() if reader.fallback.exists}
    passes = [(), *((reader,) for reader in able.values()), tuple(able.values())]
    losses = []
    with evaluating(model):
        for off in passes if able else passes[:1]:
            losses.append(_loss(model, input_ids, off))
            if on_progress is not None:
                on_progress(len(losses), len(passes) if able else 1)
    whole = losses[0]
    return Ablation(
        loss=whole,
        every=losses[-1] if able else None,
        tokens=input_ids[:, 1:].numel(),
        rows=[
            Ablated(read=name, loss=loss, difference=loss - whole, instead=reader.fallback.words)
            for (name, reader), loss in zip(able.items(), losses[1:], strict=False)
        ],
        left_out={name: r.fallback.words for name, r in found.items() if name not in able},
    )


@torch.no_grad()
def _loss(model: nn.Module, input_ids: Tensor, off: tuple[StreamModule, ...]) -> float:
    with switched_off(*off):
        logits = model(input_ids).logits[:, :-1]
    wide = torch.promote_types(logits.dtype, torch.float32)
    loss = F.cross_entropy(logits.flatten(0, 1).to(wide), input_ids[:, 1:].flatten()).item()
    if not torch.isfinite(torch.tensor(loss)):
        raise invalid("loss", loss, "a finite number of nats per token")
    return loss
