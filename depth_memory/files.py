"""Durable files: a target is whole or absent, never half written."""

from __future__ import annotations

import errno
import hashlib
import json
import math
import os
import secrets
import shutil
import stat
from collections.abc import Generator, Iterable
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from depth_memory.errors import UserError, invalid

REFUSALS = (
    errno.EACCES,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EIO,
    errno.ENOSPC,
    errno.EPERM,
    errno.EROFS,
)
"""Failures of the machine, which no code of ours can prevent."""
KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
}
"""What lies at a path and is no file to replace."""


def reason(error: Exception) -> str:
    """What went wrong, in one line."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    return text.partition("\n")[0]


def sha256_of(path: Path) -> str:
    """The sha256 of a file's bytes, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def dumps(value: Any) -> str:
    """JSON text that is a function of the value alone.

    Raises:
        UserError: A number in it is not finite, which JSON does not have; names the first.
    """
    _check_finite(value, "")
    return json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n"


def _check_finite(value: Any, name: str) -> None:
    if isinstance(value, dict):
        for key, item in value.items():
            _check_finite(item, f"{name}.{key}" if name else str(key))
    elif isinstance(value, list | tuple):
        for place, item in enumerate(value):
            _check_finite(item, f"{name}[{place}]")
    elif isinstance(value, float) and not math.isfinite(value):
        raise invalid(name or "result", value, "a finite number")


def sealed(manifest: dict[str, Any]) -> str:
    """A manifest as text, with a checksum of its own."""
    digest = hashlib.sha256(dumps(manifest).encode()).hexdigest()
    return dumps({**manifest, "checksum": digest})


def read_sealed(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Why what `sealed` wrote cannot be used, or None, and the manifest."""
    try:
        text = path.read_bytes().decode()
        manifest = json.loads(text)
        stated = {key: value for key, value in manifest.items() if key != "checksum"}
        if sealed(stated) != text:
            return f"{path.name} was altered", {}
    except FileNotFoundError:
        return f"{path.name} is missing", {}
    except (OSError, ValueError, AttributeError) as error:
        return f"{path.name} cannot be read ({error})", {}
    return None, manifest


def inventory(paths: Iterable[Path]) -> dict[str, Any]:
    """Size and SHA-256 of files by name, as a manifest holds them."""
    return {path.name: {"bytes": path.stat().st_size, "sha256": sha256_of(path)} for path in paths}


def damage(folder: Path, inventory: dict[str, Any]) -> str | None:
    """The first file of an inventory that is not as it was, and why; None if all are."""
    for name, entry in inventory.items():
        file = folder / name
        if not file.is_file():
            return f"{name} is missing"
        if file.stat().st_size != entry["bytes"]:
            return f"{name} has {file.stat().st_size} bytes instead of {entry['bytes']}"
        if sha256_of(file) != entry["sha256"]:
            return f"{name} was altered (SHA-256 differs)"
    return None


def write_durably(path: Path, blocks: Iterable[bytes | memoryview]) -> str:
    """Write `blocks` one after the other and wait until they are on the disk.

    Returns:
        The sha256 of what was written, in hexadecimal.
    """
    digest = hashlib.sha256()
    with naming(path), path.open("wb") as file:
        for block in blocks:
            file.write(block)
            digest.update(block)
            del block  # large ones come one after the other, and must not meet
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
def naming(path: Path) -> Generator[None]:
    """Let the system's refusal say which file it was about: that to write to an open one does not.

    Raises:
        OSError: As it came, with a name.
    """
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def destination(path: Path) -> Path:
    """Where a file at `path` is written: through a symbolic link, what that points to.

    Raises:
        UserError: Something is there that is no regular file, as a device, which must stay.
    """
    place = path.resolve() if path.is_symlink() else path
    try:
        mode = place.stat().st_mode
    except FileNotFoundError:
        return place
    if not stat.S_ISREG(mode):
        kind = KINDS.get(stat.S_IFMT(mode), "no regular file")
        raise UserError(f"cannot write {path}: it is {kind}; allowed: a regular file")
    return place


@contextmanager
def replaced_file(path: Path) -> Generator[Path]:
    """A file beside `path` to write; it takes the place of `path` once it is whole and durable.

    On any failure it is removed, and what is at `path` stays as it was.

    Raises:
        UserError: As `destination`.
    """
    path = destination(path)
    partial = path.with_name(f".{path.stem}.partial{path.suffix}")
    try:
        with naming(path):
            yield partial
            sync(partial)
            os.replace(partial, path)
            sync(path.parent)
    finally:
        with suppress(OSError):
            partial.unlink()


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
