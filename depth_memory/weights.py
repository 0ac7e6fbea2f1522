"""Directories of safetensors, read and written one tensor at a time: memory holds no model.

The layout is that of transformers: one `model.safetensors`, or several shards with an index that
says which tensor lies in which. Pickle files are never read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from depth_memory.errors import UserError, invalid
from depth_memory.files import (
    damage,
    inventory,
    read_json,
    read_sealed,
    reason,
    sealed,
    write_durably,
)
from depth_memory.tensors import DTYPES, Part, bytes_of, header_of

SINGLE = "model.safetensors"
INDEX = "model.safetensors.index.json"
ADAPTER = "adapter_model.safetensors"
MANIFEST = "weights.json"
TEXTS = (
    "tokenizer.json",
    "tokenizer_config.json",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "merges.txt",
    "chat_template.jinja",
    "chat_template.json",
    "generation_config.json",
)
"""Text files beside the weights that go along as they are."""
FORMAT = 1


class Entry(NamedTuple):
    """A tensor on the disk."""

    file: str
    dtype: torch.dtype
    shape: tuple[int, ...]


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The tensors of a directory by name; `open_weights` makes one."""

    folder: Path
    entries: dict[str, Entry]

    @property
    def files(self) -> list[str]:
        """The names of the files that hold them."""
        return sorted({entry.file for entry in self.entries.values()})

    @property
    def size(self) -> int:
        """Bytes of all of them."""
        shapes = ((torch.Size(e.shape).numel(), e.dtype.itemsize) for e in self.entries.values())
        return sum(count * size for count, size in shapes)

    def read(self, name: str) -> Tensor:
        """One tensor, on the CPU.

        Raises:
            UserError: The file cannot be read.
        """
        path = self.folder / self.entries[name].file
        try:
            with safe_open(path, framework="pt") as file:
                return file.get_tensor(name)
        except (OSError, SafetensorError) as error:
            raise UserError(f"{path}: cannot be read: {reason(error)}") from error


def open_weights(folder: Path) -> Weights:
    """Read the headers of a directory's weights, and no tensor.

    Raises:
        UserError: There are none, a shard is missing or damaged, or a tensor has a dtype that a
            weight cannot have.
    """
    check_there(folder)
    placed = _index(folder / INDEX) if (folder / INDEX).exists() else None
    files = [SINGLE] if placed is None else sorted(set(placed.values()))
    found = {(file, name): entry for file in files for name, entry in _header(folder, file)}
    if placed is None:
        placed = {name: file for file, name in found}
    for name, file in placed.items():
        if (file, name) not in found:
            raise UserError(f"{folder / file}: {name} is missing, which {INDEX} places there")
    return Weights(folder=folder, entries={n: found[file, n] for n, file in placed.items()})


def count(folder: Path) -> int:
    """Elements of the weights in a directory, of whatever dtype, by their headers.

    Raises:
        UserError: As `open_weights`.
    """
    indexed = (folder / INDEX).exists()
    files = sorted(set(_index(folder / INDEX).values())) if indexed else [SINGLE]
    return sum(math.prod(shape) for file in files for _, shape in _stated(folder, file).values())


def check_there(folder: Path) -> None:
    """Refuse a directory without safetensors: what else it has may be a pickle, which can run code.

    Raises:
        UserError: The weights, or those of an adapter beside them, have none.
    """
    never = "pickled ones, such as *.bin, are never read"
    if not any((folder / name).is_file() for name in (INDEX, SINGLE)):
        raise UserError(f"{folder}: no weights; looked for {SINGLE} and {INDEX}; {never}")
    if (folder / "adapter_config.json").exists() and not (folder / ADAPTER).is_file():
        raise UserError(f"{folder}: no weights of its adapter; looked for {ADAPTER}; {never}")


def _index(path: Path) -> dict[str, str]:
    placed = read_json(path, "an index of weights").get("weight_map")
    if not isinstance(placed, dict):
        raise UserError(f"{path}: cannot be read: weight_map is no object")
    files = {str(file) for file in placed.values()}
    if any(Path(file).name != file for file in files):
        raise UserError(f"{path}: places weights outside its folder")
    return placed


