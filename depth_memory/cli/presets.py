"""`depth-memory presets`: what there is, and what every stream costs in each."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console

if TYPE_CHECKING:
    from depth_memory.train import Run

EXAMPLES = """\
depth-memory presets
depth-memory presets llama-400m
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
    parser.add_argument(
        "names",
        metavar="PRESET|GROUP",
        nargs="*",
        help="what to count the parameters and costs of; if not given, all are listed",
    )
    parser.add_argument("--json", action="store_true", help="for programs to read")


def run(args: argparse.Namespace) -> None:
    """List everything, or show each preset and group asked for with its table."""
    from depth_memory import presets
    from depth_memory.errors import choose

    known = [*presets.PRESETS, *presets.GROUPS]
    for name in args.names:
        choose("preset", name, known)
    if args.json:
        console.show_json(_counts(args.names) if args.names else _catalogue())
    elif args.names:
        for name in args.names:
            (_show_group if name in presets.GROUPS else _show)(name)
    else:
        _list()


def _catalogue() -> dict[str, dict[str, str]]:
    """Group -> name -> what it is for, without counting anything."""
    from depth_memory import presets

    groups = {name: group.names for name, group in presets.GROUPS.items()}
    groups["sweep"] = list(presets.FAMILIES)
    return {
        group: {name: presets.summary(name) for name in names} for group, names in groups.items()
    }


def _list() -> None:
    from depth_memory import presets

    for group, members in _catalogue().items():
        about = presets.GROUPS[group].about if group in presets.GROUPS else "families of runs"
        console.show(f"{group}: {about}")
        width = max(map(len, members))
        for name, text in members.items():
            console.show(f"  {name.ljust(width)}  {text}")
        console.show()


def _counts(names: list[str]) -> dict[str, Any]:
    from depth_memory import presets

    found: dict[str, Any] = {}
    for name in names:
        if name in presets.GROUPS:
            found |= {member: _size(member) for member in presets.GROUPS[name].names}
        else:
            found[name] = _costs(name)
    return found


def _show_group(group: str) -> None:
    from depth_memory import presets

    found = presets.GROUPS[group]
    console.show(f"{group}: {found.about}")
    header = ("preset", "shape", "head", "parameters", "of the stream", "lr", "steps", "tokens")
    console.show_table(header, [_size_row(name, _size(name)) for name in found.names])
    console.show()


def _size(name: str) -> dict[str, Any]:
    """Parameters and tokens of a preset."""
    from depth_memory import presets
    from depth_memory.presets import counts

    run = presets.get(name)
    model = run.model
    backbone = counts.count_backbone(model, vocab_size=_vocab_size(name), length=run.length)
    stream = counts.count_parameters(model.stream, width=model.width, sites=2 * model.depth)
    return {
        "depth": model.depth,
        "width": model.width,
        "head_size": model.head_size,
        "parameters": backbone.parameters + stream,
        "stream_parameters": stream,
        "lr": run.optim.lr,
        "steps": run.steps,
        "tokens": run.steps * run.rows * run.length,
    }


def _size_row(name: str, size: dict[str, Any]) -> tuple[str, ...]:
    return (
        name,
        f"{size['depth']} x {size['width']}",
        str(size["head_size"]),
        str(size["parameters"]),
        str(size["stream_parameters"]),
        f"{size['lr']:g}",
        str(size["steps"]),
        console.short(size["tokens"]),
    )


def _show(name: str) -> None:
    from depth_memory import presets

    run, costs = presets.get(name), _costs(name)
    model = run.model
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


def _costs(name: str) -> dict[str, Any]:
    """Counts of the backbone and of every stream; the preset's own one as the preset has it."""
    from dataclasses import asdict

    from depth_memory import presets, streams
    from depth_memory.presets import counts

    run: Run = presets.get(name)
    backbone = counts.count_backbone(run.model, vocab_size=_vocab_size(name), length=run.length)
    width, sites = run.model.width, 2 * run.model.depth
    costs = {
        stream: counts.count_stream(
            presets.with_stream(run, stream).model.stream, width=width, sites=sites
        )
        for stream in streams.STREAMS
    }
    return {**asdict(backbone), "streams": {name: asdict(cost) for name, cost in costs.items()}}


def _vocab_size(name: str) -> int:
    """That of the data if it is there, else what the preset is meant for."""
    from depth_memory import data, presets

    directory = presets.get(name).data.directory
    if directory is None or not directory.exists():
        return presets.vocab_size(name)
    return data.read_manifest(directory).vocab_size


def _row(name: str, cost: dict[str, int], backbone: int) -> tuple[str, ...]:
    return (
        name,
        str(cost["parameters"]),
        console.short(cost["training_flops"]),
        f"{cost['training_flops'] / backbone:.1%}",
        str(cost["state_bytes"]),
    )
