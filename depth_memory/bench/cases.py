"""What is measured: the product of the axes that were asked for."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from depth_memory.bench.backbones import BACKBONES, Backbone
from depth_memory.errors import choose, invalid

MODES = ("train", "prefill", "decode")
SCOPES = ("trunk", "model")


@dataclass(frozen=True, kw_only=True)
class Case:
    """All that a row says of its measurement, but the method."""

    backbone: str
    mode: str
    scope: str
    sequence: int
    """Tokens of each sequence that one step computes; 1 where it decodes."""
    context: int
    """Tokens that the cache holds before a decoding step; 0 elsewhere."""
    batch: int
    checkpointing: bool
    layers: int

    @property
    def shape(self) -> Backbone:
        """The backbone's shape, with all its layers."""
        return BACKBONES[self.backbone]

    @property
    def tokens(self) -> int:
        """Tokens of a step."""
        return self.batch * self.sequence


def expand(
    backbones: Sequence[str],
    *,
    modes: Sequence[str] = ("train",),
    scopes: Sequence[str] = ("trunk",),
    sequences: Sequence[int] = (),
    contexts: Sequence[int] = (1024,),
    batches: Sequence[int] = (),
    layers: int | None = None,
    checkpointing: bool = False,
) -> Iterator[Case]:
    """Every combination, once; checkpointing concerns training alone.

    Args:
        backbones: Names among `BACKBONES`.
        modes: Among `MODES`.
        scopes: Among `SCOPES`.
        sequences: Lengths to train and prefill with; the backbone's own if there is none.
        contexts: Lengths of the cache to decode with.
        batches: Sequences at a time; the backbone's own number if there is none.
        layers: Fewer layers than the backbone has.
        checkpointing: Keep a sublayer's input alone, and compute the rest again.

    Raises:
        UserError: A name is unknown, or there are more layers than the backbone has.
    """
    for field, given, allowed in (
        ("--backbone", backbones, BACKBONES),
        ("--mode", modes, MODES),
        ("--scope", scopes, SCOPES),
    ):
        for name in given:
            choose(field, name, allowed)
    for name, scope, mode in itertools.product(*map(dict.fromkeys, (backbones, scopes, modes))):
        shape = BACKBONES[name]
        if layers is not None and not 1 <= layers <= shape.layers:
            raise invalid("--layers", layers, f"1 to {shape.layers}, the layers of {name}")
        decodes = mode == "decode"
        lengths = contexts if decodes else sequences or (shape.sequence,)
        axes = (dict.fromkeys(lengths), dict.fromkeys(batches or (shape.batch,)))
        for length, batch in itertools.product(*axes):
            yield Case(
                backbone=name,
                mode=mode,
                scope=scope,
                sequence=1 if decodes else length,
                context=length if decodes else 0,
                batch=batch,
                checkpointing=checkpointing and mode == "train",
                layers=layers or shape.layers,
            )
