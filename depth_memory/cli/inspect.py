"""`depth-memory inspect`: what a model's stream does on some text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console, loading, outputs
from depth_memory.errors import invalid

if TYPE_CHECKING:
    from torch import Tensor

    from depth_memory.loading import Loaded

EXAMPLES = """\
depth-memory inspect runs/ldm --out runs/ldm/inspect
depth-memory inspect runs/ldm --text "It was a bright cold day" --out pictures
"""
LENGTH = 128


def add(commands: Any) -> None:
    """Add the command."""
    parser = arguments.add_command(
        commands,
        "inspect",
        run,
        summary="What each sublayer retrieves, and the statistics of the stream by depth.",
        examples=EXAMPLES,
    )
    loading.add_model(parser)
    parser.add_argument(
        "--out",
        metavar="DIR",
        type=arguments.path,
        required=True,
        help="where inspect.json and the pictures go",
    )
    parser.add_argument(
        "--text", metavar="TEXT", help="what the model reads; by default held-out text of its data"
    )
    parser.add_argument("--data", metavar="DIR", type=arguments.path, help="prepared data to read")
    parser.add_argument(
        "--rows", metavar="N", type=arguments.count, default=4, help="windows of data (default: 4)"
    )


def run(args: argparse.Namespace) -> None:
    """Write the report and say where."""
    from depth_memory import inspect
    from depth_memory.inspect import figure
    from depth_memory.inspect.report import NAMES

    outputs.check_directory("--out", args.out, NAMES)
    figure.require()
    loaded = loading.load(args.model, tokenizer=args.tokenizer, device=args.device)
    ids = _ids(loaded, args)
    title = f"{args.model}: {loaded.model.config.stream['name']}, {ids.numel()} tokens"
    console.note(f"inspecting {loaded.path}")
    for path in inspect.report(loaded.model, ids, args.out, title):
        console.show(str(path))


def _ids(loaded: Loaded, args: argparse.Namespace) -> Tensor:
    """What the model shall read, [rows, length]."""
    if args.text is None:
        return _windows(loaded, args.data, args.rows)
    ids = loaded.encode(args.text)
    if ids.shape[1] > loaded.limit:
        allowed = f"at most the model's position limit {loaded.limit}"
        raise invalid("--text: tokens", ids.shape[1], allowed)
    return ids


def _windows(loaded: Loaded, directory: Path | None, rows: int) -> Tensor:
    """The first windows of the validation split."""
    import itertools

    import numpy as np
    import torch

    split = loading.open_split(loaded, directory, "validation")
    length = min(LENGTH, loaded.limit, split.tokens - 1)
    rows = min(rows, split.windows_of(length))
    windows = [w[:length] for w in itertools.islice(split.windows(length), rows)]
    whole = [window for window in windows if len(window) == length]
    return torch.from_numpy(np.stack(whole)).to(loaded.model.device)
