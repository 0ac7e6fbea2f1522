"""`depth-memory bench`: speed and memory of whole models and of single kernels."""

from __future__ import annotations

import argparse
import itertools
from dataclasses import asdict
from pathlib import Path
from typing import Any

from depth_memory.cli import arguments, bars, console
from depth_memory.errors import Range

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
OPS_EXAMPLES = """\
depth-memory bench ops
depth-memory bench ops --width 2048 4096 --key-dim 4 8 --window 5 --out ops.json
"""
OPS_NOTE = """\
Bytes are those of the tensors that a pass must read or write, each once; the share is of the
bandwidth of a copy in the same run. No pass finds its data in the cache.
"""
OPS_HEADER = (
    "pass", "tokens", "width", "key dim", "groups", "window", "MB", "us", "spread", "GB/s",
    "of copy", "error",
)  # fmt: skip
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
    _add_ops(parts)


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
    methods = [bench.parse_method(text) for text in dict.fromkeys(args.method)]
    if args.figure is not None:
        bars.check(args.figure)
    compiled = device.type == "cuda" if args.compile is None else args.compile
    plan = bench.Plan(rounds=args.rounds, seconds=args.seconds, compile=compiled, seed=args.seed)
    configuration = {"what": "models", "dtype": "bfloat16", "attention": "sdpa", **asdict(plan)}
    results = bench.Results(args.out, configuration=configuration, device=device, key=KEY)
    rows = bench.measure_models(
        cases, methods, plan, results, device=device, retry=args.retry, note=console.note
    )
    console.show_table(HEADER, map(_model_cells, rows))
    if args.figure is not None:
        bars.draw(rows, args.figure)
        console.show(f"figure: {args.figure}")
    console.show(f"rows: {args.out}")


def run_ops(args: argparse.Namespace) -> None:
    """Measure single passes and show the rows."""
    from depth_memory import bench
    from depth_memory.bench.ops import KEY
    from depth_memory.train.parallel import choose_device

    device = choose_device(args.device)
    sizes = [
        bench.Sizes(tokens=n, width=d, key_dim=k, groups=args.groups, window=w)
        for n, d, k, w in itertools.product(args.tokens, args.width, args.key_dim, args.window)
    ]
    bench.check_sizes(sizes)
    bench.check_device(device)
    plan = bench.Plan(rounds=args.rounds, repeats=args.repeats, seed=args.seed)
    configuration = {"what": "ops", "dtype": "bfloat16", **asdict(plan)}
    results = bench.Results(args.out, configuration=configuration, device=device, key=KEY)
    rows = bench.measure_ops(
        sizes, plan, results, device=device, retry=args.retry, note=console.note
    )
    console.show_table(OPS_HEADER, map(_ops_cells, rows))
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
    add(
        "--layers",
        metavar="N",
        type=arguments.Number(int, Range(1, 1024)),
        help="fewer layers at true width",
    )
    add("--checkpointing", action="store_true", help="keep only the inputs of sublayers")
    add(
        "--compile",
        action=argparse.BooleanOptionalAction,
        help="compile each layer (default: on a GPU)",
    )
    add(
        "--seconds",
        metavar="S",
        type=arguments.Number(float, Range(0.0, 3600.0)),
        default=0.5,
        help="of a timing, at least (default: 0.5)",
    )
    add("--figure", metavar="FILE", type=arguments.path, help="also draw the ratios to PreLN")
    _add_common(parser, "bench-model.json")


def _add_ops(parts: Any) -> None:
    summary = "The kernels' passes over D-sized vectors, against the bytes that they must move."
    parser = arguments.add_command(parts, "ops", run_ops, summary=summary, examples=OPS_EXAMPLES)
    parser.description = f"{summary}\n\n{OPS_NOTE}"
    numbers: dict[str, Any] = {"metavar": "N", "nargs": "+", "type": arguments.count}
    add = parser.add_argument
    add("--tokens", default=[16384], help="default: 16384", **numbers)
    add("--width", default=[2048], help="D (default: 2048)", **numbers)
    add("--key-dim", default=[8], help="rows of the memory (default: 8)", **numbers)
    add("--window", default=[8], help="writes of a window (default: 8)", **numbers)
    add("--groups", metavar="N", type=arguments.count, default=4, help="default: 4")
    add(
        "--repeats",
        metavar="N",
        type=arguments.count,
        default=20,
        help="runs, of which a timing is the median (default: 20)",
    )
    _add_common(parser, "bench-ops.json")


def _add_common(parser: argparse.ArgumentParser, out: str) -> None:
    add = parser.add_argument
    add("--rounds", metavar="N", type=arguments.count, default=7, help="timings (default: 7)")
    add("--seed", metavar="N", type=arguments.seed, default=0, help="of what is random")
    arguments.add_device(parser)
    add(
        "--out",
        metavar="FILE",
        type=arguments.path,
        default=Path(out),
        help=f"where the rows go, or are (default: {out})",
    )
    add("--retry", action="store_true", help="measure rows again that hold an error")


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


def _ops_cells(row: dict[str, Any]) -> tuple[str, ...]:
    sizes = (row[name] for name in ("tokens", "width", "key_dim", "groups", "window"))
    return (
        row["op"],
        *map(str, sizes),
        _number(row["bytes"], lambda value: f"{value / 1e6:.1f}"),
        _number(row["us"], "{:.1f}".format),
        _number(row["spread"], "{:.1%}".format),
        _number(row["gb_per_s"], "{:.0f}".format),
        _number(row["share_of_copy"], "{:.1%}".format),
        (row["error"] or "")[:SHOWN],
    )


def _number(value: float | None, form: Any) -> str:
    return "" if value is None else form(value)
