"""What sources were, so that it is noticed when they are no longer that."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

from depth_memory.data.manifest import Recipe, Source
from depth_memory.data.sources import SourceFile
from depth_memory.data.staging import State
from depth_memory.errors import UserError
from depth_memory.files import reason, sha256_of


def fingerprints(
    files: Sequence[SourceFile], state: State | None, workers: int
) -> tuple[tuple[Source, ...], tuple[int, ...]]:
    """Size and sha256 of every file, and when it was modified, in nanoseconds.

    Args:
        files: Local ones are read, by `workers` threads; those on the hub come with all of it.
        state: Of a preparation to go on with: a file of the same name, size and time is not read
            again.
        workers: Threads.

    Raises:
        UserError: A file cannot be read.
    """
    known = {} if state is None else dict(zip(state.recipe.sources, state.times, strict=True))
    before = {(source.name, source.bytes, time): source for source, time in known.items()}

    def one(file: SourceFile) -> tuple[Source, int]:
        if file.remote is not None:
            size, sha256 = file.remote.bytes, file.remote.sha256
            return Source(name=file.name, bytes=size, sha256=sha256), 0
        with _readable(file.path):
            size, time = _stamp(file.path)
            source = before.get((file.name, size, time))
            source = source or Source(name=file.name, bytes=size, sha256=sha256_of(file.path))
        return source, time

    with ThreadPoolExecutor(workers) as pool:
        found = list(pool.map(one, files))
    return tuple(source for source, _ in found), tuple(time for _, time in found)


def check_unchanged(
    files: Sequence[SourceFile], sources: Sequence[Source], times: Sequence[int]
) -> None:
    """Hold local files to the size and time that they had before they were read.

    Raises:
        UserError: One has changed meanwhile, or is gone.
    """
    for file, source, time in zip(files, sources, times, strict=True):
        with _readable(file.path):
            if file.remote is None and _stamp(file.path) != (source.bytes, time):
                raise UserError(f"{file.path}: changed while it was read; allowed: one that stays")


def difference(recipe: Recipe, other: Recipe) -> str | None:
    """The fields in which two recipes differ, and the first source that does; None if none do."""
    names = [name for name, value in vars(recipe).items() if vars(other)[name] != value]
    if not names:
        return None
    changed = {s.name for s in recipe.sources} & {s.name for s in other.sources}
    changed &= {s.name for s in set(recipe.sources) ^ set(other.sources)}
    suffix = f" ({min(changed)} has changed)" if changed else ""
    return ", ".join(names) + suffix


@contextmanager
def _readable(path: Path) -> Generator[None]:
    try:
        yield
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from error


def _stamp(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns
