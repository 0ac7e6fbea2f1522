"""`depth-memory evaluate --tasks`: models side by side on benchmarks."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console, loading
from depth_memory.errors import invalid, within

if TYPE_CHECKING:
    from depth_memory import evals

VALIDATION = "validation"
"""The name among tasks of the loss on held-out text, which needs no harness."""
ALL = "all"
SECONDS_BETWEEN_LINES = 10.0

Result = dict[str, Any]


def parse(text: str) -> list[str]:
    """Our names of the tasks in `text`, separated by commas; `all` is every benchmark.

    Raises:
        UserError: An unknown one, or none.
    """
    from depth_memory import evals

    given = [name.strip() for name in text.split(",") if name.strip()]
    known = {name: task.name for task in evals.TASKS.values() for name in task.names}
    known[VALIDATION] = VALIDATION
    names = [n for name in given for n in (evals.TASKS if name == ALL else [name])]
    unknown = [name for name in names if name not in known]
    if unknown or not names:
        got = unknown[0] if unknown else text
        raise invalid("--tasks", got, ", ".join((VALIDATION, ALL, *evals.TASKS)))
    return list(dict.fromkeys(known[name] for name in names))


def run(args: argparse.Namespace, validate: Callable[[Path], Result]) -> list[Result]:
    """Score every model on every task.

    Args:
        args: The command's arguments.
        validate: Gives the loss of a model on held-out text, as the command shows it.

    Returns:
        A result per model, for `show_table` and as JSON.

    Raises:
        UserError: Something is missing or does not fit, mostly found before the first score.
    """
    from depth_memory import evals

    names = parse(args.tasks)
    folders = [loading.locate(path) for path in args.model]
    benchmarks = [name for name in names if name != VALIDATION]
    tasks = _load_tasks(benchmarks, args) if benchmarks else []
    tokenizers = [evals.load_tokenizer(args.tokenizer or f) for f in folders if tasks]
    results = []
    for i, (path, folder) in enumerate(zip(args.model, folders, strict=True)):
        scores = _validated(validate(path)) if VALIDATION in names else {}
        described: Result = {}
        if tasks:
            model = loading.load_any(folder, args)
            described = _description(model, args)
            scores |= _benchmarked(path, model, tokenizers[i], tasks, args)
        ordered = {name: scores[name] for name in names}
        about = {"model": str(path), "weights": str(folder), **described}
        results.append({**about, "tasks": ordered, "versions": _versions()})
    return results


def show_table(results: Sequence[Result]) -> None:
    """Print a row per metric and a column per model, with standard errors."""
    header = ("task", "metric", "documents", *(result["model"] for result in results))
    rows = []
    for task, first in results[0]["tasks"].items():
        for metric in first["scores"]:
            cells = [_cell(result["tasks"][task]["scores"][metric]) for result in results]
            rows.append((task, metric, str(first["documents"] or ""), *cells))
    console.show_table(header, rows)


def _load_tasks(names: Sequence[str], args: argparse.Namespace) -> list[evals.LoadedTask]:
    from depth_memory import evals

    if args.task_data is None:
        console.note("getting the data of the tasks from the hub")
    with arguments.as_options({"task data": "--task-data", "tasks": "--tasks"}):
        tasks = evals.load_tasks(names, args.task_data, limit=args.limit)
    for loaded in tasks:
        console.note(f"{loaded.task.name}: {loaded.documents} documents of {loaded.source}")
    return tasks


def _benchmarked(
    path: Path,
    model: Any,
    tokenizer: Any,
    tasks: Sequence[evals.LoadedTask],
    args: argparse.Namespace,
) -> dict[str, Result]:
    """A model's result on each task."""
    from depth_memory import evals

    options = {"batch": args.batch, "length": args.length, "limit": args.limit}
    results: dict[str, Result] = {}
    for loaded in tasks:
        began, step = time.monotonic(), _progress(f"{path}: {loaded.task.name}")
        with within(path), arguments.as_options({"length": "--length"}):
            found = evals.evaluate(model, tokenizer, [loaded], **options, step=step)
        results[loaded.task.name] = _as_dict(loaded, found[loaded.task.name])
        _report(path, loaded, results[loaded.task.name], time.monotonic() - began)
    return results


def _description(model: Any, args: argparse.Namespace) -> Result:
    from depth_memory.train import provenance

    stream = getattr(model.config, "stream", None)
    return {
        "architecture": type(model).__name__,
        "stream": stream["name"] if stream else None,
        "parameters": sum(p.numel() for p in model.parameters()),
        "dtype": str(model.dtype).removeprefix("torch."),
        "device": provenance.device_name(model.device),
        "batch": args.batch,
        "context": args.length or getattr(model.config, "max_position_embeddings", None),
    }


def _as_dict(loaded: evals.LoadedTask, found: evals.TaskResult) -> Result:
    return {
        "harness_task": loaded.task.harness,
        "version": found.version,
        "data": loaded.source,
        "sha256": loaded.sha256,
        "documents": found.documents,
        "truncated": found.truncated,
        "scores": {
            metric: {"value": score.value, "stderr": score.stderr}
            for metric, score in found.scores.items()
        },
    }


def _validated(result: Result) -> dict[str, Result]:
    """The loss on held-out text in the form of a task."""
    names = ("loss", "token_perplexity", "bits_per_byte")
    scores = {name: {"value": result[name], "stderr": None} for name in names}
    about = {name: result[name] for name in ("data", "split", "length", "tokens")}
    return {VALIDATION: {**about, "documents": None, "scores": scores}}


def _versions() -> Mapping[str, str | None]:
    from depth_memory.train import provenance

    return {**provenance.versions("lm_eval", "datasets"), "commit": provenance.commit()}


def _progress(title: str) -> Callable[[Any, int], None]:
    """Says every few seconds how many sequences are done."""
    done, began = 0, time.monotonic()
    last = began

    def step(_: Any, rows: int) -> None:
        nonlocal done, last
        done += rows
        now = time.monotonic()
        if now - last >= SECONDS_BETWEEN_LINES:
            last = now
            console.note(f"{title}: {done} sequences, {now - began:.0f} s")

    return step


def _report(path: Path, loaded: evals.LoadedTask, result: Result, seconds: float) -> None:
    cells = ", ".join(f"{name} {_cell(score)}" for name, score in result["scores"].items())
    console.note(f"{path}: {loaded.task.name}: {cells} ({seconds:.0f} s)")
    if result["truncated"]:
        console.note(f"{path}: {loaded.task.name}: {result['truncated']} contexts were cut short")


def _cell(score: Result) -> str:
    value, error = score["value"], score["stderr"]
    digits = 2 if value >= 10 else 4
    return f"{value:.{digits}f}" + ("" if error is None else f" ± {error:.{digits}f}")
