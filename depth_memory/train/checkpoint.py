"""Checkpoints that are whole or not there, and a resume that is exact to the bit.

A checkpoint is a directory `step-00000100` with

- `model.safetensors`: the float32 weights, and `config.json` and `tokenizer.json` beside them, so
  that transformers can load the directory;
- `optimizer.safetensors`: moments and step of AdamW, momentum of Muon, by parameter;
- `state.json`: step, configuration, data, versions, number of records so far, size and SHA-256 of
  every file, and a checksum of all that.

It is written under another name, made durable, and renamed; older ones go only after that. Nothing
else needs saving: data order and randomness are functions of seed and step.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor, nn

from depth_memory.errors import UserError, invalid
from depth_memory.files import damage, inventory, misfit, read_sealed, reason, sealed
from depth_memory.tensors import Part, save_file
from depth_memory.train import files, parallel

FORMAT = 1
MODEL = "model.safetensors"
OPTIMIZER = "optimizer.safetensors"
STATE = "state.json"
NAME = re.compile(r"step-\d{8,}")
MOMENTS = ("exp_avg", "exp_avg_sq", "momentum_buffer", "step")


@dataclass(frozen=True, kw_only=True)
class Found:
    """The newest usable checkpoint."""

    path: Path
    manifest: dict[str, Any]
    skipped: tuple[str, ...]
    """One sentence for each newer one that is damaged: which, and why."""


def collect(
    named: Mapping[str, nn.Parameter], optimizer: torch.optim.Optimizer
) -> tuple[list[Part], list[Part]]:
    """Weights and optimiser state, to be gathered one by one: every process must load them all."""
    weights = [_part(name, p) for name, p in named.items()]
    moments = [
        _part(f"{name}.{key}", optimizer.state[p][key])
        for name, p in named.items()
        for key in MOMENTS
        if key in optimizer.state.get(p, ())
    ]
    return weights, moments


def _part(name: str, tensor: Tensor) -> Part:
    return Part(name, tensor.dtype, tuple(tensor.shape), partial(parallel.full, tensor))


def save(
    root: Path,
    step: int,
    *,
    weights: Sequence[Part],
    moments: Sequence[Part],
    texts: Mapping[str, str],
    facts: Mapping[str, Any],
    keep: int,
) -> Path:
    """Write the checkpoint of `step`, then remove all but the newest `keep`.

    Args:
        root: Directory of the run's checkpoints.
        step: Number of updates behind these weights.
        weights: What to write, loaded one at a time.
        moments: The same, after the weights.
        texts: Further files: name to content.
        facts: What `state.json` says beside step and files: configuration, data, versions, records.
        keep: How many stay, this one included.

    Returns:
        The checkpoint's directory.

    Raises:
        UserError: It could not be written; the older ones are untouched.
    """
    path = root / f"step-{step:08d}"
    with _explained(step, root), files.replaced_directory(path) as folder:
        save_file(weights, folder / MODEL)
        save_file(moments, folder / OPTIMIZER)
        for name, text in texts.items():
            (folder / name).write_text(text, encoding="utf-8")
        written = inventory(sorted(folder.iterdir()))
        manifest = {"format": FORMAT, "step": step, **facts, "files": written}
        (folder / STATE).write_text(sealed(manifest), encoding="utf-8")
    for old in listed(root)[keep:]:
        files.remove_directory(old)
    return path


def listed(root: Path) -> list[Path]:
    """The checkpoints in `root`, whole or not, newest first; none if `root` is not there.

    Raises:
        UserError: `root` cannot be listed. What cannot be seen is not taken for what is not there.
    """
    try:
        found = [path for path in root.iterdir() if NAME.fullmatch(path.name)]
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{root}: cannot be listed: {reason(error)}") from error
    return sorted(found, key=step_of, reverse=True)


def step_of(path: Path) -> int:
    """The number of updates behind a checkpoint, by its name."""
    return int(path.name.removeprefix("step-"))


def newest(root: Path) -> Found | None:
    """The newest checkpoint whose every byte is as it was written; None if there is none at all.

    Raises:
        UserError: There are checkpoints, and all are damaged; or one is of a newer format.
    """
    found, skipped = search(root)
    if found is None and skipped:
        advice = "bring one back, or begin again in a new directory"
        raise UserError(f"{root}: no usable checkpoint; {'; '.join(skipped)}; {advice}")
    return found


def search(root: Path, *, after: int = -1) -> tuple[Found | None, tuple[str, ...]]:
    """The newest usable checkpoint of a step above `after`, and the damaged ones passed over.

    Raises:
        UserError: One is of a newer format, or `root` cannot be listed.
    """
    skipped: list[str] = []
    for path in listed(root):
        if step_of(path) <= after:
            break
        problem, manifest = examine(path)
        if problem is None:
            return Found(path=path, manifest=manifest, skipped=tuple(skipped)), tuple(skipped)
        skipped.append(f"{path.name}: {problem}")
    return None, tuple(skipped)


def set_aside(root: Path, good: Path) -> None:
    """Rename the checkpoints newer than `good`, which are damaged: they count no more."""
    for path in listed(root):
        if step_of(path) > step_of(good):
            files.remove_directory(root / f"damaged-{path.name}")
            path.rename(root / f"damaged-{path.name}")


def restore(
    path: Path,
    named: Mapping[str, nn.Parameter],
    optimizer: torch.optim.Optimizer,
    world: parallel.World,
) -> None:
    """Read weights and optimiser state in place, plain or sharded; the main process reads."""
    with _reader(path / MODEL, world) as read:
        for name, p in named.items():
            parallel.fill_(p, read(name, p))
    stored = world.do(lambda: _names(path / OPTIMIZER))
    with _reader(path / OPTIMIZER, world) as read:
        for name, p in named.items():
            keys = [key for key in MOMENTS if f"{name}.{key}" in stored]
            if keys:
                optimizer.state[p] = {key: _moment(name, key, p, read, world) for key in keys}


def _moment(name: str, key: str, p: nn.Parameter, read: Any, world: parallel.World) -> Tensor:
    if key == "step":
        count = torch.zeros((), dtype=torch.float32, device=p.device)
        return count.copy_(torch.tensor(world.do(lambda: read(f"{name}.step", count).item())))
    moment = torch.zeros_like(p, requires_grad=False)
    parallel.fill_(moment, read(f"{name}.{key}", p))
    return moment


@contextmanager
def _reader(path: Path, world: parallel.World) -> Generator[Any]:
    """A function from a name and a like-shaped tensor to the stored tensor.

    Processes other than the main one get an uninitialised one, to receive into.
    """
    if not world.main:
        yield lambda name, like: torch.empty(like.shape)
        return
    with safe_open(path, framework="pt") as file:
        yield lambda name, like: file.get_tensor(name)


def _names(path: Path) -> list[str]:
    with safe_open(path, framework="pt") as file:
        return list(file.keys())


def examine(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Why a checkpoint cannot be used, or None, and what it says of itself."""
    problem, manifest = read_sealed(path / STATE)
    if problem is not None:
        return problem, {}
    if manifest["format"] > FORMAT:
        allowed = f"up to {FORMAT} (written by a newer depth-memory)"
        raise invalid(f"{path / STATE}: format", manifest["format"], allowed)
    broken = misfit(manifest, {"step": int, "config": dict, "data": dict})
    broken = broken or misfit(manifest["files"], {MODEL: dict, OPTIMIZER: dict})
    if broken is not None:
        return f"{STATE} has no valid {broken}", {}
    if NAME.fullmatch(path.name) and manifest["step"] != step_of(path):
        return f"{STATE} is that of step {manifest['step']}", {}
    return damage(path, manifest["files"]), manifest


@contextmanager
def _explained(step: int, root: Path) -> Generator[None]:
    """Failures of the disk as one line that names the last good checkpoint."""
    try:
        yield
    except (OSError, SafetensorError, UserError) as error:
        older = listed(root)
        last = f"last good checkpoint: {older[0]}" if older else "there is no earlier one"
        raise UserError(f"checkpoint of step {step} not written ({error}); {last}") from error
