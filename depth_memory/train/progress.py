"""What a person sees while a run goes on: a live line on a terminal, plain lines elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any, NamedTuple, TextIO

from depth_memory.train.metrics import Record

SECONDS_BETWEEN_LINES = 10.0


class Progress(NamedTuple):
    """Takes records and notes, and is closed at the end."""

    update: Callable[[Record], None]
    note: Callable[[str], None]
    close: Callable[[], None]


def silent() -> Progress:
    """Shows nothing."""
    return Progress(lambda record: None, lambda text: None, lambda: None)


def progress(steps: int, step: int, stream: TextIO | None = None) -> Progress:
    """A live line where `stream` is a terminal, else a line every few seconds.

    Args:
        steps: Steps of the whole run.
        step: Steps already done.
        stream: Where to; standard error if not given.
    """
    stream = sys.stderr if stream is None else stream
    eta = _Eta(steps, step)
    return _live(steps, step, stream, eta) if stream.isatty() else _plain(steps, stream, eta)


def describe(record: Record, remaining: str) -> str:
    """One line about a step: loss, evaluation, speed and its share of the peak, time left."""
    parts = [
        f"loss {record['loss']:.4f}",
        f"{_short(record['tokens_per_second'])} tokens/s",
        f"ETA {remaining}",
    ]
    if record.get("mfu") is not None:
        parts.insert(2, f"{record['mfu']:.1%} MFU")
    if "validation_loss" in record:
        validation = f"validation {record['validation_loss']:.4f}"
        parts.insert(1, f"{validation} ({record['bits_per_byte']:.4f} bits/byte)")
    return "  ".join(parts)


def clock(seconds: float) -> str:
    """Seconds as h:mm:ss or m:ss."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


class _Eta:
    """Time left, from the pace since the start of this process."""

    def __init__(self, steps: int, step: int):
        self._steps, self._first, self._start = steps, step, time.monotonic()

    def __call__(self, step: int) -> str:
        done = max(step - self._first, 1)
        return clock((time.monotonic() - self._start) / done * (self._steps - step))


def _plain(steps: int, stream: TextIO, eta: _Eta) -> Progress:
    last = -SECONDS_BETWEEN_LINES

    def update(record: Record) -> None:
        nonlocal last
        step, now = record["step"], time.monotonic()
        due = now - last >= SECONDS_BETWEEN_LINES or step == steps
        if due or "validation_loss" in record:
            last = now
            print(f"step {step}/{steps}  {describe(record, eta(step))}", file=stream, flush=True)

    return Progress(update, lambda text: print(text, file=stream, flush=True), lambda: None)


def _live(steps: int, step: int, stream: TextIO, eta: _Eta) -> Progress:
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
    from rich.progress import Progress as Bar

    columns: list[Any] = [TextColumn("step"), MofNCompleteColumn(), BarColumn(12)]
    bar = Bar(*columns, TextColumn("{task.fields[text]}"), console=Console(file=stream))
    task = bar.add_task("train", total=steps, completed=step, text="")
    bar.start()

    def update(record: Record) -> None:
        step, remaining = record["step"], eta(record["step"])
        if "validation_loss" in record:
            bar.console.print(f"step {step}  {describe(record, remaining)}", highlight=False)
        short = {key: value for key, value in record.items() if key != "validation_loss"}
        bar.update(task, completed=step, text=describe(short, remaining))

    return Progress(update, lambda text: bar.console.print(text, markup=False), bar.stop)


def _short(number: float) -> str:
    return f"{number / 1000:.1f}k" if number >= 1000 else f"{number:.0f}"
