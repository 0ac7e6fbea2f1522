"""The pictures of a report: maps, curves by depth, and what each read is worth."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from depth_memory.errors import UserError
from depth_memory.inspect.panels import PANELS, Panel, lines

GROUPS = 4
"""As many have maps of their own; the page has them all."""
LONGEST = 28
"""Characters of a model's name above a diagram; the last ones tell models apart."""
COLOURS = 10
"""Of matplotlib's cycle."""
COLUMNS = 4
"""Diagrams beside each other, for one model."""


def require() -> None:
    """Find out whether pictures can be drawn.

    Raises:
        UserError: matplotlib is not installed.
    """
    _pyplot()


def _pyplot() -> Any:
    try:
        import matplotlib
    except ImportError as error:
        raise UserError(
            "matplotlib: got no installation; allowed: pip install 'depth-memory[plot]'"
        ) from error
    matplotlib.use("Agg")
    from matplotlib import pyplot

    return pyplot


def put(text: Any, words: str) -> None:
    """Give a text of a figure its words as they are: no mathematics, and no lone surrogates."""
    text.set(text=words.encode(errors="replace").decode(), parse_math=False, usetex=False)


def save(figure: Any, path: Path) -> None:
    """Write a figure as `path` says; a character that the font lacks becomes a box."""
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message=r"Glyph \d+ .* missing from font")
        figure.savefig(path, dpi=130)


