"""`depth-memory sweep`: many runs over the devices at hand, restartable at any point."""

from __future__ import annotations

import argparse
import fnmatch
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console, curves
from depth_memory.errors import Range, UserError, invalid

if TYPE_CHECKING:
    from depth_memory.sweep import Outcome, Sweep

EXAMPLES = """\
depth-memory sweep rates-debug --jobs 2
depth-memory sweep rates-400m --list
depth-memory sweep study.json --out sweeps/study --set steps=1000
"""
NOTE = """\
FILE holds a description in JSON: a preset, fields to set, and axes to combine. --print shows one.
The same command goes on where a sweep was stopped or killed; finished runs are not repeated.
"""
FAILED = 1
HEADER = ("run", "parameters", "nats/token", "bits/byte", "tokens/s", "first step", "status")


def add(commands: Any) -> None:
    """Add the command."""
    summary = "Run a list of runs over the GPUs at hand, or go on with it."
    parser = arguments.add_command(commands, "sweep", run, summary=summary, examples=EXAMPLES)
    parser.description = f"{summary}\n\n{NOTE}"
    parser.add_argument("source", metavar="FILE|FAMILY", help="what to run")
    parser.add_argument("--out", metavar="DIR", type=arguments.path, help="default: sweeps/NAME")
    parser.add_argument(
        "--set",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="a field of every run, as in --set steps=100; may be repeated",
    )
    parser.add_argument("--only", metavar="PATTERN", help="runs with such names, as in 'ldm-*'")
    parser.add_argument(
        "--jobs",
        metavar="N",
        type=arguments.Number(int, Range(1, 1024)),
        help="processes at once (default: one for each GPU, or one on the CPU); more share GPUs",
    )
    arguments.add_device(parser)
    parser.add_argument("--list", action="store_true", help="show the runs and stop")
    parser.add_argument("--print", action="store_true", help="show the description and stop")
    parser.add_argument("--json", action="store_true", help="for programs to read")


def run(args: argparse.Namespace) -> int:
    """Show what would run, or run it."""
    if not (args.print or args.list):
        _warm_up()
    from depth_memory import sweep as sweeps

    if args.print:
        console.show_json(sweeps.describe(args.source))
        return 0
    settings = dict(map(_setting, args.set))
    sweep = sweeps.load(args.source, out=args.out, settings=settings)
    names = _chosen(sweep, args.only)
    if args.list:
        _list(sweep, names, args.json)
        return 0
    if os.environ.get("WORLD_SIZE", "1") != "1":
        allowed = "1: a sweep starts a process on each GPU itself"
        raise invalid("WORLD_SIZE", os.environ["WORLD_SIZE"], allowed)
    slots = sweeps.slots(args.device, args.jobs)
    outcome = sweeps.run_sweep(sweep, slots, names=names, note=console.note)
    return _report(args, sweep, names, outcome)


def _warm_up() -> None:
    """Let the server of the workers import the libraries while this process does the same."""
    from multiprocessing import forkserver

    forkserver.set_forkserver_preload(["depth_memory.sweep.worker"])
    forkserver.ensure_running()


def _setting(text: str) -> tuple[str, Any]:
    name, equals, value = text.partition("=")
    if not equals or not name:
        raise invalid("--set", text, "FIELD=VALUE")
    return name, arguments.json_value(value)


def _chosen(sweep: Sweep, pattern: str | None) -> list[str]:
    names = [name for name in sweep.runs if pattern is None or fnmatch.fnmatch(name, pattern)]
    if not names:
        raise invalid("--only", pattern, f"a pattern of names such as {next(iter(sweep.runs))}")
    return names


def _list(sweep: Sweep, names: list[str], as_json: bool) -> None:
    from depth_memory import sweep as sweeps

    if as_json:
        console.show_json({name: sweep.runs[name].as_dict() for name in names})
        return
    found = sweeps.statuses(sweep)
    rows = []
    for name in names:
        run = sweep.runs[name]
        shape = f"{run.model.depth} x {run.model.width}"
        stream, lr = run.model.stream.name, f"{run.optim.lr:g}"
        rows.append((name, stream, shape, lr, str(run.seed), str(run.steps), found[name]))
    console.show_table(("run", "stream", "shape", "lr", "seed", "steps", "status"), rows)


def _report(args: argparse.Namespace, sweep: Sweep, names: list[str], outcome: Outcome) -> int:
    """Table, curves, and how to go on."""
    from depth_memory.sweep import state

    results = list(outcome.results.values())
    if args.json:
        console.show_json(results)
    elif results:
        header = (
            "run",
            "parameters",
            "nats/token",
            "bits/byte",
            "tokens/s",
            "first step",
            "status",
        )
        console.show_table(header, map(_row, results))
    _draw(sweep, [r["run"] for r in results if r["status"] == state.FINISHED])
    console.note(f"results: {sweep.out / state.LINES}")
    failed = [result["run"] for result in results if result["status"] == state.FAILED]
    if outcome.signal is None and not failed:
        return 0
    over = len(results) - len(failed)
    what = "stopped" if outcome.signal is not None else f"failed: {', '.join(failed)}"
    console.note(f"{what}; {over} of {len(names)} runs are finished; go on with the same command")
    return FAILED if outcome.signal is None else 128 + outcome.signal


def _row(result: dict[str, Any]) -> tuple[str, ...]:
    if result["status"] != "finished":
        return (result["run"], "", "", "", "", "", result["status"])
    first = result["seconds_to_first_step"]
    return (
        result["run"],
        console.short(result["parameters"]),
        f"{result['validation_loss']:.4f}",
        f"{result['bits_per_byte']:.4f}",
        console.short(result["tokens_per_second"]),
        "" if first is None else f"{first:.1f} s",
        result["status"],
    )


def _draw(sweep: Sweep, names: list[str]) -> None:
    """The loss curves, where matplotlib is installed."""
    picture: Path = sweep.out / "curves.png"
    runs = [sweep.runs[name].out for name in names if sweep.runs[name].out.exists()]
    if not runs:
        return
    try:
        curves.draw(runs, picture)
    except UserError as error:
        console.note(f"no curves: {error}")
        return
    console.note(f"curves: {picture}")
