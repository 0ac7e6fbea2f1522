"""What a sweep runs: a description in JSON, resolved to one `Run` for each name.

    {
      "preset": "hour-ldm",                        where every run starts
      "set": {"steps": 1000, "keep": 1},           fields of every run
      "axes": {
        "stream": ["ldm", "mhc"],                  one run for each combination of
        "optim.lr": [1e-3, 2e-3],                  the values of all axes
        "shape": {                                 several fields at once, under a label
          "wide": {"model.depth": 8, "model.width": 640},
          "deep": {"model.depth": 16, "model.width": 448}
        }
      },
      "out": "sweeps/first"                        its directory, if not sweeps/NAME
    }

A field is dotted as in `depth-memory train`; `preset`, and `stream` or `from` (a saved model or a
run to go on from), may be set like one and act first. An axis overrides `set`. The labels
of its point name a run: `ldm-lr0.001-wide`.
"""

from __future__ import annotations

import itertools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from depth_memory import presets
from depth_memory.errors import UserError, invalid, within
from depth_memory.files import reason
from depth_memory.loading import locate
from depth_memory.train import Run, continued, serial

KEYS = ("preset", "set", "axes", "out")
LIMIT = 10_000
LONGEST_NAME = 150

Fields = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Sweep:
    """Runs with names, in the order in which they are begun."""

    out: Path
    """Directory of this sweep and of no other."""
    runs: dict[str, Run]
    """Each writes to `out/runs/NAME`."""


class Value(NamedTuple):
    """A value on an axis."""

    label: str
    fields: Fields


def load(source: str, *, out: Path | None = None, settings: Mapping[str, Any] = {}) -> Sweep:
    """The sweep of a file, or of a family of presets.

    Args:
        source: A path, or a name in `presets.FAMILIES`.
        out: Its directory, instead of the one that the description names.
        settings: Fields of every run, over those that the description sets.

    Raises:
        UserError: The description or one of its runs is not valid; one line that names the place.
    """
    description = describe(source)
    if out is None:
        out = Path(_text("out", description.get("out", f"sweeps/{Path(source).stem}")))
    return Sweep(out=out, runs=resolve(description, out, settings))


def describe(source: str) -> presets.Description:
    """The description of that name or in that file.

    Raises:
        UserError: There is neither, or the file holds no JSON object.
    """
    if source in presets.FAMILIES:
        return presets.FAMILIES[source]()
    path = Path(source)
    if not path.is_file():
        raise invalid("sweep", source, f"a JSON file, or one of {', '.join(presets.FAMILIES)}")
    try:
        found = json.loads(path.read_text(encoding="utf-8"), object_pairs_hook=_no_duplicates)
    except (OSError, ValueError, RecursionError) as error:
        raise UserError(f"{path}: cannot be read as JSON: {reason(error)}") from error
    return _object(str(path), found)


def resolve(
    description: presets.Description,
    out: Path,
    settings: Mapping[str, Any] = {},
) -> dict[str, Run]:
    """The runs of a description, by name, each checked.

    Args:
        description: As above.
        out: Directory of the sweep.
        settings: As in `load`.

    Raises:
        UserError: As in `load`.
    """
    unknown = next((key for key in description if key not in KEYS), None)
    if unknown is not None:
        raise UserError(f"{unknown}: unknown field; allowed: {', '.join(KEYS)}")
    base = {key: description[key] for key in ("preset",) if key in description}
    base |= _object("set", description.get("set", {}))
    axes = _axes(_object("axes", description.get("axes", {})))
    _refuse_overridden(settings, axes)
    runs: dict[str, Run] = {}
    for point in itertools.product(*axes.values()):
        fields = {**base, **settings}
        for value in point:
            fields |= value.fields
        name = _name(point, fields)
        if name in runs:
            raise invalid("axes: run", name, "names that differ")
        runs[name] = _run(name, fields, out / "runs" / name)
    return runs


def _axes(given: Mapping[str, Any]) -> dict[str, list[Value]]:
    axes = {name: _axis(name, values) for name, values in given.items()}
    count = 1
    for values in axes.values():
        count *= len(values)
    if count > LIMIT:
        raise invalid("axes: runs", count, f"at most {LIMIT}")
    owners: dict[str, str] = {}
    for name, values in axes.items():
        for field in {field for value in values for field in value.fields}:
            if owners.setdefault(field, name) != name:
                raise invalid(f"axes.{name}", field, f"a field that axis {owners[field]} leaves")
    return axes


def _axis(name: str, values: Any) -> list[Value]:
    """One value for each item of a list, or for each label of an object."""
    if not isinstance(values, list | dict) or not values:
        raise invalid(f"axes.{name}", values, "a list of values, or an object of labels")
    if isinstance(values, dict):
        return [Value(label, _object(f"axes.{name}.{label}", v)) for label, v in values.items()]
    short = "" if name in ("preset", "stream", "from") else name.rpartition(".")[2]
    return [Value(f"{short}{_label(value)}", {name: value}) for value in values]


def _label(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def _name(point: Sequence[Value], fields: Fields) -> str:
    """A name that any file system takes."""
    labels = [value.label for value in point] or [str(fields.get("preset"))]
    name = re.sub(r"[^A-Za-z0-9._+]+", "-", "-".join(labels)).strip("-.")
    if not name or len(name) > LONGEST_NAME:
        raise invalid("axes: name of a run", name, f"1 to {LONGEST_NAME} characters")
    return name


def _run(name: str, fields: Fields, out: Path) -> Run:
    fields = dict(fields)
    with within(f"run {name}"):
        run = presets.get(_text("preset", fields.pop("preset", None)))
        run = _begun(run, fields.pop("stream", None), fields.pop("from", None))
        if "out" in fields:
            raise invalid("out", fields["out"], "nothing: the sweep names the directory of a run")
        values = run.as_dict()
        for field, value in fields.items():
            serial.assign(values, field, value)
        run = replace(Run.from_dict(values), out=out)
        run.validate()
    return run


def _begun(run: Run, stream: Any, source: Any) -> Run:
    """The run of a preset with another stream, or going on from a saved model."""
    if source is None:
        return run if stream is None else presets.with_stream(run, _text("stream", stream))
    if stream is not None:
        raise invalid("stream", stream, "nothing beside from, whose model has its own")
    return continued(run, locate(Path(_text("from", source)), name="from"))


def _refuse_overridden(settings: Mapping[str, Any], axes: Mapping[str, list[Value]]) -> None:
    for name, values in axes.items():
        for value in values:
            taken = next((field for field in settings if field in value.fields), None)
            if taken is not None:
                raise invalid("--set", taken, f"a field that axis {name} leaves")


def _object(name: str, value: Any) -> Fields:
    if not isinstance(value, dict):
        raise invalid(name, value, "an object with named fields")
    return value


def _text(name: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise invalid(name, value, "a name")
    return value


def _no_duplicates(pairs: list[tuple[str, Any]]) -> Fields:
    found = dict(pairs)
    if len(found) != len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise ValueError(f"{twice!r} stands there twice")
    return found
