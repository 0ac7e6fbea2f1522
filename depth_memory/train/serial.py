"""Configurations as JSON and back, exactly, with one-line errors.

The types of the dataclass fields are the schema: a field that is not there, or a value of another
kind, is refused and never guessed at.
"""

from __future__ import annotations

import dataclasses
import types
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from depth_memory import streams
from depth_memory.errors import UserError, invalid, is_number

Json = Any  # None, bool, int, float, str, or a list or dict of these


def encode(value: Any) -> Json:
    """`value` as JSON values: dataclasses become dicts, tuples lists, paths strings."""
    if is_stream(value):
        return encode(streams.as_dict(value))
    if dataclasses.is_dataclass(value):
        fields = dataclasses.fields(value)
        return {field.name: encode(getattr(value, field.name)) for field in fields}
    if isinstance(value, dict):
        return {key: encode(item) for key, item in value.items()}
    if isinstance(value, tuple | list):
        return [encode(item) for item in value]
    return str(value) if isinstance(value, Path) else value


def decode(hint: Any, value: Json, name: str = "") -> Any:
    """The value of type `hint` that `encode` turned into `value`.

    Args:
        hint: A dataclass, or the type of one of its fields.
        value: JSON values.
        name: Dotted name for error messages.

    Raises:
        UserError: A field is unknown, or `value` is not of the type.
    """
    if dataclasses.is_dataclass(hint):
        return _decode_dataclass(hint, value, name)
    if hint is Any:
        return streams.resolve(value)
    origin = get_origin(hint)
    if origin is Literal:
        return _checked(value in get_args(hint), value, name, _listed(get_args(hint)))
    if origin is tuple:
        return _decode_tuple(get_args(hint), value, name)
    if origin in (Union, types.UnionType):
        inner = next(arg for arg in get_args(hint) if arg is not type(None))
        return None if value is None else decode(inner, value, name)
    return _decode_scalar(hint, value, name)


def first_difference(ours: Json, theirs: Json, name: str = "") -> str | None:
    """The dotted name of the first field in which two encoded configurations differ."""
    if isinstance(ours, dict) and isinstance(theirs, dict):
        for key in [*ours, *(key for key in theirs if key not in ours)]:
            path = f"{name}.{key}" if name else key
            found = first_difference(ours.get(key), theirs.get(key), path)
            if found:
                return found
        return None
    return None if ours == theirs and type(ours) is type(theirs) else name


def lookup(values: Json, name: str) -> Json:
    """The value at a dotted name; None where there is none."""
    for key in name.split("."):
        values = values.get(key) if isinstance(values, dict) else None
    return values


def assign(values: Json, name: str, value: Json) -> None:
    """Replace the value at a dotted name of an encoded configuration, in place.

    Raises:
        UserError: There is no such field.
    """
    *groups, field = name.split(".")
    for group in groups:
        values = values.get(group) if isinstance(values, dict) else None
    if not isinstance(values, dict) or field not in values:
        known = f"; allowed: {_listed(values)}" if isinstance(values, dict) else ""
        raise UserError(f"{name}: unknown field{known}")
    values[field] = value


def is_stream(value: object) -> bool:
    """Whether `value` is the configuration of a stream."""
    return any(isinstance(value, config) for config, _ in streams.STREAMS.values())


def _decode_dataclass(hint: Any, value: Json, name: str) -> Any:
    _checked(isinstance(value, dict), value, name or hint.__name__, "an object with named fields")
    hints = get_type_hints(hint)
    prefix = f"{name}." if name else ""
    unknown = next((key for key in value if key not in hints), None)
    if unknown is not None:
        raise UserError(f"{prefix}{unknown}: unknown field; allowed: {_listed(hints)}")
    return hint(**{key: decode(hints[key], value[key], prefix + key) for key in value})


def _decode_tuple(args: tuple[Any, ...], value: Json, name: str) -> tuple[Any, ...]:
    _checked(isinstance(value, list | tuple), value, name, "a list")
    if args[-1] is Ellipsis:
        return tuple(decode(args[0], item, name) for item in value)
    _checked(len(value) == len(args), value, name, f"{len(args)} values")
    return tuple(decode(arg, item, name) for arg, item in zip(args, value, strict=True))


def _decode_scalar(hint: Any, value: Json, name: str) -> Any:
    if hint is Path:
        named = isinstance(value, str) and value != "" and "\0" not in value
        return Path(_checked(named, value, name, "a path"))
    if hint is float:
        return float(_checked(is_number(value), value, name, "a finite number"))
    if hint is int:
        number = isinstance(value, int) and not isinstance(value, bool)
        return _checked(number, value, name, "a whole number")
    allowed = "true or false" if hint is bool else f"a {hint.__name__}"
    return _checked(isinstance(value, hint), value, name, allowed)


def _checked(ok: bool, value: Any, name: str, allowed: str) -> Any:
    if not ok:
        raise invalid(name, value, allowed)
    return value


def _listed(names: Any) -> str:
    return ", ".join(str(name) for name in names)
