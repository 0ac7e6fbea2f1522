"""The work of a preparation: documents in, shards out, and a note of it after every shard."""

from __future__ import annotations

import hashlib
import itertools
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from depth_memory.data import staging
from depth_memory.data.encoding import Encoded, encode, encoded_in_order, is_empty
from depth_memory.data.manifest import (
    CORPUS,
    FORMAT,
    Manifest,
    Recipe,
    Split,
    token_dtype,
    write_manifest,
)
from depth_memory.data.shards import NOTHING, SplitWriter, open_shard
from depth_memory.data.sources import START, SourceFile, read_documents
from depth_memory.data.splits import SPLITS, TRAIN, VALIDATION, threshold_of
from depth_memory.data.staging import DOWNLOADS, TAILS, State, Tail, tail_name
from depth_memory.data.tokenizer import TOKENIZER_FILE, Tokenizer
from depth_memory.errors import UserError


@dataclass(frozen=True, kw_only=True)
class Job:
    """What to prepare."""

    files: Sequence[SourceFile]
    recipe: Recipe
    times: tuple[int, ...]
    """As in `staging.State`."""
    tokenizer: Tokenizer
    workers: int


@dataclass(frozen=True, kw_only=True, slots=True)
class Progress:
    """How far a preparation has come; what was done before a kill counts."""

    documents: int
    tokens: int
    bytes: int
    """Of text, in UTF-8."""
    share: float
    """Of the bytes of the sources."""


def fill(
    place: Path,
    job: Job,
    state: State,
    writers: dict[str, SplitWriter],
    on_progress: Callable[[Progress], None] | None,
) -> Manifest:
    """Prepare all of a job in `place`, from where `state` says on.

    Raises:
        UserError: Unusable sources.
    """
    recipe, dtype = job.recipe, token_dtype(job.tokenizer.vocab_size)
    documents = read_documents(
        job.files, text_field=recipe.text_field, start=state.end, downloads=place / DOWNLOADS
    )
    encoded = encoded_in_order(
        documents,
        lambda document: encode(document, job.tokenizer, recipe.separator, state.threshold),
        job.workers,
    )
    empty = _write(encoded, writers, state, place, _reporter(recipe, state, on_progress))
    splits = {name: writer.close() for name, writer in writers.items()}
    _check_documents(splits, recipe.validation)
    manifest = Manifest(
        format=FORMAT,
        recipe=recipe,
        vocab_size=job.tokenizer.vocab_size,
        dtype=dtype.str,
        end_id=job.tokenizer.end_id,
        empty_documents=empty,
        splits={name: split for name, split in splits.items() if split.documents},
    )
    job.tokenizer.save(place / CORPUS / TOKENIZER_FILE)
    write_manifest(place / CORPUS, manifest)
    return manifest


def first_state(job: Job) -> State:
    """The state before the first document; reads the sources if their documents must be counted.

    Raises:
        UserError: Fewer documents than are to be held out.
    """
    recipe = job.recipe
    documents = read_documents(job.files, text_field=recipe.text_field)
    texts = (document.utf8 for document in documents if not is_empty(document))
    return State(
        recipe=recipe,
        times=job.times,
        threshold=threshold_of(recipe.validation, texts),
        end=START,
        documents=0,
        empty=0,
        splits=dict.fromkeys(SPLITS, NOTHING),
        tails=dict.fromkeys(SPLITS, Tail(tokens=0, sha256=hashlib.sha256().hexdigest())),
    )


def writers(place: Path, job: Job, state: State) -> dict[str, SplitWriter]:
    """Of every split, from where `state` says on.

    Raises:
        UserError: What `state` speaks of is not there, or damaged.
    """
    return {name: _writer(place, name, job, state) for name in SPLITS}


def _writer(place: Path, name: str, job: Job, state: State) -> SplitWriter:
    done, tail = state.splits[name], state.tails[name]
    dtype = token_dtype(job.tokenizer.vocab_size)
    path = place / TAILS / tail_name(name, len(done.shards))
    kept = path.read_bytes()[: tail.tokens * dtype.itemsize] if path.is_file() else b""
    try:
        for shard in done.shards:
            open_shard(place / CORPUS, shard, dtype)
        if hashlib.sha256(kept).hexdigest() != tail.sha256:
            raise UserError(f"{path}: missing or altered")
    except UserError as error:
        raise UserError(f"{error}; begin again with --restart") from error
    size = job.recipe.shard_tokens
    return SplitWriter(place / CORPUS, name, dtype, size, done=done, tail=kept)


def _write(
    encoded: Iterable[Encoded],
    writers: dict[str, SplitWriter],
    state: State,
    place: Path,
    report: Callable[[Encoded], None],
) -> int:
    """Write the documents; the result is how many were empty, those before `state` included."""
    empty, saved = state.empty, _shards(writers)
    for count, document in enumerate(encoded, start=state.documents + 1):
        if document.ids is None:
            empty += 1
        else:
            writers[document.split].add(document.ids, text_bytes=document.text_bytes)
        if _shards(writers) > saved:
            saved = _shards(writers)
            _save(place, writers, state, document, count, empty)
        report(document)
    return empty


def _shards(writers: dict[str, SplitWriter]) -> int:
    return sum(writer.shards for writer in writers.values())


def _save(
    place: Path,
    writers: dict[str, SplitWriter],
    first: State,
    last: Encoded,
    documents: int,
    empty: int,
) -> None:
    """Note that everything up to a document is on the disk."""
    splits, tails = {}, {}
    for name, writer in writers.items():
        splits[name] = split = writer.so_far()
        sha256 = writer.keep(place / TAILS / tail_name(name, len(split.shards)))
        unfinished = split.tokens - sum(shard.tokens for shard in split.shards)
        tails[name] = Tail(tokens=unfinished, sha256=sha256)
    noted = State(
        recipe=first.recipe,
        times=first.times,
        threshold=first.threshold,
        end=last.end,
        documents=documents,
        empty=empty,
        splits=splits,
        tails=tails,
    )
    staging.save(place, noted)


def _reporter(
    recipe: Recipe, state: State, on_progress: Callable[[Progress], None] | None
) -> Callable[[Encoded], None]:
    """Adds documents up, and passes the sums on."""
    if on_progress is None:
        return lambda document: None
    sizes = [source.bytes for source in recipe.sources]
    before = [0, *itertools.accumulate(sizes)]
    documents = state.documents
    tokens = sum(split.tokens for split in state.splits.values())
    text_bytes = sum(split.bytes for split in state.splits.values())

    def report(document: Encoded) -> None:
        nonlocal documents, tokens, text_bytes
        documents += 1
        tokens += 0 if document.ids is None else len(document.ids)
        text_bytes += document.text_bytes
        file = document.end.file
        share = (before[file] + document.share * sizes[file]) / max(before[-1], 1)
        on_progress(Progress(documents=documents, tokens=tokens, bytes=text_bytes, share=share))

    return report


def _check_documents(splits: dict[str, Split], validation: float | int) -> None:
    train, held_out = splits[TRAIN].documents, splits[VALIDATION].documents
    if train + held_out == 0:
        raise UserError("sources: got no text; allowed: at least one document that is not empty")
    if train == 0 or (validation and held_out == 0):
        got = f"{train} training and {held_out} validation documents"
        raise UserError(f"validation: {validation} gives {got}; pass a number, another share, or 0")
