"""`depth-memory evaluate`: the loss of models on held-out text, or their scores on benchmarks."""

from __future__ import annotations

import argparse
import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

from depth_memory.cli import arguments, benchmarks, console, loading, outputs
from depth_memory.errors import choose, invalid, within
from depth_memory.files import dumps, replaced_file

EXAMPLES = """\
depth-memory evaluate runs/ldm runs/preln
depth-memory evaluate runs/ldm --data corpus --length 512 --json
depth-memory evaluate runs/ldm runs/preln --figure comparison.png
depth-memory evaluate runs/ldm runs/preln --tasks wikitext,lambada,piqa --out scores.json
depth-memory evaluate runs/ldm --tasks all --task-data benchmarks --batch 16 --limit 500
"""
SPLITS = ("train", "validation")
LOSS_OPTIONS = {"data": None, "split": "validation", "rows": 8, "by": "windows", "windows": None}
BENCHMARK_OPTIONS = {"task_data": None, "limit": None, "batch": 1}
"""Name -> default, which says that an option was not given."""
HEADER = ("model", "stream", "parameters", "nats/token", "perplexity", "bits/byte", "tokens")


def add(commands: Any) -> None:
    """Add the command."""
    parser = arguments.add_command(
        commands,
        "evaluate",
        run,
        summary="Loss on held-out text, or scores on benchmarks, of one or several models.",
        examples=EXAMPLES,
    )
    loading.add_model(parser, nargs="+")
    parser.add_argument(
        "--length",
        metavar="N",
        type=arguments.count,
        help="tokens per window, each without context; by default as in the model's run, else 256. "
        "For benchmarks the longest context; by default all positions the model knows",
    )
    parser.add_argument(
        "--dtype",
        default="auto",
        help="of the weights: auto (default, as saved), float32, bfloat16 or float16",
    )
    parser.add_argument("--json", action="store_true", help="for programs to read")
    parser.add_argument(
        "--out", metavar="FILE", type=arguments.path, help="also write the results as JSON"
    )
    _add_loss(parser)
    _add_benchmarks(parser)


def run(args: argparse.Namespace) -> None:
    """Evaluate every model, then show and write it all; nothing is shown if one fails."""
    from depth_memory.loading import DTYPES

    choose("--split", args.split, SPLITS)
    choose("--by", args.by, ("windows", "documents"))
    choose("--dtype", args.dtype, DTYPES)
    _check_used(args)
    if args.out is not None:
        outputs.check_file("--out", args.out)
    figure = None if args.figure is None else _figure(args)
    if args.tasks is None:
        results = [_evaluated(path, args) for path in args.model]
    else:
        results = benchmarks.run(args, lambda path: _evaluated(path, args))
    text = dumps(results)
    _show(results, args)
    if args.out is not None:
        args.out.parent.mkdir(parents=True, exist_ok=True)
        with replaced_file(args.out) as partial:
            partial.write_text(text, encoding="utf-8")
    if figure is not None:
        figure()


def _check_used(args: argparse.Namespace) -> None:
    """Refuse an option that would change nothing.

    Raises:
        UserError: One of benchmarks is given without any, or one of the loss without the loss.
    """
    tasks = [] if args.tasks is None else benchmarks.parse(args.tasks)
    checks = [
        (BENCHMARK_OPTIONS, set(tasks) - {benchmarks.VALIDATION}, "with benchmarks in --tasks"),
        (LOSS_OPTIONS, not tasks or benchmarks.VALIDATION in tasks, "with validation in --tasks"),
    ]
    for defaults, used, allowed in checks:
        given = [name for name, default in defaults.items() if getattr(args, name) != default]
        if given and not used:
            option = f"--{given[0].replace('_', '-')}"
            raise invalid(option, str(getattr(args, given[0])), f"it {allowed}")


def _figure(args: argparse.Namespace) -> Callable[[], None]:
    """Draws the picture; whether it can be drawn is found out now."""
    from depth_memory.cli import curves

    outputs.check_file("--figure", args.figure)
    return functools.partial(curves.save, curves.figure(args.model, args.figure), args.figure)


def _add_loss(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("loss on held-out text (without --tasks)")
    group.add_argument(
        "--data",
        metavar="DIR",
        type=arguments.path,
        help="prepared data; by default what the model's run was trained on",
    )
    group.add_argument(
        "--split", default=LOSS_OPTIONS["split"], help="validation (default) or train"
    )
    group.add_argument(
        "--rows",
        metavar="N",
        type=arguments.count,
        default=LOSS_OPTIONS["rows"],
        help="at a time (default: 8)",
    )
    group.add_argument(
        "--by",
        default=LOSS_OPTIONS["by"],
        help="windows (default) over the documents one after the other, or documents: the first "
        "--length tokens of each, as DepthBench",
    )
    group.add_argument(
        "--windows",
        metavar="N",
        type=arguments.count,
        help="only the first N of them",
    )
    group.add_argument(
        "--figure",
        metavar="FILE",
        type=arguments.path,
        help="also draw the loss of the models' runs over their steps",
    )


def _add_benchmarks(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group(
        "benchmarks", "by lm-evaluation-harness, zero-shot; any causal model of transformers"
    )
    group.add_argument(
        "--tasks",
        metavar="NAMES",
        help="separated by commas: wikitext, lambada, piqa, arc_easy, arc_challenge, hellaswag, "
        "winogrande, openbookqa, siqa, all; also validation, the loss as above",
    )
    group.add_argument(
        "--task-data",
        metavar="DIR",
        type=arguments.path,
        help="where piqa.jsonl or piqa.parquet lie, for example; what is not there is "
        "downloaded from the hub",
    )
    group.add_argument(
        "--limit", metavar="N", type=arguments.count, help="only the first N documents of a task"
    )
    group.add_argument(
        "--batch",
        metavar="N",
        type=arguments.count,
        default=BENCHMARK_OPTIONS["batch"],
        help="at a time (default: 1)",
    )


def _show(results: list[dict[str, Any]], args: argparse.Namespace) -> None:
    if args.json:
        console.show_json(results)
    elif args.tasks is not None:
        benchmarks.show_table(results)
    else:
        console.show_table(HEADER, [_row(result) for result in results])


def _evaluated(path: Path, args: argparse.Namespace) -> dict[str, Any]:
    from depth_memory import train

    loaded = loading.load(path, args)
    split = loading.open_split(loaded, args.data, args.split)
    length = args.length or (loaded.run.length if loaded.run else min(256, loaded.limit))
    if length > loaded.limit:
        raise invalid("--length", length, f"at most the position limit {loaded.limit} of {path}")
    console.note(f"evaluating {path} on {split.directory} ({args.split})")
    with within(path):
        found = train.evaluate(
            loaded.model, split, length=length, rows=args.rows, windows=args.windows, by=args.by
        )
    return {
        "model": str(path),
        "weights": str(loaded.path),
        "stream": loaded.model.config.stream["name"],
        "parameters": sum(p.numel() for p in loaded.model.parameters()),
        "dtype": str(loaded.model.dtype).removeprefix("torch."),
        "loss": found.loss,
        "token_perplexity": found.token_perplexity,
        "bits_per_byte": found.bits_per_byte,
        "tokens": found.tokens,
        "data": str(split.directory),
        "split": args.split,
        "by": args.by,
        "length": length,
    }


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    return (
        result["model"],
        result["stream"],
        console.short(result["parameters"]),
        f"{result['loss']:.4f}",
        f"{result['token_perplexity']:.2f}",
        f"{result['bits_per_byte']:.4f}",
        console.short(result["tokens"]),
    )
