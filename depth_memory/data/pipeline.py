"""From text to a prepared corpus: tokenised shards, a copy of the tokenizer and a manifest."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from depth_memory.data import filling, staging
from depth_memory.data.filling import Job, Progress
from depth_memory.data.manifest import SEPARATORS, Manifest, Recipe, place_of, read_manifest
from depth_memory.data.origins import check_unchanged, difference, fingerprints
from depth_memory.data.sources import SourceFile, find_files
from depth_memory.data.splits import check_validation
from depth_memory.data.tokenizer import Tokenizer, load_tokenizer
from depth_memory.data.tokens import open_split
from depth_memory.errors import UserError, choose, invalid
from depth_memory.files import reason


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
    restart: bool = False,
    on_progress: Callable[[Progress], None] | None = None,
    on_note: Callable[[str], None] = lambda text: None,
) -> Manifest:
    """Tokenise `sources` into the folder `out`, which appears only when it is complete.

    `out` holds `manifest.json`, `tokenizer.json`, `train/00000.npy`, ... and, if documents are
    held out, `validation/00000.npy`, .... Its bytes depend on the sources and the arguments, not
    on `workers`. A document of nothing but white space is left out, without a separator. Text that
    spells the end-of-text token is ordinary text: separators stand between documents only.

    An existing `out` is never written to. If it was prepared by the same recipe from the same
    text, be it meanwhile by another process, it is verified and returned as it is.

    Work that was killed goes on from its last finished shard, to the same bytes, when it is asked
    for again; any other work on this `out` is refused as long as half of that is there. Sources
    must not change in between: their sizes and times are compared, and their sha256 if those
    differ.

    Args:
        sources: Files, folders and `hf://datasets/...`, see `sources.find_files`.
        out: The folder to create.
        tokenizer: A tokenizer, or the path to load it from.
        validation: The expected share of documents to hold out, a float in [0, 1), or how many, an
            int; a document is chosen by its content (`splits`), so equal ones are never divided.
        workers: Threads that tokenise.
        shard_tokens: Tokens per shard.
        text_field: The field of JSON lines or the column of Parquet that holds the text.
        separator: `eos` appends the end-of-text token to every document, `none` appends nothing.
        restart: Whether half-finished work is thrown away, whatever it is.
        on_progress: Called after every document.
        on_note: Called with what a person may want to know.

    Raises:
        UserError: Unusable input or arguments, no text, `out` exists and differs, is half finished
            and differs, or the disk is full; nothing is left at `out` then.
    """
    settings: dict[str, Any] = {
        "separator": separator,
        "validation": validation,
        "shard_tokens": shard_tokens,
        "text_field": text_field,
    }
    _check(workers, **settings)
    if not isinstance(tokenizer, Tokenizer):
        tokenizer = load_tokenizer(tokenizer)
    files = find_files(sources)
    job = functools.partial(_job, files, tokenizer, settings, workers)
    return _made(Path(out), job, restart, on_progress, on_note)


def verify(directory: str | Path) -> Manifest:
    """Check every byte of a prepared corpus and return its manifest.

    Raises:
        UserError: Something is missing, cut or altered.
    """
    manifest = read_manifest(Path(directory))
    for split in manifest.splits:
        open_split(directory, split).verify()
    return manifest


def _check(
    workers: int, *, separator: str, validation: float | int, shard_tokens: int, text_field: str
) -> None:
    del text_field
    choose("separator", separator, SEPARATORS)
    check_validation(validation)
    for field, value in (("workers", workers), ("shard_tokens", shard_tokens)):
        if value < 1:
            raise invalid(field, value, "at least 1")


def _job(
    files: list[SourceFile],
    tokenizer: Tokenizer,
    settings: dict[str, Any],
    workers: int,
    state: staging.State | None,
) -> Job:
    """What there is to do; the sources are read for it unless `state` knows them."""
    held_out = settings["validation"]
    if any(file.remote for file in files) and isinstance(held_out, int) and held_out:
        raise invalid("validation", held_out, "a share, as 0.001, for a source on the hub")
    known, times = fingerprints(files, state, workers)
    recipe = Recipe(sources=known, tokenizer_sha256=tokenizer.sha256, end=tokenizer.end, **settings)
    return Job(files=files, recipe=recipe, times=times, tokenizer=tokenizer, workers=workers)


def _made(
    target: Path,
    job: Callable[[staging.State | None], Job],
    restart: bool,
    on_progress: Callable[[Progress], None] | None,
    on_note: Callable[[str], None],
) -> Manifest:
    """What is at `target`, if need be after filling it."""
    if _is_taken(target):
        return _reuse(target, job(None).recipe)
    if target.is_mount():  # which nothing can be moved to, in the end
        raise invalid("out", str(target), "a folder that is no mount point, as one inside it")
    wait = f"waiting for another process, which prepares {target}"
    try:
        with staging.held(target, lambda: on_note(wait)) as place:
            if not _is_taken(target):
                return _finished(target, place, job, restart, on_progress, on_note)
    except UserError:
        if not _is_taken(target):
            raise
    return _reuse(target, job(None).recipe)  # another process was quicker


def _finished(
    target: Path,
    place: Path,
    job: Callable[[staging.State | None], Job],
    restart: bool,
    on_progress: Callable[[Progress], None] | None,
    on_note: Callable[[str], None],
) -> Manifest:
    """Prepare all of it in `place`, or the rest, and move it to `target`."""
    state = None if restart else staging.load(place)
    work = job(state)
    if state is None:
        staging.clear(place)
    else:
        _check_same(target, work.recipe, state)
        on_note(f"going on after document {state.documents}")
    if state is None:
        state = filling.first_state(work)
    writers = filling.writers(place, work, state)
    try:
        manifest = filling.fill(place, work, state, writers, on_progress)
        check_unchanged(work.files, work.recipe.sources, work.times)
        staging.finish(place, target)
    except (UserError, OSError) as error:
        if not (place / staging.STATE_FILE).exists():
            raise
        told = isinstance(error, UserError)
        text = str(error) if told else f"out: cannot write {target}: {reason(error)}"
        hint = f"what is finished stays in {place} for the same command"
        raise UserError(f"{text}; {hint}") from error
    return manifest


def _check_same(target: Path, recipe: Recipe, state: staging.State) -> None:
    what = difference(recipe, state.recipe)
    if what is not None:
        raise UserError(
            f"out: {target} is half finished with another {what}, in {place_of(target)}; "
            "give that command again, or begin again with --restart"
        )


def _is_taken(target: Path) -> bool:
    return target.exists() and not (target.is_dir() and not any(target.iterdir()))


def _reuse(target: Path, recipe: Recipe) -> Manifest:
    try:
        manifest = verify(target)
    except UserError as error:
        raise UserError(f"out: {target} exists and is left as it is: {error}") from error
    what = difference(recipe, manifest.recipe)
    if what is not None:
        raise UserError(f"out: {target} exists, made with another {what}; choose another folder")
    staging.remove(target)
    return manifest
