"""Presets: functions that return a whole `Run`, from which any field can be changed.

`PRESETS` lists them; `get` takes one by name, `with_stream` gives it another stream, and `counts`
says what a stream costs in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from depth_memory import streams
from depth_memory.errors import choose
from depth_memory.presets.cpu import debug, demo
from depth_memory.presets.gpu import small
from depth_memory.train.config import Run

PRESETS: dict[str, Callable[[], Run]] = {preset.__name__: preset for preset in (debug, demo, small)}
"""Name -> function; the first line of its docstring says what it is for."""


def get(name: str) -> Run:
    """The preset of that name.

    Raises:
        UserError: There is none; names those there are.
    """
    return PRESETS[choose("preset", name, PRESETS)]()


def summary(name: str) -> str:
    """What a preset is for, in one line."""
    return (PRESETS[name].__doc__ or "").partition("\n")[0]


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


__all__ = ["PRESETS", "debug", "demo", "get", "small", "summary", "with_stream"]
