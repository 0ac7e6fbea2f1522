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
from collections.abc import Generator, Iterable, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from depth_memory.errors import UserError, invalid, within

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

LARGEST, DEEPEST = 2**26, 64
"""Bytes of a JSON file, and levels of objects and lists in it, beyond which it is none of ours."""


def reason(error: Exception) -> str:
    """What went wrong, in one line: the first, or a heading with what it announces."""
    text = getattr(error, "strerror", None) or str(error).strip() or type(error).__name__
    first, *others = (line.strip() for line in text.splitlines())
    return " ".join([first, *others[:1]]) if first.endswith(":") else first


@contextmanager
def explained(path: Path, problem: str = "cannot be loaded") -> Generator[Path]:
    """Say in one line that `path` is of no use, whatever a library raises over its content.

    Raises:
        UserError: Anything was raised.
    """
    with within(path):
        try:
            yield path
        except UserError:
            raise
        except Exception as error:
            why = f"{error} is not known" if isinstance(error, KeyError) else reason(error)
            raise UserError(f"{problem}: {why}") from error


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


def read_json(path: Path, what: str) -> dict[str, Any]:
    """The JSON object in a file.

    Args:
        path: Of the file.
        what: It should be, with its article, for the error.

    Raises:
        UserError: It is not there, or anything else than a JSON object of a sane size and depth.
    """
    try:
        return _json(path)[1]
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not {what} ({reason(error)})") from error


def misfit(content: Mapping[str, Any], kinds: Mapping[str, type]) -> str | None:
    """The first key whose value is missing or of another kind; None if all are as they should be.

    A truth value is no number.
    """
    return next((name for name, kind in kinds.items() if type(content.get(name)) is not kind), None)


def _json(path: Path) -> tuple[str, dict[str, Any]]:
    """A file's text, and the JSON object that it holds; `OSError` or `ValueError` otherwise."""
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise UserError("not a regular file")  # one that could block, or never end
    with path.open("rb") as file:
        text = file.read(LARGEST + 1).decode()
    if len(text) > LARGEST:
        raise UserError(f"longer than {LARGEST} bytes")
    try:
        content = json.loads(text)
    except RecursionError as error:
        raise UserError("nested too deeply") from error
    if not isinstance(content, dict):
        raise UserError("no JSON object")
    level: list[Any] = [content]
    for _ in range(DEEPEST):
        level = [item for value in level for item in _items(value)]
    if level:
        raise UserError("nested too deeply")
    return text, content


def _items(value: Any) -> Iterable[Any]:
    if isinstance(value, dict):
        return value.values()
    return value if isinstance(value, list) else ()


def sealed(manifest: dict[str, Any]) -> str:
    """A manifest as text, with a checksum of its own."""
    digest = hashlib.sha256(dumps(manifest).encode()).hexdigest()
    return dumps({**manifest, "checksum": digest})


def read_sealed(path: Path) -> tuple[str | None, dict[str, Any]]:
    """Why what `sealed` wrote of `inventory` cannot be used, or None, and the manifest."""
    try:
        text, manifest = _json(path)
        stated = {key: value for key, value in manifest.items() if key != "checksum"}
        if sealed(stated) != text:
            return f"{path.name} was altered", {}
    except FileNotFoundError:
        return f"{path.name} is missing", {}
    except (OSError, ValueError) as error:
        return f"{path.name} cannot be read ({reason(error)})", {}
    broken = misfit(manifest, {"format": int, "files": dict}) or _misfit_entry(manifest["files"])
    return (None, manifest) if broken is None else (f"{path.name} has no valid {broken}", {})


def _misfit_entry(inventory: dict[str, Any]) -> str | None:
    kinds = {"bytes": int, "sha256": str}
    for name, entry in inventory.items():
        if not isinstance(entry, dict) or misfit(entry, kinds) or Path(name).name != name:
            return f"files.{name}"
    return None


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
