"""What a prepared corpus says of itself: `manifest.json`, protected by a checksum of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from depth_memory.errors import UserError, choose, invalid
from depth_memory.files import misfit, read_json, write_durably

MANIFEST_FILE = "manifest.json"
FORMAT = 1
SEPARATORS = {
    "eos": "the end-of-text token after every document that is not empty",
    "none": "nothing between documents",
}


@dataclass(frozen=True, kw_only=True)
class Source:
    """A file that was read: its name relative to the source given, size and sha256."""

    name: str
    bytes: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Recipe:
    """Everything that decides the content of a prepared corpus; equal recipes, equal bytes."""

    tokenizer_sha256: str
    end: str
    separator: str
    validation: float | int
    shard_tokens: int
    text_field: str
    sources: tuple[Source, ...]


@dataclass(frozen=True, kw_only=True)
class Shard:
    """A file of token ids: `split/00000.npy`, a one-dimensional array in numpy's format."""

    file: str
    tokens: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class Split:
    """Counts of one split: documents that are not empty, tokens with separators, UTF-8 bytes.

    `bytes` are those of the documents' text; a separator counts as a token but has no bytes.
    """

    documents: int
    tokens: int
    bytes: int
    shards: tuple[Shard, ...]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """The description of a prepared corpus."""

    format: int
    recipe: Recipe
    vocab_size: int
    dtype: str
    end_id: int
    empty_documents: int
    """Documents of nothing but white space, which were left out, separator included."""
    splits: dict[str, Split]


def token_dtype(vocab_size: int) -> np.dtype:
    """The narrowest of little-endian uint16 and uint32 that holds the ids 0..vocab_size - 1.

    Raises:
        UserError: The vocabulary is empty, or has ids beyond 32 bits.
    """
    if not 1 <= vocab_size <= 2**32:
        raise invalid("vocab_size", vocab_size, "1 to 2^32")
    return np.dtype("<u2") if vocab_size <= 2**16 else np.dtype("<u4")


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, the file that makes a folder a prepared corpus."""
    content = json.loads(json.dumps(dataclasses.asdict(manifest), allow_nan=False))
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=2) + "\n"
    write_durably(directory / MANIFEST_FILE, [text.encode()])


def read_manifest(directory: Path) -> Manifest:
    """Read and check `manifest.json`.

    Raises:
        UserError: No prepared corpus there, or the manifest is damaged, edited or of a format or
            separator policy that this version does not know.
    """
    path = directory / MANIFEST_FILE
    if not path.exists():
        raise UserError(f"{directory}: not a prepared corpus: no {MANIFEST_FILE}")
    content = read_json(path, "the manifest of a corpus")
    if misfit(content, {"format": int}) or content["format"] != FORMAT:
        raise invalid(f"{path}: format", content.get("format"), str(FORMAT))
    if content.pop("checksum", None) != _checksum(content):
        raise UserError(f"{path}: altered since it was written (checksum); prepare the data again")
    try:
        manifest = _manifest(content)
        expected, found = token_dtype(manifest.vocab_size), np.dtype(manifest.dtype)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a manifest of format {FORMAT}: {error}") from error
    choose(f"{path}: separator", manifest.recipe.separator, SEPARATORS)
    if found != expected:
        raise invalid(f"{path}: dtype", manifest.dtype, expected.str)
    return manifest


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _manifest(content: dict[str, Any]) -> Manifest:
    recipe, splits = content.pop("recipe"), content.pop("splits")
    return Manifest(
        recipe=_recipe(recipe),
        splits={name: _split(split) for name, split in splits.items()},
        **content,
    )


def _recipe(content: dict[str, Any]) -> Recipe:
    sources = content.pop("sources")
    return Recipe(sources=tuple(Source(**source) for source in sources), **content)


def _split(content: dict[str, Any]) -> Split:
    shards = content.pop("shards")
    return Split(shards=tuple(Shard(**shard) for shard in shards), **content)
