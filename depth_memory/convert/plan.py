"""Which tensors a converted model has, and where each comes from."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from functools import partial
from typing import Any

import torch
from torch import Tensor

from depth_memory import streams
from depth_memory.convert.source import Source
from depth_memory.errors import UserError, invalid
from depth_memory.models.causal_lm import EMBEDDING, HEAD
from depth_memory.models.graft import start_
from depth_memory.tensors import Part

IGNORED = "rotary_emb.inv_freq"
"""A buffer that old checkpoints hold; it follows from the configuration."""


class Fresh:
    """The start of the parameters that the source does not have, one port at a time. Final.

    What a port draws depends on the seed and the port alone, not on when it is asked for.
    """

    def __init__(self, model: Any, dtype: torch.dtype, *, seed: int, preserve: bool):
        self._model, self._dtype, self._seed, self._preserve = model, dtype, seed, preserve
        self._units = [
            (name, module)
            for name, module in model.named_modules()
            if isinstance(module, streams.Stream | streams.Port)
        ]
        self._owner = {
            f"{prefix}.{name}": number
            for number, (prefix, module) in enumerate(self._units)
            for name in module.state_dict()
        }
        self._held: tuple[int, dict[str, Tensor]] = (-1, {})

    def __contains__(self, name: str) -> bool:
        return name in self._owner

    def dtype_of(self, name: str) -> torch.dtype:
        """The dtype of a new parameter."""
        return torch.float32 if streams.stays_float32(name) else self._dtype

    def load(self, name: str) -> Tensor:
        """A new parameter."""
        number = self._owner[name]
        if self._held[0] != number:
            self._held = number, self._started(number)
        return self._held[1][name.removeprefix(f"{self._units[number][0]}.")]

    def _started(self, number: int) -> dict[str, Tensor]:
        # a copy: a start leaves marks on a module, and another time must draw the same
        unit = copy.deepcopy(self._units[number][1])
        with torch.random.fork_rng([]):
            torch.manual_seed(self._seed + number)
            start_(self._model, unit, torch.device("cpu"), self._dtype, preserve=self._preserve)
        return unit.state_dict()


def obstacle(config: Any) -> str | None:
    """Why a stream cannot keep the function of an ordinary residual, or None if it can."""
    with torch.device("meta"):
        sites = 2 * config.num_hidden_layers
        stream = streams.build(config.stream, config.hidden_size, sites)
        try:
            for module in (stream, *(stream.port(site) for site in range(sites))):
                module.preserve_()
        except UserError as error:
            return str(error)
    return None


def parts(model: Any, source: Source, fresh: Fresh, dtype: torch.dtype | None) -> list[Part]:
    """Everything to write, in the order of the model.

    Args:
        model: The converted model, on the meta device.
        source: Where the backbone's weights are.
        fresh: Where all other ones come from.
        dtype: Of the backbone's weights; each keeps its own if not given.

    Raises:
        UserError: The source lacks a weight, has one of another shape, or one too many.
    """
    wanted = {name: tuple(tensor.shape) for name, tensor in model.state_dict().items()}
    if model.config.tie_word_embeddings:
        wanted.pop(HEAD)
    names = {name: _place(name, source, model.config) for name in wanted if name not in fresh}
    _check(wanted, names, source, model.config)
    return [
        Part(name, fresh.dtype_of(name), shape, partial(fresh.load, name))
        if name in fresh
        else _copied(name, names[name], source, dtype)
        for name, shape in wanted.items()
    ]


def _place(name: str, source: Source, config: Any) -> str:
    """The name under which the source has a weight: of two tied ones it may keep either."""
    tied = config.tie_word_embeddings and name == EMBEDDING
    return HEAD if tied and EMBEDDING not in source.weights.entries else name


def _check(
    wanted: dict[str, tuple[int, ...]], names: dict[str, str], source: Source, config: Any
) -> None:
    entries = source.weights.entries
    _refuse(
        source, "weights are missing", (n for n, place in names.items() if place not in entries)
    )
    used = {*names.values(), *([HEAD] if config.tie_word_embeddings else [])}
    extra = (n for n in entries if n not in used and not n.endswith(IGNORED))
    _refuse(source, f"weights that a {source.family} does not have", extra)
    for name, place in names.items():
        if entries[place].shape != wanted[name]:
            allowed = f"{list(wanted[name])}, as in config.json"
            raise invalid(f"{source.folder}: {place}: shape", list(entries[place].shape), allowed)
    if config.tie_word_embeddings and {HEAD, EMBEDDING} <= entries.keys():
        pair = [source.weights.read(name) for name in (HEAD, EMBEDDING)]
        if not torch.equal(*pair):
            raise invalid(HEAD, f"other values than {EMBEDDING}", "the same, as they are tied")


def _refuse(source: Source, what: str, found: Iterator[str]) -> None:
    names = list(found)
    if names:
        more = f" and {len(names) - 1} more" if len(names) > 1 else ""
        raise UserError(f"{source.folder}: {what}: {names[0]}{more}")


def _copied(name: str, place: str, source: Source, dtype: torch.dtype | None) -> Part:
    entry = source.weights.entries[place]
    target = dtype or entry.dtype

    def load() -> Tensor:
        tensor = source.weights.read(place)
        cast = tensor.to(target)
        if target != entry.dtype and not bool(cast.isfinite().all()):
            raise invalid("dtype", str(target).removeprefix("torch."), f"one that can hold {place}")
        return cast

    return Part(name, target, entry.shape, load)
