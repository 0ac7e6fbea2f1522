"""What is drawn by depth: one list, for the page and for the pictures."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple


@dataclass(frozen=True, kw_only=True)
class Panel:
    """One diagram; a stream that lacks its first series has none."""

    title: str
    equation: str
    rows: Literal["statistics", "writes"]
    """Per read, or per write."""
    series: tuple[tuple[str, str], ...]
    """Name in the legend, and path in a row to a number, or to one per group."""
    log: bool = False


PANELS = (
    Panel(
        title="Beyond the ordinary residual",
        equation="|x \u2212 h| / |h|",
        rows="statistics",
        series=(("", "beyond_residual"),),
    ),
    Panel(
        title="Turned away from it",
        equation="sin \u2220(x, h)",
        rows="statistics",
        series=(("", "turned"),),
    ),
    Panel(
        title="Size of the streams",
        equation="root mean square",
        rows="statistics",
        series=(
            ("input x", "input_rms"),
            ("ordinary residual h", "residual_rms"),
            ("output v", "output_rms"),
        ),
        log=True,
    ),
    Panel(title="Gain of the read", equation="gain", rows="statistics", series=(("", "gain"),)),
    Panel(
        title="Gate of the read",
        equation="gate, mean over tokens",
        rows="statistics",
        series=(("", "gate.mean"),),
    ),
    Panel(
        title="Importance of the write",
        equation="w, mean over tokens",
        rows="writes",
        series=(("", "importance.mean"),),
    ),
    Panel(
        title="Forgetting at the write",
        equation="\u03bb (1 forgets nothing)",
        rows="writes",
        series=(("", "forgetting"),),
    ),
    Panel(
        title="Prediction error of the fit",
        equation="|v \u2212 M k| / |v|, mean over tokens",
        rows="writes",
        series=(("before the write", "error.mean"), ("after it", "error_after.mean")),
    ),
    Panel(
        title="Condition of P",
        equation="largest / smallest eigenvalue",
        rows="writes",
        series=(("median token", "condition.median"), ("worst token", "condition.worst")),
        log=True,
    ),
    Panel(
        title="Size of the memory",
        equation="|M| (Frobenius), mean over tokens",
        rows="writes",
        series=(("", "memory_norm.mean"),),
        log=True,
    ),
)


class Line(NamedTuple):
    """One curve of a panel."""

    series: int
    group: int | None
    depths: list[int]
    values: list[float]


def lines(entry: Mapping[str, Any], panel: Panel) -> list[Line]:
    """The curves of a model; a write stands at the depth of its source, a read at its own."""
    rows = entry[panel.rows]
    depths = [_depth(entry, panel, row, place) for place, row in enumerate(rows)]
    found = []
    for number, (_, path) in enumerate(panel.series):
        points = [(d, v) for d, row in zip(depths, rows, strict=True) if (v := _at(row, path))]
        count = max((len(values) for _, values in points), default=0)
        for group in range(count):
            name = group if entry["groups"] > 1 and count > 1 else None
            values = [values[group] for _, values in points]
            found.append(Line(number, name, [d for d, _ in points], values))
    return found


def _depth(entry: Mapping[str, Any], panel: Panel, row: Mapping[str, Any], place: int) -> int:
    return entry["sources"].index(row["source"]) if panel.rows == "writes" else place


def _at(row: Mapping[str, Any], path: str) -> Sequence[float]:
    value: Any = row
    for key in path.split("."):
        value = value.get(key) if isinstance(value, Mapping) else None
    if value is None:
        return []
    return value if isinstance(value, list) else [value]
