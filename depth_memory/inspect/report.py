"""The files that `depth-memory inspect` writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from depth_memory.files import dumps, naming, replaced_file
from depth_memory.inspect import figure, page
from depth_memory.inspect.document import Progress, describe

PAGE, DATA = "report.html", "inspect.json"
Picture = Callable[[dict[str, Any], Path], None]
PICTURES: dict[str, Picture] = {
    "retrieval.png": lambda document, path: figure.draw_maps(document, path),
    "statistics.png": lambda document, path: figure.draw_statistics(document, path),
    "ablation.png": lambda document, path: figure.draw_ablation(document, path),
}
NAMES = (PAGE, DATA, *PICTURES)


def report(
    models: Sequence[tuple[str, nn.Module]],
    input_ids: Tensor,
    out: Path,
    *,
    title: str,
    words: Sequence[str] | None = None,
    kept: int = 128,
    ablate: bool = True,
    pictures: bool = True,
    on_progress: Progress | None = None,
) -> tuple[dict[str, Any], list[Path]]:
    """Write what the streams of models do on the same text, beside each other.

    Args:
        models: Name and causal language model of this package, for each.
        input_ids: Token ids [batch, length].
        out: Directory; made if it is missing. What is no report's stays.
        title: Heading.
        words: The text of each token of the first row; by default the ids.
        kept: Of how many tokens of the first row the weights are shown one by one; fewer where
            they would take more than 1.5 MB of a model.
        ablate: Whether each read is switched off in turn, which takes a forward pass each.
        pictures: Whether to draw PNGs, which needs matplotlib; the page and the data do not.
        on_progress: Called while reads are switched off: the model's name, how many forward passes
            are done, and of how many.

    Returns:
        What `inspect.json` holds, and the files: `report.html`, `inspect.json`, `retrieval.png`,
        `statistics.png` and, where a read can be switched off, `ablation.png`. They appear when all
        of them are whole; one of these that an older report left and this one lacks is removed.

    Raises:
        UserError: A model has no stream, there are no tokens, a number is not finite (which names
            the first place in depth), or matplotlib is not installed.
    """
    if pictures:
        figure.require()
    document = describe(
        models,
        input_ids,
        title=title,
        words=words,
        kept=kept,
        ablate=ablate,
        on_progress=on_progress,
    )
    document = _printable(document)
    drawn = dict(PICTURES) if pictures else {}
    if not any(entry["ablation"] and entry["ablation"]["rows"] for entry in document["models"]):
        drawn.pop("ablation.png", None)
    data = dumps(document)  # first: it names what is not finite
    return document, _write(out, {PAGE: page.render(document), DATA: data}, drawn, document)


def _write(
    out: Path, texts: dict[str, str], drawn: dict[str, Picture], document: dict[str, Any]
) -> list[Path]:
    """The files, which take their places when all of them are whole."""
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / name for name in (*texts, *drawn)]
    with ExitStack() as stack:
        partial = {path.name: stack.enter_context(replaced_file(path)) for path in paths}
        for name, text in texts.items():
            with naming(out / name):
                partial[name].write_text(text, encoding="utf-8")
        for name, draw in drawn.items():
            with naming(out / name):
                draw(document, partial[name])
    for stale in {out / name for name in NAMES} - set(paths):
        stale.unlink(missing_ok=True)
    return paths


def _printable(value: Any) -> Any:
    """`value` without lone surrogates, which names of files may have and UTF-8 does not."""
    if isinstance(value, str):
        return value.encode(errors="replace").decode()
    if isinstance(value, dict):
        return {key: _printable(item) for key, item in value.items()}
    return [_printable(item) for item in value] if isinstance(value, list) else value
