"""Arguments of commands, with mistakes told in one line like every other."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from depth_memory.errors import UserError


class Parser(argparse.ArgumentParser):
    """A parser that raises `UserError` where argparse would print its usage and exit. Final."""

    def __init__(self, **options: Any):
        options.setdefault("formatter_class", argparse.RawDescriptionHelpFormatter)
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        raise UserError(_translated(message, self.prog))


def add_command(
    commands: Any,
    name: str,
    run: Callable[[argparse.Namespace], int | None],
    *,
    summary: str,
    examples: str,
    **options: Any,
) -> Parser:
    """Add a command.

    Args:
        commands: What `add_subparsers` returned.
        name: Of the command.
        run: Takes the parsed arguments and returns the exit code, or None for 0.
        summary: What it does, in a sentence.
        examples: Lines to copy.
        **options: Further ones of the parser.

    Returns:
        The command's parser, to which its arguments are added.
    """
    parser = commands.add_parser(
        name, help=summary, description=summary, epilog=epilog(examples), **options
    )
    parser.set_defaults(run=run, takes_fields=False)
    return parser


def add_device(parser: argparse.ArgumentParser) -> None:
    """Add `--device`."""
    parser.add_argument(
        "--device", default="auto", help="auto, cpu or cuda; auto takes a GPU where there is one"
    )


def epilog(examples: str) -> str:
    """The end of a help page."""
    title = "example:" if examples.strip().count("\n") == 0 else "examples:"
    lines = "".join(f"  {line}\n" for line in examples.strip().splitlines())
    return f"{title}\n{lines}"


def unknown(option: str, prog: str) -> UserError:
    """The error for an argument that a command does not have."""
    return UserError(f"argument: got {option!r}; allowed: what {prog} --help lists")


def count(text: str) -> int:
    """A whole number of at least 1."""
    return _number(text, int, lambda value: value >= 1, "a whole number of at least 1")


def natural(text: str) -> int:
    """A whole number of at least 0."""
    return _number(text, int, lambda value: value >= 0, "a whole number of at least 0")


def nonnegative(text: str) -> float:
    """A finite number of at least 0."""
    return _number(text, float, lambda v: 0 <= v < float("inf"), "a number of at least 0")


def share(text: str) -> float:
    """A number above 0 and at most 1."""
    return _number(text, float, lambda value: 0 < value <= 1, "a number above 0, at most 1")


def path(text: str) -> Path:
    """A path; not the empty string, which would be the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("got ''; allowed: a path")
    return Path(text)


def _number(text: str, kind: Any, allows: Callable[[Any], bool], allowed: str) -> Any:
    try:
        value = kind(text)
    except ValueError:
        value = None
    if value is None or not allows(value):
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: {allowed}")
    return value


def _translated(message: str, prog: str) -> str:
    """argparse's message, as a line that names the argument, what it got and what is allowed."""
    for pattern, line in _LINES:
        found = re.fullmatch(pattern, message, re.DOTALL)
        if found:
            return found.expand(line).replace("HELP", f"what {prog} --help lists")
    return message


_LINES = (
    (r"argument (\S+): invalid choice: (.*) \(choose from (.*)\)", r"\1: got \2; allowed: \3"),
    (r"argument (\S+): expected (.*)", r"\1: got nothing; allowed: \2"),
    (r"argument (\S+): ignored explicit argument (.*)", r"\1: got \2; allowed: no value"),
    (r"argument (\S+): (.*)", r"\1: \2"),
    (r"the following arguments are required: (.*)", r"\1: got nothing; allowed: HELP"),
    (r"unrecognized arguments: (.*)", r"argument: got '\1'; allowed: HELP"),
)
"""Pattern of a message -> what we say instead."""
