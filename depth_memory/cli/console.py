"""What goes to the terminal: results to standard output, everything else to standard error."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any

from depth_memory.files import dumps


def error(message: str) -> None:
    """Say in one line why the command stopped."""
    note("error: " + " ".join(message.split()))


def note(text: str) -> None:
    """Say something that is not a result."""
    print(text, file=sys.stderr, flush=True)


def show(text: str = "") -> None:
    """Print a line of the result."""
    write(text + "\n")


def write(text: str) -> None:
    """Print a part of the result at once.

    Raises:
        OSError: Standard output takes no more; it is named as the file.
    """
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        raise OSError(error.errno, error.strerror, "standard output") from error


def show_json(value: Any) -> None:
    """Print the result for a program to read.

    Raises:
        UserError: A number in it is not finite.
    """
    show(dumps(value).rstrip("\n"))


def show_table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print aligned columns: the first to the left, the others to the right."""
    lines = [header, *rows]
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    for first, *others in lines:
        cells = [first.ljust(widths[0])]
        cells += [cell.rjust(width) for cell, width in zip(others, widths[1:], strict=True)]
        show("  ".join(cells).rstrip())


def short(number: float) -> str:
    """A number in at most five characters: 950, 12.3k, 1.5M, 20G."""
    for unit in ("", "k", "M", "G", "T"):
        if number < 999.5 or unit == "T":
            break
        number /= 1000
    digits = 1 if unit and number < 99.95 else 0
    return f"{number:.{digits}f}{unit}"
