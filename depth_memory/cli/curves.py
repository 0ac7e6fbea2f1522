"""The loss of several runs over their steps, in one picture."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from depth_memory.errors import UserError, invalid
from depth_memory.files import reason, replaced_file


def draw(runs: Sequence[Path], path: Path) -> None:
    """Write the losses of runs as a picture: `figure`, then `save`."""
    save(figure(runs, path), path)


def figure(runs: Sequence[Path], path: Path) -> Any:
    """The losses of runs as a figure of matplotlib, which `save` writes.

    Args:
        runs: Directories of runs.
        path: Of the picture; its suffix chooses the format.

    Raises:
        UserError: matplotlib is missing, a directory is not of a run, or the format is unknown.
    """
    from depth_memory.inspect.figure import put
    from depth_memory.train import read_metrics
    from depth_memory.train.directory import METRICS

    picture = new_figure()
    check_format(picture, path)
    axis = picture.subplots()
    labels = []
    for number, run in enumerate(runs):
        records = read_metrics(run / METRICS)
        if not records:
            raise invalid("--figure: model", str(run), f"the directory of a run, with {METRICS}")
        labels.append(_plot(axis, records, run.resolve().name, f"C{number}"))
    axis.set_xlabel("step")
    axis.set_ylabel("loss in nats per token")
    for text, label in zip(axis.legend().get_texts(), labels, strict=True):
        put(text, label)
    return picture


def _plot(axis: Any, records: Sequence[dict[str, Any]], name: str, color: str) -> str:
    """The training loss faintly, the validation loss on top; what the legend shall say of them."""
    steps = [record["step"] for record in records]
    axis.plot(steps, [record["loss"] for record in records], color=color, alpha=0.25)
    points = [(r["step"], r["validation_loss"]) for r in records if "validation_loss" in r]
    # a label that begins with _ would keep the line out of the legend
    axis.plot(
        [step for step, _ in points], [loss for _, loss in points], ".-", color=color, label=color
    )
    return f"{name}: validation {points[-1][1]:.3f}" if points else name


def new_figure() -> Any:
    """An empty figure.

    Raises:
        UserError: matplotlib is not installed.
    """
    from depth_memory.inspect.figure import require

    require()
    from matplotlib.figure import Figure

    return Figure(figsize=(6.4, 4.0), layout="constrained")


def check_format(figure: Any, path: Path) -> None:
    """Raise unless the suffix of `path` is of a format that the figure can take."""
    formats = figure.canvas.get_supported_filetypes()
    if path.suffix.removeprefix(".") not in formats:
        raise invalid("--figure", str(path), f"a name that ends in one of {', '.join(formats)}")


def save(picture: Any, path: Path) -> None:
    """Write a figure; what is at `path` is replaced once it is whole.

    Raises:
        UserError: It cannot be written.
    """
    from depth_memory.inspect import figure

    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(path) as partial:
            figure.save(picture, partial)
    except OSError as error:
        raise UserError(f"--figure: cannot write {path}: {reason(error)}") from error
