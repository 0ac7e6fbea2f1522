"""Where results go, looked at before the work that makes them."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path

from depth_memory.errors import UserError, invalid, within
from depth_memory.files import destination, reason


def check_file(option: str, path: Path) -> None:
    """Find out whether a file can be written; leaves nothing behind.

    Args:
        option: Where the path comes from, for example `--out`.
        path: Of the file; its folders need not be there yet.

    Raises:
        UserError: It cannot be written, or is no regular file.
    """
    with within(option):
        try:
            parent = next(parent for parent in destination(path).parents if parent.exists())
            with tempfile.TemporaryFile(dir=parent):
                pass
        except OSError as error:
            raise UserError(f"cannot write {path}: {reason(error)}") from error


def check_directory(option: str, path: Path, names: Sequence[str]) -> None:
    """Find out whether files can be written to a directory; leaves nothing behind.

    Args:
        option: Where the path comes from.
        path: Of the directory, which need not be there yet.
        names: Of the files.

    Raises:
        UserError: It is a file, or one of the files cannot be written.
    """
    if path.exists() and not path.is_dir():
        raise invalid(option, str(path), "a directory")
    for name in names:
        check_file(option, path / name)
