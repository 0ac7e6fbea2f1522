"""`depth-memory convert`: a pretrained Llama or Qwen3 with a stream, or the plain model again."""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console
from depth_memory.errors import UserError, choose, invalid

if TYPE_CHECKING:
    from depth_memory.convert import Conversion

SUMMARY = "Give a pretrained Llama or Qwen3 a stream without changing what it computes."
NOTE = "Any field of the stream is an option: --stream.key-dim 4. A wrong one lists what there is."
EXAMPLES = """\
depth-memory convert HuggingFaceTB/SmolLM2-135M --stream ldm --out smollm2-ldm
depth-memory convert Qwen3-14B --stream ldm --stream.key-dim 4 --out qwen3-ldm --no-check
depth-memory convert runs/preln --to transformers --out plain
"""
SECONDS_BETWEEN_NOTES = 2.0


def add(commands: Any) -> None:
    """Add the command."""
    parser = arguments.add_command(
        commands,
        "convert",
        run,
        summary=SUMMARY,
        examples=EXAMPLES,
        usage="depth-memory convert SOURCE (--stream NAME [--stream.FIELD VALUE ...] | "
        "--to transformers) --out DIR [OPTIONS]",
    )
    parser.description = f"{SUMMARY} {NOTE}"
    parser.set_defaults(takes_fields=True)
    add = parser.add_argument
    add(
        "source",
        metavar="SOURCE",
        help="a directory of transformers or a run with stream preln, or owner/name of the hub",
    )
    add("--out", metavar="DIR", type=arguments.path, required=True, help="the directory to create")
    add("--stream", metavar="NAME", help="what the model gets")
    add("--to", metavar="transformers", help="instead: a plain model from one with stream preln")
    add("--dtype", metavar="NAME", help="float32, bfloat16 or float16; by default as it is")
    add(
        "--check",
        action=argparse.BooleanOptionalAction,
        help="compare the logits before and after; by default if the model fits into memory",
    )
    add("--force", action="store_true", help="also a stream that cannot keep the function")
    add("--seed", metavar="N", type=arguments.seed, default=0, help="of the new parameters")


def run(args: argparse.Namespace) -> None:
    """Convert, and say what came out."""
    if (args.stream is None) == (args.to is None):
        got = "neither" if args.stream is None else "both"
        raise invalid("--stream, --to", got, "one of the two")
    source = _located(args.source)
    options: dict[str, Any] = {"dtype": args.dtype, "check": args.check, "on_progress": _progress()}
    with arguments.as_options({"out": "--out", "dtype": "--dtype"}):
        _show(_converted(source, args, options))


def _converted(source: str | Path, args: argparse.Namespace, options: dict[str, Any]) -> Conversion:
    if args.to is None:
        stream = _stream(args)
        from depth_memory.convert import convert

        return convert(source, args.out, stream=stream, force=args.force, seed=args.seed, **options)
    choose("--to", args.to, ("transformers",))
    if args.fields:
        raise arguments.unknown(args.fields[0], "depth-memory convert")
    from depth_memory.convert import to_transformers

    return to_transformers(source, args.out, **options)


def _located(source: str) -> str | Path:
    """The model that a directory of a run means; whatever else is given as it is."""
    from depth_memory.cli import loading

    return loading.locate(Path(source)) if os.path.isdir(source) else source


def _stream(args: argparse.Namespace) -> Any:
    """The stream that `--stream` and `--stream.FIELD` describe."""
    from depth_memory import streams
    from depth_memory.cli import fields

    choose("--stream", args.stream, streams.STREAMS)
    start = streams.resolve({"name": args.stream})
    parser = arguments.Parser(prog=f"depth-memory convert SOURCE --stream {args.stream}")
    fields.add_fields(parser, start, "stream.")
    found, rest = parser.parse_known_args(fields.normalised(args.fields))
    hints = {field.name: field.hint for field in fields.fields_of(start, "stream.")}
    if rest:
        names = ", ".join(f"--{name.replace('_', '-')}" for name in hints)
        raise invalid("argument", rest[0], names or f"no field: {args.stream} has none")
    values = {
        name.removeprefix("stream."): fields.parsed(hints[name], text)
        for name, text in vars(found).items()
    }
    return streams.resolve({"name": args.stream, **values})


def _show(done: Conversion) -> None:
    new = console.short(done.new_parameters)
    console.show(
        f"{done.out}: {console.short(done.parameters)} parameters, {new} of them new; "
        + ("plain transformers" if done.stream is None else f"stream {done.stream}")
    )
    if done.comparison is None:
        console.note("logits not compared; --check does it, and needs the memory for the model")
    else:
        console.show(f"logits: {done.comparison}")
    if done.obstacle is not None:
        console.note(f"the function is not kept: {done.obstacle}")
    _look_at_tokenizer(done.out)


def _look_at_tokenizer(out: Path) -> None:
    """Say now what preparing data with the model's tokenizer would only say later."""
    from depth_memory.data import load_tokenizer

    try:
        load_tokenizer(out)
    except UserError as error:
        console.note(f"no data can be prepared for this model: {error}")


def _progress() -> Callable[[int, int], None]:
    """A note every few seconds."""
    last: float | None = None

    def update(done: int, total: int) -> None:
        nonlocal last
        now = time.monotonic()
        last = now if last is None else last
        if now - last > SECONDS_BETWEEN_NOTES:
            last = now
            console.note(f"{console.short(done)} of {console.short(total)} bytes written")

    return update
