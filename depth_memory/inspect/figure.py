"""Pictures of a retrieval map and of a stream's statistics."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

from depth_memory.errors import UserError
from depth_memory.inspect.retrieval import RetrievalMap


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


def _heat(axis: Any, values: np.ndarray, title: str, residual: bool) -> Any:
    """One map; around 1 where an ordinary residual is the reference, from 0 otherwise."""
    future = np.triu(np.ones_like(values, dtype=bool), 1)
    shown = np.ma.masked_array(values, future)
    if residual:
        reach = max(float(np.abs(shown - 1.0).max()), 1e-3)
        limits = {"cmap": "RdBu_r", "vmin": 1.0 - reach, "vmax": 1.0 + reach}
    else:
        limits = {"cmap": "viridis", "vmin": min(0.0, float(shown.min()))}
    image = axis.imshow(shown, aspect="auto", interpolation="nearest", **limits)
    axis.set_title(title, fontsize=9)
    axis.set_xlabel("source: embedding, then sublayer outputs")
    axis.set_ylabel("read by sublayer; last: output")
    return image


def draw_map(retrieval: RetrievalMap, path: Path, title: str) -> None:
    """Write the map as a PNG: the mean over groups, and each group where there are several.

    Raises:
        UserError: matplotlib is not installed.
    """
    pyplot = _pyplot()
    weights = retrieval.weights.float().cpu().numpy()
    groups = weights.shape[-1]
    panels = [("mean of groups" if groups > 1 else "weight", weights.mean(-1))]
    if groups > 1:
        panels += [(f"group {g}", weights[..., g]) for g in range(min(groups, 4))]
    lower = weights.mean(-1)[np.tril_indices(weights.shape[0])]
    residual = float(np.median(lower)) > 0.5
    figure, axes = pyplot.subplots(
        1, len(panels), figsize=(3.6 * len(panels) + 0.6, 3.6), layout="constrained", squeeze=False
    )
    for axis, (name, values) in zip(axes[0], panels, strict=True):
        figure.colorbar(_heat(axis, values, name, residual), ax=axis, shrink=0.85)
    put(figure.suptitle("", fontsize=10), title)
    save(figure, path)
    pyplot.close(figure)


def draw_statistics(rows: list[dict[str, Any]], path: Path, title: str) -> None:
    """Write by-depth curves of whatever the rows hold as a PNG.

    Raises:
        UserError: matplotlib is not installed.
    """
    pyplot = _pyplot()
    fields = [
        name
        for name in ("input_rms", "beyond_residual", "gate", "gain", "importance", "forgetting")
        if any(name in row for row in rows)
    ]
    figure, axes = pyplot.subplots(
        1, len(fields), figsize=(2.9 * len(fields), 2.7), layout="constrained", squeeze=False
    )
    for axis, name in zip(axes[0], fields, strict=True):
        points = [(i, _levels(row[name])) for i, row in enumerate(rows) if name in row]
        axis.plot([i for i, _ in points], [levels for _, levels in points], marker=".")
        axis.set_title(name.replace("_", " "), fontsize=9)
        axis.set_xlabel("sublayer")
    put(figure.suptitle("", fontsize=10), title)
    save(figure, path)
    pyplot.close(figure)


def _levels(value: Any) -> Any:
    """A number, a number per group, or the means of a summary."""
    return value["mean"] if isinstance(value, dict) else value
