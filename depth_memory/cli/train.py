"""`depth-memory train`: a preset, another stream if wanted, and any field changed."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console
from depth_memory.errors import invalid

if TYPE_CHECKING:
    from depth_memory.train import Run

SUMMARY = "Train a model, or go on training it."
EXAMPLES = """\
depth-memory train debug
depth-memory train demo --stream preln --out runs/preln
depth-memory train demo --model.stream.key-dim 4 --optim.lr 2e-3 --steps 400
depth-memory train demo --print-config
depth-memory train --from smollm2-ldm demo --data.directory corpus --optim.stream-lr 3e-3
"""
NOTE = "Any field of the configuration is an option: depth-memory train PRESET --help lists them."


def add(commands: Any) -> None:
    """Add the command."""
    parser = arguments.add_command(
        commands,
        "train",
        run,
        summary=SUMMARY,
        examples=EXAMPLES,
        usage="depth-memory train PRESET [--stream NAME | --from DIR] [--FIELD VALUE ...]",
        parents=[_options()],
        add_help=False,
    )
    parser.description = f"{SUMMARY} {NOTE}"
    parser.add_argument(
        "preset",
        metavar="PRESET",
        help="where to start: one of depth-memory presets",
    )
    parser.add_argument("-h", "--help", action=_Help, nargs=0, help="show this, or every field")
    parser.set_defaults(takes_fields=True)


def run(args: argparse.Namespace) -> None:
    """Resolve the configuration, then print it or train."""
    resolved = resolve(args)
    if args.print_config:
        console.show_json(resolved.as_dict())
        return
    from depth_memory import train

    result = train.train(resolved, resume=args.resume)
    evaluation = result.evaluation
    if os.environ.get("RANK", "0") != "0":
        return  # one process of several speaks
    console.show(
        f"{result.model}: step {result.step}, validation loss {evaluation.loss:.4f} nats/token, "
        f"{evaluation.bits_per_byte:.4f} bits/byte"
    )


def resolve(args: argparse.Namespace) -> Run:
    """The run that the arguments describe, checked.

    Raises:
        UserError: An option is unknown, or the value of a field is out of range.
    """
    from depth_memory.cli import fields

    start = _start(args)
    given = _field_parser(args, start).parse_args(fields.normalised(args.fields))
    names = {field.name for field in fields.fields_of(start)}
    resolved = fields.override(start, {k: v for k, v in vars(given).items() if k in names})
    resolved.validate()
    return resolved


def _options() -> arguments.Parser:
    """What is not a field of the configuration."""
    parser = arguments.Parser(add_help=False)
    parser.add_argument("--stream", metavar="NAME", help="swap the stream, before other fields")
    parser.add_argument(
        "--from",
        metavar="DIR",
        type=arguments.path,
        dest="source",
        help="go on from a model with a stream, which depth-memory convert makes, or from a run",
    )
    parser.add_argument(
        "--resume",
        metavar="auto|never|always",
        default="auto",
        help="auto goes on if OUT holds checkpoints of this run; never wants an unused OUT; "
        "always wants a checkpoint (default: auto)",
    )
    parser.add_argument("--print-config", action="store_true", help="print it all and stop")
    return parser


def _start(args: argparse.Namespace) -> Run:
    from depth_memory import presets

    start = presets.get(args.preset)
    if args.source is not None:
        return _continued(start, args)
    return start if args.stream is None else presets.with_stream(start, args.stream)


def _continued(start: Run, args: argparse.Namespace) -> Run:
    from depth_memory import train
    from depth_memory.cli import loading

    run = train.continued(start, loading.locate(args.source, name="--from"))
    name = run.model.stream.name
    if args.stream not in (None, name):
        raise invalid("--stream", args.stream, f"{name}, as in {run.origin}, or convert to another")
    return run


def _field_parser(args: argparse.Namespace, start: Run) -> arguments.Parser:
    from depth_memory.cli import fields

    parser = arguments.Parser(
        prog=f"depth-memory train {args.preset}",
        usage=f"depth-memory train {args.preset} [--stream NAME | --from DIR] [--FIELD VALUE ...]",
        epilog=arguments.epilog(EXAMPLES),
        parents=[_options()],
    )
    fields.add_fields(parser, start)
    return parser


class _Help(argparse.Action):
    """The help of the command, or of a preset with all its fields. Final."""

    def __call__(
        self,
        parser: argparse.ArgumentParser,
        namespace: argparse.Namespace,
        values: Any,
        option_string: str | None = None,
    ) -> None:
        del values, option_string
        if getattr(namespace, "preset", None) is not None:
            parser = _field_parser(namespace, _start(namespace))
        parser.print_help()
        parser.exit()