def _stated(folder: Path, file: str) -> dict[str, tuple[str, tuple[int, ...]]]:
    """Dtype and shape of each tensor, as the header of a file has them."""
    path = folder / file
    if not path.is_file():
        raise UserError(f"{path}: missing, though {INDEX} names it")
    try:
        with safe_open(path, framework="pt") as opened:
            slices = {name: opened.get_slice(name) for name in opened.keys()}  # noqa: SIM118
            return {n: (s.get_dtype(), tuple(s.get_shape())) for n, s in slices.items()}
    except (OSError, SafetensorError) as error:
        raise UserError(f"{path}: damaged: {reason(error)}") from error


def _header(folder: Path, file: str) -> Iterator[tuple[str, Entry]]:
    for name, (dtype, shape) in _stated(folder, file).items():
        if dtype not in DTYPES:
            raise invalid(f"{folder / file}: dtype of {name}", dtype, ", ".join(DTYPES))
        yield name, Entry(file, DTYPES[dtype], shape)


def write_weights(
    folder: Path,
    parts: Sequence[Part],
    *,
    shard_bytes: int,
    on_progress: Callable[[int, int], None] | None = None,
) -> None:
    """Write tensors to shards of a new directory, one at a time.

    Args:
        folder: Exists, and has no weights yet.
        parts: What to write; a shard holds consecutive ones.
        shard_bytes: Upper bound of a shard, but for a tensor that is larger by itself.
        on_progress: Called after each tensor with the bytes written, and those of all.
    """
    shards = _sharded(parts, shard_bytes)
    total, done = sum(part.size for part in parts), 0
    placed = {}
    for number, shard in enumerate(shards, start=1):
        name = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        name = SINGLE if len(shards) == 1 else name
        # readers map a file into memory, where an element must lie at a multiple of its size
        shard = sorted(shard, key=lambda part: -part.dtype.itemsize)

        def blocks(shard: list[Part] = shard) -> Iterator[bytes | memoryview]:
            nonlocal done
            yield header_of(shard)
            for part in shard:
                yield bytes_of(part)
                done += part.size
                if on_progress is not None:
                    on_progress(done, total)

        write_durably(folder / name, blocks())
        placed |= {part.name: name for part in shard}
    if len(shards) > 1:
        index = {"metadata": {"total_size": total}, "weight_map": dict(sorted(placed.items()))}
        write_durably(folder / INDEX, [(json.dumps(index, indent=2) + "\n").encode()])


def _sharded(parts: Sequence[Part], limit: int) -> list[list[Part]]:
    shards: list[list[Part]] = [[]]
    size = 0
    for part in parts:
        if shards[-1] and size + part.size > limit:
            shards.append([])
            size = 0
        shards[-1].append(part)
        size += part.size
    return shards


def write_manifest(folder: Path, facts: dict[str, Any]) -> None:
    """Write `weights.json`: size and SHA-256 of every other file, `facts`, and a checksum."""
    files = sorted(p for p in folder.iterdir() if p.is_file() and p.name != MANIFEST)
    manifest = {"format": FORMAT, **facts, "files": inventory(files)}
    write_durably(folder / MANIFEST, [sealed(manifest).encode()])


def read_manifest(folder: Path) -> dict[str, Any] | None:
    """What `weights.json` says; None if there is none, as in a directory of transformers.

    Raises:
        UserError: It was altered, or written by a newer version.
    """
    if not (folder / MANIFEST).exists():
        return None
    problem, manifest = read_sealed(folder / MANIFEST)
    if problem is not None:
        raise UserError(f"{folder}: {problem}")
    if manifest["format"] > FORMAT:
        allowed = f"up to {FORMAT} (written by a newer depth-memory)"
        raise invalid(f"{folder / MANIFEST}: format", manifest["format"], allowed)
    return manifest


def verify(folder: Path) -> None:
    """Compare every byte of a model with `weights.json`, where there is one.

    Raises:
        UserError: A file is missing or was altered.
    """
    manifest = read_manifest(folder)
    problem = None if manifest is None else damage(folder, manifest["files"])
    if problem is not None:
        advice = f"bring it back, or remove {MANIFEST} if that was meant"
        raise UserError(f"{folder}: {problem}; {advice}")
