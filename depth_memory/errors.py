"""Errors that a user can act on: one line that names the field, what it got and what is allowed."""

from __future__ import annotations


class UserError(ValueError):
    """A mistake in the input. The command prints it as one line, and its exit code is not 0."""


def invalid(field: str, got: object, allowed: str) -> UserError:
    """The error for a field outside its range.

    Args:
        field: Name as the user wrote it, for example `stream.groups`.
        got: The offending value.
        allowed: What would have been accepted, in words.

    Returns:
        The error, to be raised by the caller.
    """
    return UserError(f"{field}: got {got!r}; allowed: {allowed}")


def choose(field: str, got: str, options: object) -> str:
    """Return `got` if it is one of `options`, else raise the error that lists them.

    Raises:
        UserError: `got` is not among `options`.
    """
    names = sorted(str(option) for option in options)  # ty: ignore[not-iterable]
    if got not in names:
        raise invalid(field, got, ", ".join(names))
    return got
