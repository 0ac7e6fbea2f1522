"""`depth-memory evaluate`: the loss of one or several models on held-out text."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from depth_memory.cli import arguments, console, loading
from depth_memory.errors import invalid

EXAMPLES = """\
depth-memory evaluate runs/ldm runs/preln
depth-memory evaluate runs/ldm --data corpus --length 512 --json
depth-memory evaluate runs/ldm runs/preln --figure comparison.png
"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = arguments.add_command(
        commands,
        "evaluate",
        run,
        summary="Validation loss in nats per token and bits per byte, of one or several models.",
        examples=EXAMPLES,
    )
    loading.add_model(parser, nargs="+")
    parser.add_argument(
        "--data",
        metavar="DIR",
        type=arguments.path,
        help="prepared data; by default what the model's run was trained on",
    )
    parser.add_argument("--split", default="validation", help="validation (default) or train")
    parser.add_argument(
        "--length",
        metavar="N",
        type=arguments.count,
        help="tokens per window, each without context; by default as in the model's run, else 256",
    )
    parser.add_argument("--rows", metavar="N", type=arguments.count, default=8, help="at a time")
    parser.add_argument(
        "--windows", metavar="N", type=arguments.count, help="only the first N windows"
    )
    parser.add_argument("--json", action="store_true", help="for programs to read")
    parser.add_argument(
        "--figure",
        metavar="FILE",
        type=arguments.path,
        help="also draw the loss of the models' runs over their steps",
    )


def run(args: argparse.Namespace) -> None:
    """Evaluate every model, then show all of them; nothing is shown if one fails."""
    if args.figure is not None:
        from depth_memory.cli import curves

        curves.draw(args.model, args.figure)
    results = [_evaluated(path, args) for path in args.model]
    if args.json:
        console.show_json(results)
        return
    header = ("model", "stream", "parameters", "nats/token", "bits/byte", "tokens")
    console.show_table(header, [_row(result) for result in results])


def _evaluated(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    from depth_memory import train

    loaded = loading.load(path, tokenizer=args.tokenizer, device=args.device)
    split = loading.open_split(loaded, args.data, args.split)
    length = args.length or (loaded.run.length if loaded.run else min(256, loaded.limit))
    if length > loaded.limit:
        raise invalid("--length", length, f"at most the model's position limit {loaded.limit}")
    console.note(f"evaluating {path} on {split.directory} ({args.split})")
    found = train.evaluate(loaded.model, split, length=length, rows=args.rows, windows=args.windows)
    return {
        "model": str(path),
        "weights": str(loaded.path),
        "stream": loaded.model.config.stream["name"],
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "loss": found.loss,
        "bits_per_byte": found.bits_per_byte,
        "tokens": found.tokens,
        "data": str(split.directory),
        "split": args.split,
        "length": length,
    }


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    return (
        result["model"],
        result["stream"],
        console.short(result["parameters"]),
        f"{result['loss']:.4f}",
        f"{result['bits_per_byte']:.4f}",
        console.short(result["tokens"]),
    )
