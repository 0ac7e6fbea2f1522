"""`depth-memory inspect`: what the streams of models do on some text."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console, loading, outputs
from depth_memory.errors import UserError, invalid

if TYPE_CHECKING:
    from torch import Tensor

    from depth_memory.loading import Loaded

EXAMPLES = """\
depth-memory inspect runs/ldm --out runs/ldm/inspect
depth-memory inspect runs/ldm --text "It was a bright cold day" --out pictures
depth-memory inspect runs/ldm runs/attnres runs/mhc --out side-by-side
"""
LENGTH = 128
SECONDS_BETWEEN_NOTES = 5.0


def add(commands: Any) -> None:
    """Add the command."""
    parser = arguments.add_command(
        commands,
        "inspect",
        run,
        summary="What each sublayer retrieves, what that is worth, and the stream by depth.",
        examples=EXAMPLES,
    )
    loading.add_model(parser, nargs="+")
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=arguments.path,
        required=True,
        help="where report.html, inspect.json and the pictures go",
    )
    parser.add_argument(
        "--text",
        metavar="TEXT",
        help="what the models read; by default held-out text of the first one's data",
    )
    parser.add_argument("--data", metavar="DIR", type=arguments.path, help="prepared data to read")
    parser.add_argument(
        "--rows", metavar="N", type=arguments.count, default=4, help="windows of data (default: 4)"
    )
    parser.add_argument(
        "--tokens",
        metavar="N",
        type=arguments.count,
        default=LENGTH,
        help="of how many tokens the report has the weights one by one, as far as 1.5 MB for each "
        f"model allow (default: {LENGTH})",
    )
    parser.add_argument(
        "--no-ablation",
        action="store_true",
        help="do not switch off each read in turn, which takes one forward pass for each",
    )


def run(args: argparse.Namespace) -> None:
    """Write the report, show what each read is worth, and say where the files are."""
    from depth_memory import inspect
    from depth_memory.inspect.report import NAMES

    outputs.check_directory("--out", args.out, NAMES)
    _check_text(args)
    pictures = _can_draw()
    models = [loading.load(path, args) for path in args.model]
    ids, words = _ids(models, args)
    console.note(f"inspecting {', '.join(str(loaded.path) for loaded in models)}")
    if ids.shape[1] == 1 and not args.no_ablation:
        console.note("one token predicts no other: no loss, and no table of reads switched off")
    document, paths = inspect.report(
        [(str(path), loaded.model) for path, loaded in zip(args.model, models, strict=True)],
        ids,
        args.out,
        title=f"Inspection of {', '.join(map(str, args.model))}",
        words=words,
        kept=args.tokens,
        ablate=not args.no_ablation,
        pictures=pictures,
        on_progress=_progress(),
    )
    _show_losses(document["models"])
    for path in paths:
        console.show(str(path))


def _can_draw() -> bool:
    """Whether there will be pictures; says so if there will be none."""
    from depth_memory.inspect import figure

    try:
        figure.require()
    except UserError:
        console.note("no PNGs, which need matplotlib: pip install 'depth-memory[plot]'")
        return False
    return True


def _check_text(args: argparse.Namespace) -> None:
    if args.text is not None and args.data is not None:
        raise invalid("--data", str(args.data), "it without --text")
    try:
        (args.text or "").encode()
    except UnicodeEncodeError as error:
        raise invalid("--text", args.text, "text in UTF-8") from error


def _ids(models: Sequence[Loaded], args: argparse.Namespace) -> tuple[Tensor, list[str] | None]:
    """What the models shall read, [rows, length], and the words of the first row."""
    reference = _reference(models, args.model)
    limit = min(loaded.limit for loaded in models)
    if args.text is None:
        ids = _windows(reference, limit, args.data, args.rows)
    else:
        ids = _encoded(reference, limit, args.text)
    for path, loaded in zip(args.model, models, strict=True):
        entries = loaded.model.config.vocab_size
        if int(ids.max()) >= entries:
            raise invalid(f"{path}: vocab_size", entries, f"above the text's id {int(ids.max())}")
    tokenizer = reference.tokenizer
    words = None if tokenizer is None else [tokenizer.decode([i]) for i in ids[0].tolist()]
    return ids, words


def _reference(models: Sequence[Loaded], paths: Sequence[Path]) -> Loaded:
    """The first model that has a tokenizer, which all others must agree with.

    Raises:
        UserError: Another one has another tokenizer.
    """
    having = [(path, m) for path, m in zip(paths, models, strict=True) if m.tokenizer is not None]
    if not having:
        return models[0]
    (first, reference), *others = having
    for path, loaded in others:
        expected, got = reference.need_tokenizer().sha256, loaded.need_tokenizer().sha256
        if got != expected:
            raise invalid(f"{path}: tokenizer", got, f"that of {first}, {expected}")
    return reference


def _encoded(reference: Loaded, limit: int, text: str) -> Tensor:
    import torch

    ids = torch.from_numpy(reference.need_tokenizer().encode(text))[None]
    if ids.shape[1] == 0:
        raise invalid("--text", text, "at least one token")
    if ids.shape[1] > limit:
        allowed = f"at most the model's position limit {limit}"
        raise invalid("--text: tokens", ids.shape[1], allowed)
    return ids.to(reference.model.device)


def _windows(reference: Loaded, limit: int, directory: Path | None, rows: int) -> Tensor:
    """The first windows of the validation split."""
    import itertools

    import numpy as np
    import torch

    split = loading.open_split(reference, directory, "validation")
    length = min(LENGTH, limit, split.tokens - 1)
    rows = min(rows, split.windows_of(length))
    windows = [w[:length] for w in itertools.islice(split.windows(length), rows)]
    whole = [window for window in windows if len(window) == length]
    return torch.from_numpy(np.stack(whole)).to(reference.model.device)


def _progress() -> Callable[[str, int, int], None]:
    """A note every few seconds."""
    last = time.monotonic()

    def update(name: str, done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_NOTES:
            last = now
            console.note(f"{name}: {done} of {total} passes with reads switched off")

    return update


def _show_losses(models: Sequence[dict[str, Any]]) -> None:
    """A row for each read that one of the models can do without, two columns for each model."""
    able = [model for model in models if model["ablation"]]
    if not able:
        return
    names = max((model["reads"] for model in able), key=len)
    found = [{row["read"]: row["loss"] for row in m["ablation"]["rows"]} for m in able]
    whole = [model["ablation"]["loss"] for model in able]
    rows = [(n, [losses.get(n) for losses in found]) for n in names if any(n in x for x in found)]
    if rows:
        rows.append(("every one of these", [model["ablation"]["every"] for model in able]))
    header = ["read switched off"]
    for model in able:
        header += [f"{model['name']}: nats/token", "more"]
    first = ["none", *(cell for loss in whole for cell in (f"{loss:.4f}", ""))]
    console.show_table(header, [first, *([name, *_cells(x, whole)] for name, x in rows)])
    console.show()


def _cells(losses: Sequence[float | None], whole: Sequence[float]) -> list[str]:
    cells: list[str] = []
    for loss, reference in zip(losses, whole, strict=True):
        cells += ["-", ""] if loss is None else [f"{loss:.4f}", _signed(loss - reference)]
    return cells


def _signed(difference: float) -> str:
    text = f"{difference:+.4f}"
    return text if float(text) else text[1:]  # no sign of a zero
