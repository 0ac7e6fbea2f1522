"""Errors that a user can act on: one line that names the field, what it got and what is allowed."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, get_type_hints

LONGEST = 200
"""Characters of an offending value that an error repeats."""


class UserError(ValueError):
    """A mistake in the input. The command prints it as one line, and its exit code is not 0."""


class Failure(RuntimeError):
    """Something failed that no input decides, such as another process. One line, exit code 1."""


class Stopped(SystemExit):
    """A run was asked to stop by a signal, and has saved. The exit code is 128 + its number."""


def invalid(field: str, got: object, allowed: str) -> UserError:
    """The error for a field outside its range.

    Args:
        field: Name as the user wrote it, for example `stream.groups`.
        got: The offending value.
        allowed: What would have been accepted, in words.

    Returns:
        The error, to be raised by the caller.
    """
    return UserError(f"{field}: got {shown(got)}; allowed: {allowed}")


@contextmanager
def within(name: object) -> Generator[None]:
    """Say first which thing an error is about: a file, or one of several models.

    Raises:
        UserError: As it came, after the name.
    """
    try:
        yield
    except UserError as error:
        raise UserError(f"{name}: {error}") from error


def shown(value: object) -> str:
    """The value as Python writes it, unless that is too long to be of use."""
    try:
        text = repr(value)
    except (RecursionError, ValueError):  # nested too deeply, or too many digits
        text = f"a {type(value).__name__}"
    return text if len(text) <= LONGEST else f"{text[: LONGEST - 4]} ..."


def choose(field: str, got: str, options: object) -> str:
    """Return `got` if it is one of `options`, else raise the error that lists them.

    Raises:
        UserError: `got` is not among `options`.
    """
    names = sorted(str(option) for option in options)  # ty: ignore[not-iterable]
    if got not in names:
        raise invalid(field, got, ", ".join(names))
    return got


def is_number(value: object) -> bool:
    """Whether `value` is a number that a float can hold; no truth value, infinity or nan."""
    kind = isinstance(value, int | float) and not isinstance(value, bool)
    return kind and abs(value) <= sys.float_info.max


@dataclasses.dataclass(frozen=True)
class Range:
    """The finite numbers that a field may hold: `key_dim: Annotated[int, Range(1, 1024)] = 8`.

    What is no number is none of its business: `None`, `"auto"`. Every number of a list counts.
    """

    least: float
    most: float
    above: bool = False
    """Whether `least` itself is left out."""
    below: bool = False
    """Whether `most` itself is left out."""

    def allows(self, value: object) -> bool:
        """Whether every number in `value` lies within; not-a-number lies nowhere."""
        if isinstance(value, tuple | list):
            return all(map(self.allows, value))
        if isinstance(value, bool) or not isinstance(value, int | float):
            return True
        low = self.least < value if self.above else self.least <= value
        return low and (value < self.most if self.below else value <= self.most)

    def __str__(self) -> str:
        low = "a number above" if self.above else "at least"
        high = "below" if self.below else "at most"
        return f"{low} {_plain(self.least)}, {high} {_plain(self.most)}"


SEEDS = Range(0, 2**63 - 1)
"""Of every generator."""


def check_ranges(config: Any, prefix: str = "") -> None:
    """Hold the fields of a dataclass to the `Range` that each declares.

    Args:
        config: A dataclass; those in its fields are not looked into.
        prefix: What comes before the names of the fields in the error.

    Raises:
        UserError: A number is out of its range.
    """
    for name, allowed in ranges_of(type(config)).items():
        value = getattr(config, name)
        if not allowed.allows(value):
            raise invalid(prefix + name, value, str(allowed))


@functools.cache
def ranges_of(cls: type) -> dict[str, Range]:
    """Field of a dataclass -> the `Range` that it declares."""
    hints = get_type_hints(cls, include_extras=True)
    found = {
        name: [item for item in getattr(hints[name], "__metadata__", ()) if isinstance(item, Range)]
        for name in (field.name for field in dataclasses.fields(cls))  # ty: ignore[invalid-argument-type]
    }
    return {name: ranges[0] for name, ranges in found.items() if ranges}


def _plain(number: float) -> str:
    return str(number) if isinstance(number, int) else f"{number:g}"
