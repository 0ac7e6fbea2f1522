"""From text to a prepared corpus: tokenised shards, a copy of the tokenizer and a manifest."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from depth_memory.data.encoding import Encoded, encode, encoded_in_order, is_empty
from depth_memory.data.manifest import (
    FORMAT,
    SEPARATORS,
    Manifest,
    Recipe,
    Source,
    Split,
    read_manifest,
    token_dtype,
    write_manifest,
)
from depth_memory.data.shards import SplitWriter
from depth_memory.data.sources import SourceFile, find_files, read_documents
from depth_memory.data.splits import (
    SPLITS,
    TRAIN,
    VALIDATION,
    check_validation,
    threshold_of,
)
from depth_memory.data.tokenizer import TOKENIZER_FILE, Tokenizer, load_tokenizer
from depth_memory.data.tokens import open_split
from depth_memory.errors import UserError, choose, invalid
from depth_memory.files import reason, sha256_of, staged_directory

Progress = Callable[[int, int], None]
"""Called with the documents and the UTF-8 bytes done so far."""


def prepare(
    sources: Sequence[str | Path],
    out: str | Path,
    *,
    tokenizer: Tokenizer | str | Path,
    validation: float | int = 0.01,
    workers: int = 1,
    shard_tokens: int = 2**24,
    text_field: str = "text",
    separator: str = "eos",
    on_progress: Progress | None = None,
) -> Manifest:
    """Tokenise `sources` into the folder `out`, which appears only when it is complete.

    `out` holds `manifest.json`, `tokenizer.json`, `train/00000.npy`, ... and, if documents are
    held out, `validation/00000.npy`, .... Its bytes depend on the sources and the arguments, not
    on `workers`. A document of nothing but white space is left out, without a separator. Text that
    spells the end-of-text token is ordinary text: separators stand between documents only.

    An existing `out` is never written to. If it was prepared by the same recipe from the same
    text, be it meanwhile by another process, it is verified and returned as it is.

    Args:
        sources: Files and folders, see `sources.find_files` and `sources.read_documents`.
        out: The folder to create.
        tokenizer: A tokenizer, or the path to load it from.
        validation: The expected share of documents to hold out, a float in [0, 1), or how many, an
            int; a document is chosen by its content (`splits`), so equal ones are never divided.
        workers: Threads that tokenise.
        shard_tokens: Tokens per shard.
        text_field: The field of JSON lines or the column of Parquet that holds the text.
        separator: `eos` appends the end-of-text token to every document, `none` appends nothing.
        on_progress: Called now and then.

    Raises:
        UserError: Unusable input or arguments, no text, `out` exists and differs, or the disk is
            full; nothing is left at `out` then.
    """
    choose("separator", separator, SEPARATORS)
    check_validation(validation)
    _check_at_least_one("workers", workers)
    _check_at_least_one("shard_tokens", shard_tokens)
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = load_tokenizer(tokenizer)
    files = find_files(sources)
    recipe = Recipe(
        tokenizer_sha256=tokenizer.sha256,
        end=tokenizer.end,
        separator=separator,
        validation=validation,
        shard_tokens=shard_tokens,
        text_field=text_field,
        sources=tuple(_source(file) for file in files),
    )
    return _made(Path(out), files, recipe, tokenizer, workers, on_progress)


def verify(directory: str | Path) -> Manifest:
    """Check every byte of a prepared corpus and return its manifest.

    Raises:
        UserError: Something is missing, cut or altered.
    """
    manifest = read_manifest(Path(directory))
    for split in manifest.splits:
        open_split(directory, split).verify()
    return manifest


def _check_at_least_one(field: str, value: int) -> None:
    if value < 1:
        raise invalid(field, value, "at least 1")


def _source(file: SourceFile) -> Source:
    try:
        size, sha256 = file.path.stat().st_size, sha256_of(file.path)
    except OSError as error:
        raise UserError(f"{file.path}: cannot be read: {reason(error)}") from error
    return Source(name=file.name, bytes=size, sha256=sha256)


def _is_taken(target: Path) -> bool:
    return target.exists() and not (target.is_dir() and not any(target.iterdir()))


def _reuse(target: Path, recipe: Recipe) -> Manifest:
    try:
        manifest = verify(target)
    except UserError as error:
        raise UserError(f"out: {target} exists and is left as it is: {error}") from error
    differing = [
        name for name, value in vars(recipe).items() if vars(manifest.recipe)[name] != value
    ]
    if differing:
        what = ", ".join(differing)
        raise UserError(f"out: {target} exists, made with another {what}; choose another folder")
    return manifest


def _made(target: Path, files: list[SourceFile], recipe: Recipe, *rest: Any) -> Manifest:
    """What is at `target`, if need be after filling it."""
    if _is_taken(target):
        return _reuse(target, recipe)
    try:
        with staged_directory(target) as folder:
            return _fill(folder, files, recipe, *rest)
    except UserError:
        if not _is_taken(target):
            raise
        return _reuse(target, recipe)  # another process was quicker


def _fill(
    folder: Path,
    files: list[SourceFile],
    recipe: Recipe,
    tokenizer: Tokenizer,
    workers: int,
    on_progress: Progress | None,
) -> Manifest:
    threshold = _threshold(files, recipe)
    encoded = encoded_in_order(
        read_documents(files, text_field=recipe.text_field),
        lambda document: encode(document, tokenizer, recipe.separator, threshold),
        workers,
    )
    dtype = token_dtype(tokenizer.vocab_size)
    writers = {name: SplitWriter(folder, name, dtype, recipe.shard_tokens) for name in SPLITS}
    empty = _write(encoded, writers, on_progress)
    splits = {name: writer.close() for name, writer in writers.items()}
    _check_documents(splits, recipe.validation)
    manifest = Manifest(
        format=FORMAT,
        recipe=recipe,
        vocab_size=tokenizer.vocab_size,
        dtype=dtype.str,
        end_id=tokenizer.end_id,
        empty_documents=empty,
        splits={name: split for name, split in splits.items() if split.documents},
    )
    tokenizer.save(folder / TOKENIZER_FILE)
    write_manifest(folder, manifest)
    return manifest


def _threshold(files: list[SourceFile], recipe: Recipe) -> int:
    documents = read_documents(files, text_field=recipe.text_field)
    texts = (document.utf8 for document in documents if not is_empty(document))
    return threshold_of(recipe.validation, texts)


def _write(
    encoded: Iterable[Encoded], writers: dict[str, SplitWriter], on_progress: Progress | None
) -> int:
    """Write the documents; the result is how many were empty."""
    empty = size = 0
    for count, document in enumerate(encoded, start=1):
        if document.ids is None:
            empty += 1
        else:
            writers[document.split].add(document.ids, text_bytes=document.text_bytes)
        size += document.text_bytes
        if on_progress:
            on_progress(count, size)
    return empty


def _check_documents(splits: dict[str, Split], validation: float | int) -> None:
    train, held_out = splits[TRAIN].documents, splits[VALIDATION].documents
    if train + held_out == 0:
        raise UserError("sources: got no text; allowed: at least one document that is not empty")
    if train == 0 or (validation and held_out == 0):
        got = f"{train} training and {held_out} validation documents"
        raise UserError(f"validation: {validation} gives {got}; pass a number of documents")
