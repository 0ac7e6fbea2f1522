"""`depth-memory presets`: what there is, and what every stream costs in each."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console

if TYPE_CHECKING:
    from depth_memory.train import Run

EXAMPLES = """\
depth-memory presets
depth-memory presets demo --json
"""


def add(commands: Any) -> None:
    """Add the command."""
    parser = arguments.add_command(
        commands,
        "presets",
        run,
        summary="The presets, and what each stream costs in them.",
        examples=EXAMPLES,
    )
    parser.add_argument("names", metavar="PRESET", nargs="*", help="which ones; all if not given")
    parser.add_argument("--json", action="store_true", help="for programs to read")


def run(args: argparse.Namespace) -> None:
    """Show each preset with its table."""
    from depth_memory import presets

    runs = {name: presets.get(name) for name in args.names or presets.PRESETS}
    if args.json:
        console.show_json({name: _costs(run) for name, run in runs.items()})
        return
    for name, preset in runs.items():
        _show(name, preset)


def _show(name: str, run: Run) -> None:
    from depth_memory import presets

    model, costs = run.model, _costs(run)
    console.show(f"{name}: {presets.summary(name)}")
    console.show(
        f"{model.family} {model.depth} x {model.width}, stream {model.stream.name}, "
        f"{console.short(costs['parameters'])} parameters without it, "
        f"{console.short(costs['training_flops'])} FLOPs per token to train"
    )
    header = ("stream", "parameters", "FLOPs/token", "of backbone", "state bytes/token")
    console.show_table(
        header, [_row(stream, c, costs["training_flops"]) for stream, c in costs["streams"].items()]
    )
    console.show()


def _costs(run: Run) -> dict[str, Any]:
    """Counts of the backbone and of every stream; the preset's own one as the preset has it."""
    from dataclasses import asdict

    from depth_memory import presets, streams
    from depth_memory.presets import counts

    backbone = counts.count_backbone(run.model, vocab_size=_vocab_size(run), length=run.length)
    width, sites = run.model.width, 2 * run.model.depth
    costs = {
        name: counts.count_stream(
            presets.with_stream(run, name).model.stream, width=width, sites=sites
        )
        for name in streams.STREAMS
    }
    return {**asdict(backbone), "streams": {name: asdict(cost) for name, cost in costs.items()}}


def _vocab_size(run: Run) -> int:
    from depth_memory import data
    from depth_memory.data.corpus import VOCAB_SIZE

    if run.data.directory is None:
        return VOCAB_SIZE
    return data.read_manifest(run.data.directory).vocab_size


def _row(name: str, cost: dict[str, int], backbone: int) -> tuple[str, ...]:
    return (
        name,
        str(cost["parameters"]),
        console.short(cost["training_flops"]),
        f"{cost['training_flops'] / backbone:.1%}",
        str(cost["state_bytes"]),
    )
