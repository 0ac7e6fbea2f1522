"""The conversion: headers first, then one tensor at a time, then the proof, then a rename."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from transformers import PreTrainedConfig
from transformers.initialization import no_init_weights

from depth_memory import __version__
from depth_memory.convert import plan
from depth_memory.convert.check import Comparison, compare, fits
from depth_memory.convert.source import COMPANIONS, Source, open_source
from depth_memory.errors import UserError, choose, invalid
from depth_memory.files import explained, staged_directory, sync
from depth_memory.models.config import DepthConfig
from depth_memory.models.families import FAMILIES
from depth_memory.models.registry import class_for, config_for
from depth_memory.tensors import Part
from depth_memory.weights import write_manifest, write_weights

DTYPES = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}
SHARD_BYTES = 5 * 10**9
Progress = Callable[[int, int], None]
"""Called with the bytes written so far, and those of all."""


@dataclass(frozen=True, kw_only=True)
class Conversion:
    """What a conversion did."""

    out: Path
    stream: str | None
    """Its name; None for a model of plain transformers."""
    parameters: int
    """Of the converted model."""
    new_parameters: int
    """Those of them that the source does not have."""
    comparison: Comparison | None
    """Of the logits before and after; None if it was left out."""
    obstacle: str | None
    """Why the stream cannot keep the function, if it cannot and was wanted all the same."""


def convert(
    source: str | Path,
    out: Path,
    *,
    stream: Any,
    dtype: str | None = None,
    check: bool | None = None,
    force: bool = False,
    seed: int = 0,
    shard_bytes: int = SHARD_BYTES,
    on_progress: Progress | None = None,
) -> Conversion:
    """Give a saved Llama or Qwen3 a stream that keeps its function, in a new directory.

    The directory is one of transformers, with the tokenizer's files and `weights.json`, the sizes
    and SHA-256 of the weights. It appears when it is complete. Weights are copied to the bit unless
    `dtype` says otherwise, one at a time: memory holds one tensor, and the compared models if any.

    Args:
        source: A directory of transformers, one of this package with stream `preln`, or
            `owner/name` of the hub.
        out: The directory to create.
        stream: Mapping with `name`, or a stream configuration.
        dtype: `float32`, `bfloat16` or `float16`; each weight keeps its own if not given.
        check: Whether the logits before and after are compared; if not given, they are where one
            model fits into the free memory.
        force: Convert to a stream that cannot keep the function; it then starts as in a new model.
        seed: Of the new parameters' start.
        shard_bytes: Upper bound of one file of weights.
        on_progress: Called now and then.

    Raises:
        UserError: Unusable source or arguments, a stream that cannot keep the function, `out`
            exists, or the disk is full; nothing is left at `out` then.
    """
    opened = _open(source, out, dtype)
    config = config_for(opened.family).from_backbone(opened.config, stream)
    obstacle = plan.obstacle(config)
    checked = _checked(opened, check)
    if obstacle is not None and not (force or checked):
        raise UserError(f"{_title(config)}: {obstacle}; --check says by how much, --force converts")
    kind = class_for(opened.family)
    work = _Work(opened, config, kind, dtype, obstacle, seed)
    with _directory(out) as folder:
        work.write(folder, shard_bytes, on_progress)
        comparison = work.compare(folder) if checked else None
        if obstacle is not None and not force:
            raise UserError(f"{_title(config)}: {obstacle}; {comparison}; --force converts")
        write_manifest(folder, work.facts(comparison))
    return work.result(out, comparison)


def to_transformers(
    source: str | Path,
    out: Path,
    *,
    dtype: str | None = None,
    check: bool | None = None,
    shard_bytes: int = SHARD_BYTES,
    on_progress: Progress | None = None,
) -> Conversion:
    """Make a model of this package whose stream is `preln` one of plain transformers.

    Args:
        source: A directory of this package.
        out: The directory to create.
        dtype: As for `convert`.
        check: As for `convert`.
        shard_bytes: As for `convert`.
        on_progress: As for `convert`.

    Raises:
        UserError: As for `convert`; or the stream is not the ordinary residual.
    """
    opened = _open(source, out, dtype)
    if not isinstance(opened.config, DepthConfig):
        allowed = "a model of this package; this one is of transformers already"
        raise invalid("source", opened.config.model_type, allowed)
    kind = FAMILIES[opened.family].causal_lm
    work = _Work(opened, opened.config.to_backbone(), kind, dtype, None, 0)
    checked = _checked(opened, check)
    with _directory(out) as folder:
        work.write(folder, shard_bytes, on_progress)
        comparison = work.compare(folder) if checked else None
        write_manifest(folder, work.facts(comparison))
    return work.result(out, comparison)


class _Work:
    """A conversion that goes on. Final."""

    def __init__(
        self,
        source: Source,
        config: PreTrainedConfig,
        kind: Any,
        dtype: str | None,
        obstacle: str | None,
        seed: int,
    ):
        self.source, self.kind, self.obstacle = source, kind, obstacle
        chosen = None if dtype is None else DTYPES[dtype]
        self.dtype = chosen or _dtype_of(source)
        with explained(source.folder / "config.json"), torch.device("meta"), no_init_weights():
            self.model = kind(config)
        fresh = plan.Fresh(self.model, self.dtype, seed=seed, preserve=obstacle is None)
        self.parts = plan.parts(self.model, source, fresh, chosen)
        self.new = [part for part in self.parts if part.name in fresh]

    def write(self, folder: Path, shard_bytes: int, on_progress: Progress | None) -> None:
        write_weights(folder, self.parts, shard_bytes=shard_bytes, on_progress=on_progress)
        config = self.model.config
        config.architectures = [self.kind.__name__]
        config.dtype = self.dtype
        config.save_pretrained(folder)
        for name in COMPANIONS:
            if (self.source.folder / name).is_file():
                shutil.copyfile(self.source.folder / name, folder / name)

    def compare(self, folder: Path) -> Comparison:
        family = FAMILIES[self.source.family]
        ours = isinstance(self.source.config, DepthConfig)
        before = class_for(self.source.family) if ours else family.causal_lm
        return compare((before, self.source.folder), (self.kind, folder), self.dtype)

    def facts(self, comparison: Comparison | None) -> dict[str, Any]:
        difference = None if comparison is None else comparison.difference
        return {
            "source": self.source.name,
            "stream": getattr(self.model.config, "stream", None),
            "keeps_function": self.obstacle is None,
            "max_difference": difference,
            "version": __version__,
        }

    def result(self, out: Path, comparison: Comparison | None) -> Conversion:
        return Conversion(
            out=out,
            stream=getattr(self.model.config, "stream", {"name": None})["name"],
            parameters=_count(self.parts),
            new_parameters=_count(self.new),
            comparison=comparison,
            obstacle=self.obstacle,
        )


def _open(source: str | Path, out: Path, dtype: str | None) -> Source:
    """The source, once everything else about the request has been looked at."""
    if dtype is not None:
        choose("dtype", dtype, DTYPES)
    if out.exists() and not (out.is_dir() and not any(out.iterdir())):
        raise invalid("out", str(out), "a new directory")
    opened = open_source(source)
    if opened.stream != "preln":
        allowed = "preln: the others are part of what the model computes"
        raise invalid(f"{opened.name}: stream", opened.stream, allowed)
    return opened


def _title(config: Any) -> str:
    return f"stream {config.stream['name']}"


def _checked(source: Source, check: bool | None) -> bool:
    return fits(source.weights.size) if check is None else check


def _dtype_of(source: Source) -> torch.dtype:
    """The dtype of most of a model's numbers."""
    sizes: dict[torch.dtype, int] = {}
    for entry in source.weights.entries.values():
        sizes[entry.dtype] = sizes.get(entry.dtype, 0) + torch.Size(entry.shape).numel()
    return max(sizes, key=lambda dtype: sizes[dtype])


def _count(parts: list[Part]) -> int:
    return sum(torch.Size(part.shape).numel() for part in parts)


@contextmanager
def _directory(out: Path) -> Generator[Path]:
    with staged_directory(out) as folder:
        yield folder
        for file in folder.iterdir():
            sync(file)
