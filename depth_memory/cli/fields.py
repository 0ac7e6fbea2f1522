"""Every field of a configuration as an option: its name, type, default and docstring.

The dataclasses are the only description: what the option accepts is what `Run.from_dict` accepts,
and what it says of a wrong value is what `Run.from_dict` says.
"""

from __future__ import annotations

import argparse
import ast
import dataclasses
import inspect
import itertools
import textwrap
from collections.abc import Iterator, Sequence
from pathlib import Path
from types import NoneType
from typing import Any, Literal, NamedTuple, Union, cast, get_args, get_origin, get_type_hints

from depth_memory.cli import arguments
from depth_memory.train import serial
from depth_memory.train.config import Run


class Field(NamedTuple):
    """One value of a configuration."""

    name: str
    """Dotted, as in `model.stream.key_dim`."""
    hint: Any
    default: Any
    doc: str


def fields_of(value: Any, prefix: str = "") -> Iterator[Field]:
    """The fields of a dataclass and of the dataclasses in it; `value` holds the defaults."""
    hints, docs = get_type_hints(type(value)), field_docs(type(value))
    for field in dataclasses.fields(value):
        name, default = prefix + field.name, getattr(value, field.name)
        if dataclasses.is_dataclass(default):
            yield from fields_of(default, f"{name}.")
        else:
            yield Field(name, hints[field.name], default, docs.get(field.name, ""))


def field_docs(cls: type) -> dict[str, str]:
    """The docstring below each field of a dataclass, those of its bases included."""
    docs = {}
    for base in reversed(cls.__mro__):
        if not dataclasses.is_dataclass(base):
            continue
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(cast(type, base)))).body
        for field, text in itertools.pairwise(getattr(definition, "body", ())):
            if isinstance(field, ast.AnnAssign) and isinstance(text, ast.Expr):
                docs[ast.unparse(field.target)] = " ".join(ast.literal_eval(text.value).split())
    return docs


def add_fields(parser: argparse.ArgumentParser, value: Any, prefix: str = "") -> None:
    """Add an option for every field of a configuration, in groups."""
    for group, members in itertools.groupby(fields_of(value, prefix), key=_group):
        section = parser.add_argument_group(group or "run")
        for field in members:
            section.add_argument(
                f"--{field.name.replace('_', '-')}",
                dest=field.name,
                nargs="*" if _is_tuple(field.hint) else None,
                metavar=_metavar(field.hint),
                default=argparse.SUPPRESS,
                help=f"{field.doc} (default: {_shown(field.default)})".replace("%", "%%"),
            )


def normalised(arguments: Sequence[str]) -> list[str]:
    """`--model.key_dim=4` is `--model.key-dim=4`: names of options may have either character."""
    return [_normalised(argument) for argument in arguments]


def override(run: Run, given: dict[str, Any]) -> Run:
    """`run` with other values in some of its fields.

    Args:
        run: Where the other values come from.
        given: Dotted name to the text of the value, or to a list of texts.

    Raises:
        UserError: A value is not of the field's type, or out of its range.
    """
    hints = {field.name: field.hint for field in fields_of(run)}
    values = run.as_dict()
    for name, text in given.items():
        serial.assign(values, name, parsed(hints[name], text))
    return Run.from_dict(values)


def parsed(hint: Any, text: Any) -> Any:
    """The JSON value that `text` stands for; the text itself if it stands for none of the type."""
    if isinstance(text, list):
        return [parsed(get_args(hint)[0], item) for item in text]
    if NoneType in get_args(hint) and text == "none":
        return None
    if _is_text(hint):
        return text
    return arguments.json_value(text)


def _is_text(hint: Any) -> bool:
    if get_origin(hint) is Literal:
        return all(isinstance(choice, str) for choice in get_args(hint))
    return _holds(hint, str) or _holds(hint, Path)


def _holds(hint: Any, kind: type) -> bool:
    """Whether a field holds a `kind`, or None, and nothing else."""
    return {*(get_args(hint) or (hint,))} - {NoneType} == {kind}


def _is_tuple(hint: Any) -> bool:
    return get_origin(hint) is tuple


def _metavar(hint: Any) -> str:
    """What the help shows in place of a value."""
    if hint is bool:
        return "true|false"
    origin, args = get_origin(hint), get_args(hint)
    if origin is Literal:
        return "|".join(map(str, args))
    if origin is tuple:
        return _metavar(args[0])
    if origin is Union or args:
        return "|".join("none" if part is NoneType else _metavar(part) for part in args)
    return hint.__name__.upper()


def _shown(value: Any) -> str:
    if isinstance(value, tuple):
        return " ".join(map(str, value)) or "none given"
    return str(value).lower() if isinstance(value, bool | NoneType) else str(value)


def _group(field: Field) -> str:
    return field.name.rpartition(".")[0]


def _normalised(argument: str) -> str:
    name, equals, value = argument.partition("=")
    return name.replace("_", "-") + equals + value if name.startswith("--") else argument
