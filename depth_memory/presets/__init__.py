"""Presets: functions that return a whole `Run`, from which any field can be changed.

`PRESETS` lists them, `GROUPS` orders them; `get` takes one by name, `with_stream` gives it another
stream, and `counts` says what a stream costs in it. `FAMILIES` are lists of runs for a sweep.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from depth_memory import streams
from depth_memory.data.corpus import VOCAB_SIZE as PROSE
from depth_memory.errors import choose
from depth_memory.presets import recipes
from depth_memory.presets.cpu import debug, demo
from depth_memory.presets.depthbench import DEPTHBENCH_400M, DEPTHBENCH_1600M
from depth_memory.presets.families import FAMILY_FUNCTIONS, Description, name_of
from depth_memory.presets.gpu import small
from depth_memory.presets.hour import HOUR
from depth_memory.presets.paper import LLAMA_400M, QWEN_1500M
from depth_memory.presets.study import VOCAB_SIZE as STUDY
from depth_memory.presets.study import study_preln
from depth_memory.train.config import Run


class Group(NamedTuple):
    """Presets that belong together."""

    about: str
    presets: tuple[Callable[[], Run], ...]
    vocab_size: int
    """Of the data that they are meant for."""

    @property
    def names(self) -> list[str]:
        """Their names."""
        return [name_of(preset) for preset in self.presets]


GROUPS: dict[str, Group] = {
    "start": Group("to begin with, on the embedded prose", (debug, demo, small), PROSE),
    "study": Group("the quality study: docs/study.md", (study_preln,), STUDY),
    "hour": Group("the recipe of the paper on one GPU, in an hour", HOUR, recipes.VOCAB_SIZE),
    "llama-400m": Group("Depth Memory at 400M, 50B tokens", LLAMA_400M, recipes.VOCAB_SIZE),
    "qwen-1500m": Group("Depth Memory at 1.5B, 100B tokens", QWEN_1500M, recipes.VOCAB_SIZE),
    "depthbench-400m": Group(
        "DepthBench's aspect ratios at 400M, 8B tokens", DEPTHBENCH_400M, recipes.VOCAB_SIZE
    ),
    "depthbench-1600m": Group(
        "DepthBench's aspect ratios at 1.6B, 32B tokens", DEPTHBENCH_1600M, recipes.VOCAB_SIZE
    ),
}
"""Name -> presets, from small to large."""

PRESETS: dict[str, Callable[[], Run]] = {
    name_of(preset): preset for group in GROUPS.values() for preset in group.presets
}
"""Name -> function; the first line of its docstring says what it is for."""

FAMILIES: dict[str, Callable[[], Description]] = {
    name_of(family): family for family in FAMILY_FUNCTIONS
}
"""Name -> function that returns the description of a sweep."""


def get(name: str) -> Run:
    """The preset of that name.

    Raises:
        UserError: There is none; names those there are.
    """
    return PRESETS[choose("preset", name, PRESETS)]()


def summary(name: str) -> str:
    """What a preset or a family is for, in one line."""
    return ({**PRESETS, **FAMILIES}[name].__doc__ or "").partition("\n")[0]


def vocab_size(name: str) -> int:
    """The vocabulary of the data that a preset is meant for; that of a run comes with its data."""
    preset = PRESETS[choose("preset", name, PRESETS)]
    return next(group.vocab_size for group in GROUPS.values() if preset in group.presets)


def with_stream(run: Run, name: str) -> Run:
    """`run` with another stream, and a directory of its own.

    The new stream takes its defaults; but one with the very same fields (`ldm` and its ablations)
    keeps their values, so that the two differ in nothing else.

    Args:
        run: Any run; it comes back as it is if it has that stream already.
        name: Of the stream.

    Raises:
        UserError: There is no such stream; names those there are.
    """
    choose("stream", name, streams.STREAMS)
    if run.model.stream.name == name:
        return run
    values = streams.as_dict(run.model.stream)
    same = values.keys() == streams.as_dict(streams.resolve({"name": name})).keys()
    stream = streams.resolve({**values, "name": name} if same else {"name": name})
    out = run.out.with_name(f"{run.out.name}-{name}")
    return replace(run, model=replace(run.model, stream=stream), out=out)


__all__ = [
    "FAMILIES",
    "GROUPS",
    "PRESETS",
    "Description",
    "Group",
    "debug",
    "demo",
    "get",
    "small",
    "summary",
    "vocab_size",
    "with_stream",
]