def _subplots(title: str, rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    width, height = size
    figure, axes = _pyplot().subplots(
        rows,
        columns,
        figsize=(width * columns, height * rows + 0.3),
        layout="constrained",
        squeeze=False,
    )
    put(figure.suptitle("", fontsize=10), title)
    return figure, axes


def _finish(figure: Any, path: Path) -> None:
    save(figure, path)
    _pyplot().close(figure)


def _weights(entry: dict[str, Any], group: int | None = None) -> np.ndarray:
    """[reads, sources], of a group or the mean of all."""
    weights = np.array(entry["weights"])
    return weights.mean(-1) if group is None else weights[..., group]


def is_residual(entry: dict[str, Any]) -> bool:
    """Whether a model's weights are rather around 1, as those of an ordinary residual, than 0."""
    weights = _weights(entry)
    return float(np.median(weights[np.tril_indices(weights.shape[0])])) > 0.5


def draw_maps(document: dict[str, Any], path: Path) -> None:
    """Write the maps as a picture: the means of all models in a row, then groups of each.

    One rule serves all models: the colours are centred at 1 where all of them are ordinary
    residuals and something more, at 0 otherwise.

    Raises:
        UserError: matplotlib is not installed.
    """
    models = document["models"]
    centre = 1.0 if all(map(is_residual, models)) else 0.0
    means = [(entry, None) for entry in models]
    groups = [[(entry, g) for g in range(min(entry["groups"], GROUPS))] for entry in models]
    groups = [row for row in groups if len(row) > 1]
    rows = [means + groups[0]] if len(models) == 1 and groups else [means, *groups]
    figure, axes = _subplots(document["title"], len(rows), max(map(len, rows)), (3.7, 3.6))
    for axis in axes.flat:
        axis.set_axis_off()
    for across, cells in zip(axes, rows, strict=True):
        for axis, (entry, group) in zip(across, cells, strict=False):
            axis.set_axis_on()
            image = _heat(axis, _weights(entry, group), centre)
            mean = "mean of groups" if entry["groups"] > 1 else "weight"
            name = mean if group is None else f"group {group}"
            put(axis.set_title("", fontsize=9), _name(models, entry, name))
            bar = figure.colorbar(image, ax=axis, shrink=0.85)
            bar.set_label(f"weight (white: {centre:g})", fontsize=8)
    _finish(figure, path)


def _name(models: list[dict[str, Any]], entry: dict[str, Any], name: str) -> str:
    if len(models) == 1:
        return name
    model = entry["name"] if len(entry["name"]) <= LONGEST else f"\u2026{entry['name'][-LONGEST:]}"
    return f"{model} ({entry['stream']['name']})\n{name}"


def _heat(axis: Any, values: np.ndarray, centre: float) -> Any:
    """One map, with colours that are white at the centre."""
    future = np.triu(np.ones_like(values, dtype=bool), 1)
    shown = np.ma.masked_array(values, future)
    reach = max(float(np.abs(shown - centre).max()), 1e-3)
    image = axis.imshow(
        shown,
        aspect="auto",
        interpolation="nearest",
        cmap="RdBu_r",
        vmin=centre - reach,
        vmax=centre + reach,
    )
    axis.set_xlabel("source: embedding, then sublayer outputs")
    axis.set_ylabel("read by sublayer; last: output")
    return image


def draw_statistics(document: dict[str, Any], path: Path) -> None:
    """Write what there is by depth as a picture: a column per model, or all of one model.

    Raises:
        UserError: matplotlib is not installed.
    """
    models = document["models"]
    rows = _arranged(models, len(models) if len(models) > 1 else COLUMNS)
    figure, axes = _subplots(document["title"], len(rows), max(map(len, rows)), (3.3, 2.6))
    for axis in axes.flat:
        axis.set_axis_off()
    for across, cells in zip(axes, rows, strict=True):
        for axis, (panel, entry) in zip(across, cells, strict=False):
            axis.set_axis_on()
            _curves(axis, entry, panel, _name(models, entry, panel.title))
            if panel is cells[0][0]:
                _share_heights(across[0], axis)
    _explain_groups(figure, max(entry["groups"] for entry in models))
    _finish(figure, path)


def _arranged(models: list[dict[str, Any]], columns: int) -> list[list[tuple[Panel, Any]]]:
    """Rows of diagrams: one for a panel that several models have, others as they fit."""
    rows, rest = [], []
    for panel in PANELS:
        having = [(panel, entry) for entry in models if lines(entry, panel)]
        if len(having) > 1:
            rows.append(having)
        else:
            rest += having
    return rows + [rest[i : i + columns] for i in range(0, len(rest), columns)]


def _explain_groups(figure: Any, groups: int) -> None:
    """A legend below everything, for as many groups as there are colours."""
    from matplotlib.lines import Line2D

    if 1 < groups <= COLOURS:
        lines = [Line2D([], [], color=f"C{g}", label=f"group {g}") for g in range(groups)]
        figure.legend(handles=lines, loc="outside lower center", ncols=groups, fontsize=8)


def _curves(axis: Any, entry: dict[str, Any], panel: Panel, title: str) -> None:
    """A colour for each group, or each series where there are no groups; a dash per series."""
    found = lines(entry, panel)
    grouped = any(line.group is not None for line in found)
    for line in found:
        name = panel.series[line.series][0]
        first = not grouped or line.group == 0
        axis.plot(
            line.depths,
            line.values,
            color=f"C{line.group if grouped and line.group is not None else line.series}",
            linestyle=("-", "--", ":")[line.series],
            linewidth=1.2,
            label=name if name and first else None,
        )
    put(axis.set_title("", fontsize=9), title)
    axis.set_xlabel("written by: 0 the embedding" if panel.rows == "writes" else "read by sublayer")
    axis.set_ylabel(panel.equation, fontsize=8)
    axis.set_xlim(-0.5, len(entry["reads"]) - 0.5)
    if panel.log and min(min(line.values) for line in found) > 0:
        axis.set_yscale("log")
    if any(name for name, _ in panel.series):
        axis.legend(fontsize=7)


def _share_heights(first: Any, other: Any) -> None:
    if first is not other and first.get_yscale() == other.get_yscale():
        other.sharey(first)
        first.autoscale(axis="y")


def draw_ablation(document: dict[str, Any], path: Path) -> None:
    """Write what each read is worth as a picture: a row per model that has reads to switch off.

    Raises:
        UserError: matplotlib is not installed.
    """
    models = [m for m in document["models"] if m["ablation"] and m["ablation"]["rows"]]
    figure, axes = _subplots(document["title"], len(models), 1, (7.0, 2.4))
    for axis, entry in zip(axes[:, 0], models, strict=True):
        found = entry["ablation"]
        places = [entry["reads"].index(row["read"]) for row in found["rows"]]
        axis.bar(places, [row["difference"] for row in found["rows"]], width=0.8)
        axis.axhline(0.0, color="black", linewidth=0.6)
        title = f"loss {found['loss']:.4f}; with every read switched off {found['every']:.4f}"
        put(axis.set_title("", fontsize=9), _name(models, entry, title))
        axis.set_xlim(-0.5, len(entry["reads"]) - 0.5)
        axis.set_xlabel("read switched off; last: output")
        axis.set_ylabel("nats per token more", fontsize=8)
    _finish(figure, path)
