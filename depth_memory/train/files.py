"""Files of a run that are either there in full or not there."""

from __future__ import annotations

import os
import shutil
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from depth_memory.errors import UserError
from depth_memory.files import REFUSALS, replaced_file, staged_directory, sync
from depth_memory.files import dumps as dumps

GOING = ".removed-"


@contextmanager
def refusals_explained(place: Path) -> Generator[None]:
    """Turn the disk's refusal to read or write into one line.

    Raises:
        UserError: The disk is full, cannot be read or may not be written.
    """
    try:
        yield
    except OSError as error:
        if error.errno not in REFUSALS:
            raise
        file = Path(error.filename or place)
        elsewhere = file.is_absolute() and not file.is_relative_to(place.absolute())
        field = "" if elsewhere else "out: "
        raise UserError(f"{field}cannot use {file}: {error.strerror}") from error


def write_text(path: Path, text: str) -> None:
    """Write or replace a file so that a reader finds the old text or the new, never a part."""
    with replaced_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


@contextmanager
def replaced_directory(path: Path) -> Generator[Path]:
    """A directory to write files into; it takes the place of `path` once all of it is durable.

    Raises:
        UserError: The system refused to write; whatever was at `path` is still there.
    """
    with staged_directory(path) as folder:
        yield folder
        mode = folder.stat().st_mode
        for file in folder.iterdir():
            # safetensors makes its files private; what may list the directory may read them
            file.chmod(mode & 0o666)
            sync(file)
        remove_directory(path)


def remove_directory(path: Path) -> None:
    """Remove a directory, if there is one, so that no part of it is ever seen under its name."""
    if path.exists():
        going = path.with_name(GOING + path.name)
        shutil.rmtree(going, ignore_errors=True)
        os.replace(path, going)
        shutil.rmtree(going)


def sweep(directory: Path) -> None:
    """Remove what an interrupted write or removal left in `directory`."""
    for path in [*directory.glob(".*.partial*"), *directory.glob(GOING + "*")]:
        if path.is_dir():
            shutil.rmtree(path)
        else:
            path.unlink()
