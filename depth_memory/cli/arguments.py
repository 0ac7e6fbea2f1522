"""Arguments of commands, with mistakes told in one line like every other."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NoReturn

from depth_memory.errors import SEEDS, Range, UserError, shown


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


@contextmanager
def as_options(names: Mapping[str, str]) -> Generator[None]:
    """Name the fields of an error as the options that they came from.

    Args:
        names: Field, as the library says it -> option.

    Raises:
        UserError: As it came, with the option in place of the field that it begins with.
    """
    try:
        yield
    except UserError as error:
        field = re.match("|".join(rf"{re.escape(name)}(?=[: ])" for name in names), str(error))
        if field is None:
            raise
        raise UserError(names[field[0]] + str(error)[field.end() :]) from error


def epilog(examples: str) -> str:
    """The end of a help page."""
    title = "example:" if examples.strip().count("\n") == 0 else "examples:"
    lines = "".join(f"  {line}\n" for line in examples.strip().splitlines())
    return f"{title}\n{lines}"


def unknown(option: str, prog: str) -> UserError:
    """The error for an argument that a command does not have."""
    name = option.partition("=")[0] if option.startswith("--") else option
    return UserError(f"argument: got {shown(name)}; allowed: what {prog} --help lists")


class Number:
    """The type of an argument that takes a number. Final."""

    def __init__(self, kind: type[int] | type[float], allowed: Range, *, or_zero: bool = False):
        self.kind, self.allowed, self.or_zero = kind, allowed, or_zero

    def __call__(self, text: str) -> Any:
        """The number that `text` is, unless it is none, or out of the range."""
        try:
            value = self.kind(text)
        except ValueError:
            value = None
        if value is None or not (self.allowed.allows(value) or (self.or_zero and value == 0)):
            raise argparse.ArgumentTypeError(f"got {shown(text)}; allowed: {self}")
        return value

    def __str__(self) -> str:
        what = "a whole number, " if self.kind is int else ""
        return f"{'0, or ' if self.or_zero else ''}{what}{self.allowed}"


count = Number(int, Range(1, 10**6))
natural = Number(int, Range(0, 10**6))
seed = Number(int, SEEDS)


def json_value(text: str) -> Any:
    """The JSON value that `text` stands for; the text itself if it stands for none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):  # no JSON, or too deep for one
        return text


def path(text: str) -> Path:
    """A path; not the empty string, which would be the working directory."""
    if not text:
        raise argparse.ArgumentTypeError("got ''; allowed: a path")
    return Path(text)


def source(text: str) -> Path | str:
    """A path, or the address of a dataset on the hub."""
    return text if text.startswith("hf://") else path(text)


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
    (
        r"argument (\S+): not allowed with argument (\S+)",
        r"\1: got it with \2; allowed: one of them",
    ),
    (r"argument (\S+): (.*)", r"\1: \2"),
    (r"the following arguments are required: (.*)", r"\1: got nothing; allowed: HELP"),
    (r"unrecognized arguments: (--[^\s=]+|\S*).*", r"argument: got '\1'; allowed: HELP"),
)
"""Pattern of a message -> what we say instead."""
