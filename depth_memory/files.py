"""Durable files: a target is whole or absent, never half written."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Generator, Iterable
from contextlib import contextmanager
from pathlib import Path

from depth_memory.errors import UserError


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text.partition("\n")[0]


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def write_durably(path: Path, blocks: Iterable[bytes | memoryview]) -> str:
    """Write `blocks` one after the other and wait until they are on the disk.

    Returns:
        The sha256 of what was written, in hexadecimal.
    """
    digest = hashlib.sha256()
    with path.open("wb") as file:
        for block in blocks:
            file.write(block)
            digest.update(block)
        file.flush()
        os.fsync(file.fileno())
    return digest.hexdigest()


def sync(path: Path) -> None:
    """Make a file, or the entries of a directory, durable."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def replaced_file(path: Path) -> Generator[Path]:
    """A file beside `path` to write; it takes the place of `path` once it is whole and durable."""
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    yield partial
    sync(partial)
    os.replace(partial, path)
    sync(path.parent)


@contextmanager
def staged_directory(target: Path) -> Generator[Path]:
    """A hidden sibling of `target` to write into; it becomes `target` if the block succeeds.

    On any failure the sibling is removed and the target stays as it was. A killed process leaves
    a folder `.NAME.*.partial` behind, which nothing reads and which is safe to delete.

    Raises:
        UserError: The system refused to write, for example because the disk is full.
    """
    folder = target.parent / f".{target.name}.{secrets.token_hex(4)}.partial"
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        folder.mkdir()
        yield folder
        _sync_folders(folder)
        # refuses to replace a target that has content
        folder.rename(target)
        sync(target.parent)
    except OSError as error:
        raise UserError(f"out: cannot write {target}: {reason(error)}") from error
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _sync_folders(folder: Path) -> None:
    for path in (*(path for path in folder.rglob("*") if path.is_dir()), folder):
        sync(path)
