"""What a person sees while data is prepared: a live line, or a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Generator
from contextlib import contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING, NamedTuple

from depth_memory.cli import console

if TYPE_CHECKING:
    from depth_memory.data import Progress

SECONDS_BETWEEN_LINES = 10.0
SECONDS_BETWEEN_UPDATES = 0.5


class Shown(NamedTuple):
    """Takes what `data.prepare` tells."""

    progress: Callable[[Progress], None]
    note: Callable[[str], None]


@contextmanager
def shown() -> Generator[Shown]:
    """Shows documents, tokens, speed, share of the sources and time left on standard error."""
    if not sys.stderr.isatty():
        yield Shown(_sometimes(console.note, SECONDS_BETWEEN_LINES), console.note)
        return
    from rich.console import Console

    terminal = Console(stderr=True, highlight=False, markup=False)
    with terminal.status("") as line:
        yield Shown(_sometimes(line.update, SECONDS_BETWEEN_UPDATES), terminal.print)


def _sometimes(show: Callable[[str], None], seconds: float) -> Callable[[Progress], None]:
    first: Progress | None = None
    start = last = time.monotonic()

    def update(progress: Progress) -> None:
        nonlocal first, last
        now = time.monotonic()
        first = progress if first is None else first
        if now - last >= seconds:
            last = now
            show(describe(first, progress, now - start))

    return update


def describe(first: Progress, now: Progress, seconds: float) -> str:
    """One line on how far it is, and at the pace since `first`, `seconds` ago, how long it takes.

    Args:
        first: Where this process began.
        now: Where it is.
        seconds: Between the two.
    """
    speed = (now.tokens - first.tokens) / max(seconds, 1e-9)
    done = now.share - first.share
    left = timedelta(seconds=round(seconds * (1 - now.share) / done)) if done > 0 else "unknown"
    counts = f"{console.short(now.documents)} documents  {console.short(now.tokens)} tokens"
    return f"{counts}  {console.short(speed)} tokens/s  {now.share:.1%} of the sources  ETA {left}"
