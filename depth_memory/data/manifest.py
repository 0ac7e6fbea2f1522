"""What a prepared corpus says of itself: `manifest.json`, protected by a checksum of its own."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from depth_memory.errors import UserError, choose, invalid
from depth_memory.files import misfit, read_json, replaced_file, write_durably

MANIFEST_FILE = "manifest.json"
STATE_FILE = "state.json"
CORPUS = "corpus"
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


def place_of(target: Path) -> Path:
    """The folder in which the corpus `target` is made, see `staging`; beside what a link means."""
    target = Path(os.path.realpath(target))
    return target.with_name(f".{target.name}.preparing")


def write_manifest(directory: Path, manifest: Manifest) -> None:
    """Write `manifest.json`, the file that makes a folder a prepared corpus."""
    write_checked(directory / MANIFEST_FILE, dataclasses.asdict(manifest))


def read_manifest(directory: Path) -> Manifest:
    """Read and check `manifest.json`.

    Raises:
        UserError: No prepared corpus there, or a half-finished one, or the manifest is damaged,
            edited or of a format or separator policy that this version does not know.
    """
    path = directory / MANIFEST_FILE
    if not path.exists():
        raise UserError(f"{directory}: not a prepared corpus: {_lack(directory)}")
    content = read_checked(path, FORMAT, "the manifest of a corpus")
    try:
        manifest = _manifest(content)
        expected, found = token_dtype(manifest.vocab_size), np.dtype(manifest.dtype)
    except (KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: not a manifest of format {FORMAT}: {error}") from error
    choose(f"{path}: separator", manifest.recipe.separator, SEPARATORS)
    if found != expected:
        raise invalid(f"{path}: dtype", manifest.dtype, expected.str)
    return manifest


def write_checked(path: Path, content: dict[str, Any]) -> None:
    """Write or replace a file of JSON with a checksum of its own, durably."""
    content = json.loads(json.dumps(content, allow_nan=False))
    text = json.dumps({**content, "checksum": _checksum(content)}, indent=2) + "\n"
    with replaced_file(path) as partial:
        write_durably(partial, [text.encode()])


def read_checked(path: Path, version: int, what: str) -> dict[str, Any]:
    """What `write_checked` wrote, of one format.

    Raises:
        UserError: Another format, damaged or edited.
    """
    content = read_json(path, what)
    if misfit(content, {"format": int}) or content["format"] != version:
        raise invalid(f"{path}: format", content.get("format"), str(version))
    if content.pop("checksum", None) != _checksum(content):
        raise UserError(f"{path}: altered since it was written (checksum); prepare the data again")
    return content


def _lack(directory: Path) -> str:
    if (place_of(directory) / STATE_FILE).exists() or (directory / STATE_FILE).exists():
        return "half finished; give its command of data prepare again"
    return f"no {MANIFEST_FILE}"


def _checksum(content: dict[str, Any]) -> str:
    canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
    return hashlib.sha256(canonical.encode()).hexdigest()


def _manifest(content: dict[str, Any]) -> Manifest:
    recipe, splits = content.pop("recipe"), content.pop("splits")
    return Manifest(
        recipe=recipe_of(recipe),
        splits={name: split_of(split) for name, split in splits.items()},
        **content,
    )


def recipe_of(content: dict[str, Any]) -> Recipe:
    """A recipe from its JSON values; `KeyError` or `TypeError` if it is none."""
    content = dict(content)
    sources = content.pop("sources")
    return Recipe(sources=tuple(Source(**source) for source in sources), **content)


def split_of(content: dict[str, Any]) -> Split:
    """A split from its JSON values; `KeyError` or `TypeError` if it is none."""
    content = dict(content)
    shards = content.pop("shards")
    return Split(shards=tuple(Shard(**shard) for shard in shards), **content)
