"""`depth-memory bench`: speed and memory of whole models and of single kernels."""

from __future__ import annotations

import argparse
from dataclasses import asdict
from typing import Any

from depth_memory.cli import arguments, console

EXAMPLES = """\
depth-memory bench model --backbone tiny --method preln ldm block_attnres
depth-memory bench model --backbone 1.7b 8b --method ldm:key_dim=4 mhc --scope trunk model
depth-memory bench ops --width 4096
"""
MODEL_EXAMPLES = """\
depth-memory bench model --backbone tiny --method preln ldm:key_dim=4,window=4 mhc
depth-memory bench model --backbone 1.7b --method preln preln_transformers ldm ldm:impl=reference
depth-memory bench model --backbone 14b --layers 20 --mode train --scope model --out 14b.json
depth-memory bench model --backbone 8b --mode decode --context 1024 32768 --batch 1 8 64
"""
MODEL_NOTE = """\
Every method has the same backbone, parameter by parameter, and is timed in turn with PreLN; the
ratio is to the timings of PreLN around it. What fails becomes a row that says so. The same command
goes on where it was stopped: rows that FILE holds are not measured again.
"""
SHOWN = 60
"""Characters of an error in the table; the file has more."""
HEADER = (
    "backbone", "method", "by", "mode", "scope", "tokens", "layers", "tokens/s", "of preln",
    "spread", "GiB", "ms", "host ms", "error",
)  # fmt: skip


def add(commands: Any) -> None:
    """Add the command and its parts."""
    parser = arguments.add_command(
        commands, "bench", run_model, summary="Measure speed and memory.", examples=EXAMPLES
    )
    parts = parser.add_subparsers(metavar="WHAT", dest="what", required=True)
    _add_model(parts)


def run_model(args: argparse.Namespace) -> None:
    """Measure models and show the rows."""
    from depth_memory import bench
    from depth_memory.bench.model import KEY
    from depth_memory.train.parallel import choose_device

    device = choose_device(args.device)
    cases = list(
        bench.expand(
            args.backbone,
            modes=args.mode,
            scopes=args.scope,
            sequences=args.sequence,
            contexts=args.context,
            batches=args.batch,
            layers=args.layers,
            checkpointing=args.checkpointing,
        )
    )
    methods = [bench.parse_method(text) for text in args.method]
    compiled = device.type == "cuda" if args.compile is None else args.compile
    plan = bench.Plan(rounds=args.rounds, seconds=args.seconds, compile=compiled, seed=args.seed)
    configuration = {"what": "models", "dtype": "bfloat16", "attention": "sdpa", **asdict(plan)}
    results = bench.Results(args.out, configuration=configuration, device=device, key=KEY)
    rows = bench.measure_models(
        cases, methods, plan, results, device=device, retry=args.retry, note=console.note
    )
    console.show_table(HEADER, map(_model_cells, rows))
    console.show(f"rows: {args.out}")


def _add_model(parts: Any) -> None:
    summary = "Training steps, prefill and decoding: methods side by side."
    parser = arguments.add_command(
        parts, "model", run_model, summary=summary, examples=MODEL_EXAMPLES
    )
    parser.description = f"{summary}\n\n{MODEL_NOTE}"
    add = parser.add_argument
    several: dict[str, Any] = {"nargs": "+"}
    numbers: dict[str, Any] = {"metavar": "N", "nargs": "+", "type": arguments.count}
    add("--backbone", metavar="NAME", default=["tiny"], help="tiny, 1.7b, 4b, 8b, 14b", **several)
    add(
        "--method",
        metavar="NAME",
        default=["preln", "ldm"],
        help="a stream, with fields as in ldm:key_dim=4,window=4; or preln_transformers, the "
        "original (default: preln ldm)",
        **several,
    )
    add("--mode", metavar="NAME", default=["train"], help="train, prefill, decode", **several)
    add(
        "--scope",
        metavar="NAME",
        default=["trunk"],
        help="trunk: the layers alone; model: with embedding, head and loss",
        **several,
    )
    add("--sequence", default=[], help="tokens (default: 4096; tiny: 32)", **numbers)
    add("--batch", default=[], help="sequences (default: 4; tiny: 2)", **numbers)
    add("--context", default=[1024], help="tokens cached before a decoding step", **numbers)
    add("--layers", metavar="N", type=arguments.count, help="fewer layers at true width")
    add("--checkpointing", action="store_true", help="keep only the inputs of sublayers")
    _add_plan(parser, "bench-model.json")
    add("--retry", action="store_true", help="measure rows again that hold an error")


def _add_plan(parser: argparse.ArgumentParser, out: str) -> None:
    add = parser.add_argument
    add(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="compile each layer (default: on a GPU)",
    )
    add("--rounds", metavar="N", type=arguments.count, default=7, help="timings (default: 7)")
    add(
        "--seconds",
        metavar="S",
        type=arguments.nonnegative,
        default=0.5,
        help="of a timing, at least (default: 0.5)",
    )
    add("--seed", metavar="N", type=arguments.natural, default=0, help="of inputs and parameters")
    arguments.add_device(parser)
    add("--out", metavar="FILE", type=arguments.path, default=out, help=f"default: {out}")


def _model_cells(row: dict[str, Any]) -> tuple[str, ...]:
    decodes = row["mode"] == "decode"
    return (
        row["backbone"],
        row["method"],
        row["implementation"] or "",
        row["mode"],
        row["scope"],
        f"{row['batch']} @ {row['context']}" if decodes else f"{row['batch']} x {row['sequence']}",
        str(row["layers"]),
        _number(row["tokens_per_s"], console.short),
        _number(row["ratio_to_preln"], "{:.3f}".format),
        _number(row["spread"], "{:.1%}".format),
        _number(row["peak_gib"], "{:.2f}".format),
        _number(row["ms"], "{:.2f}".format),
        _number(row["host_ms"], "{:.2f}".format),
        (row["error"] or "")[:SHOWN],
    )


def _number(value: float | None, form: Any) -> str:
    return "" if value is None else form(value)
