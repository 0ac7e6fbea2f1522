"""How fast each method is beside PreLN, in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depth_memory.cli import curves


def check(path: Path) -> None:
    """Find out before the work whether it can be drawn.

    Raises:
        UserError: matplotlib is missing, or the format is unknown.
    """
    curves.check_format(curves.new_figure(), path)


def draw(rows: Sequence[dict[str, Any]], path: Path) -> None:
    """A panel for each measurement, a bar for each method; what has no ratio is left out.

    Raises:
        UserError: The picture cannot be written.
    """
    panels: dict[str, list[dict[str, Any]]] = {}
    for row in rows:
        if row["ratio_to_preln"] is not None:
            panels.setdefault(_title(row), []).append(row)
    figure = curves.new_figure()
    height = sum(0.9 + 0.25 * len(members) for members in panels.values())
    figure.set_size_inches(6.4, max(height, 1.5))
    heights = [len(members) + 2 for members in panels.values()]
    axes = figure.subplots(
        max(len(panels), 1), sharex=True, squeeze=False, height_ratios=heights or [1]
    )
    for axis, (title, members) in zip(axes[:, 0], panels.items(), strict=False):
        _bars(axis, members)
        axis.set_title(title, fontsize=9)
    axes[-1, 0].set_xlabel("tokens/s relative to PreLN; the line is the spread", fontsize=9)
    curves.save(figure, path)


def _bars(axis: Any, rows: Sequence[dict[str, Any]]) -> None:
    ratios = [row["ratio_to_preln"] for row in rows]
    half = [ratio * row["spread"] / 2 for ratio, row in zip(ratios, rows, strict=True)]
    bars = axis.barh([row["method"] for row in rows], ratios, xerr=half, ecolor="gray")
    axis.bar_label(bars, [f"{ratio:.3f}" for ratio in ratios], label_type="center", fontsize=8)
    axis.axvline(1.0, color="black", linewidth=0.8)
    axis.invert_yaxis()
    axis.tick_params(labelsize=8)


def _title(row: dict[str, Any]) -> str:
    decodes = row["mode"] == "decode"
    tokens = f"context {row['context']}" if decodes else f"{row['sequence']} tokens"
    kept = ", checkpointing" if row["checkpointing"] else ""
    where = f"{row['backbone']}, {row['layers']} layers, {row['scope']}"
    return f"{row['mode']} {where}: {row['batch']} x {tokens}{kept}"
