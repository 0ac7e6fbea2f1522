"""Preparations that are not finished: where they lie, what they say of themselves, and their end.

A corpus `NAME` is made in `.NAME.preparing` beside it:

    corpus/       shards as they will be
    tails/        tokens that do not fill a shard yet
    downloads/    files from the hub while they are read
    state.json    how far all that counts: what lies beyond was not noted before a kill

The state is replaced after every finished shard. Whoever works there holds a lock on the folder,
which dies with the process.
"""

from __future__ import annotations

import dataclasses
import fcntl
import os
import shutil
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depth_memory.data.manifest import (
    CORPUS,
    STATE_FILE,
    Recipe,
    Split,
    place_of,
    read_checked,
    recipe_of,
    split_of,
    write_checked,
)
from depth_memory.data.sources import Position
from depth_memory.errors import UserError
from depth_memory.files import reason, sync

FORMAT = 1
DOWNLOADS, TAILS = "downloads", "tails"


@dataclass(frozen=True, kw_only=True)
class Tail:
    """Tokens of a split's unfinished shard, on the disk."""

    tokens: int
    sha256: str


@dataclass(frozen=True, kw_only=True)
class State:
    """How far a preparation has come."""

    recipe: Recipe
    times: tuple[int, ...]
    """When each source was last modified, in nanoseconds; 0 for one on the hub."""
    threshold: int
    """Of `splits.split_of`."""
    end: Position
    """How far the sources are read."""
    documents: int
    """Read, empty ones included."""
    empty: int
    splits: dict[str, Split]
    """Tokens and documents so far, and finished shards."""
    tails: dict[str, Tail]


def save(place: Path, state: State) -> None:
    """Note a state; afterwards it counts, and what only older ones needed is removed."""
    write_checked(place / STATE_FILE, {"format": FORMAT, **dataclasses.asdict(state)})
    current = {tail_name(name, len(split.shards)) for name, split in state.splits.items()}
    for path in (place / TAILS).iterdir():
        if path.name not in current:
            path.unlink()


def tail_name(split: str, shard: int) -> str:
    """The file with the beginning of a shard that is not full."""
    return f"{split}-{shard:05d}"


def load(place: Path) -> State | None:
    """The last state that was noted; None if none was.

    Raises:
        UserError: It is damaged.
    """
    path = place / STATE_FILE
    if not path.exists():
        return None
    try:
        content = read_checked(path, FORMAT, "the state of a preparation")
        return State(
            recipe=recipe_of(content["recipe"]),
            times=tuple(content["times"]),
            end=Position(**content["end"]),
            splits={name: split_of(split) for name, split in content["splits"].items()},
            tails={name: Tail(**tail) for name, tail in content["tails"].items()},
            **{name: content[name] for name in ("threshold", "documents", "empty")},
        )
    except (UserError, KeyError, TypeError, AttributeError) as error:
        raise UserError(f"{path}: damaged; begin again with --restart ({error})") from error


@contextmanager
def held(target: Path, on_wait: Callable[[], Any]) -> Generator[Path]:
    """The folder in which `target` is made, made if it is not there, and ours alone.

    Without a state in it, it is removed in the end.

    Args:
        target: Of the corpus.
        on_wait: Called once if another process holds it, for which this then waits.

    Raises:
        UserError: The system refused to write.
    """
    place = place_of(target)
    try:
        lock = _lock(place, on_wait)
        try:
            yield place
        finally:
            if not (place / STATE_FILE).exists():
                shutil.rmtree(place, ignore_errors=True)
            os.close(lock)
    except OSError as error:
        raise UserError(f"out: cannot write {target}: {reason(error)}") from error


def _lock(place: Path, on_wait: Callable[[], Any]) -> int:
    while True:
        place.mkdir(parents=True, exist_ok=True)
        lock = os.open(place, os.O_RDONLY)
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            on_wait()
            fcntl.flock(lock, fcntl.LOCK_EX)
        with suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(lock), place.stat()):
                return lock
        os.close(lock)  # who held it has finished, and removed it


def clear(place: Path) -> None:
    """Empty the folder, its state first, so that nothing half removed is gone on with."""
    (place / STATE_FILE).unlink(missing_ok=True)
    for path in place.iterdir():
        if path.is_dir():
            shutil.rmtree(path)
        else:  # of a state that was never whole
            path.unlink()
    for name in (CORPUS, DOWNLOADS, TAILS):
        (place / name).mkdir()


def finish(place: Path, target: Path) -> None:
    """Make the whole corpus durable and move it to `target`, which is empty or not there."""
    corpus = place / CORPUS
    for folder in (*(path for path in corpus.rglob("*") if path.is_dir()), corpus):
        sync(folder)
    target = Path(os.path.realpath(target))  # a link stays one
    # refuses to replace a target that has content
    corpus.rename(target)
    sync(target.parent)
    (place / STATE_FILE).unlink(missing_ok=True)


def remove(target: Path) -> None:
    """Remove what a kill between the last two steps left beside a finished corpus."""
    if place_of(target).exists():
        with held(target, lambda: None) as place:
            (place / STATE_FILE).unlink(missing_ok=True)
