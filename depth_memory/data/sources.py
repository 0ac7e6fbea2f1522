"""Where text comes from: files and folders, read one document at a time.

A document is the unit of everything that follows: it is tokenised whole, it falls into one split,
it gets one separator. One document is in memory at a time, never a corpus.
"""

from __future__ import annotations

import gzip
import io
import lzma
import os
import stat
import zlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depth_memory.data.records import jsonl_rows, jsonl_texts, parquet_rows, parquet_texts
from depth_memory.errors import UserError
from depth_memory.files import reason

DOCUMENT_LINE = "<|endoftext|>"
"""A line of a plain-text file that ends one document and starts the next."""

OPENERS = {".gz": gzip.open, ".xz": lzma.open}
TEXT_SUFFIXES = (".txt", ".text", ".md")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text, and where it stands: `file:line`, or `file: row n` for Parquet."""

    text: str
    utf8: bytes
    where: str


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file to read, and its name in the manifest: relative to the source that the user gave."""

    path: Path
    name: str


def find_files(sources: Iterable[str | Path]) -> list[SourceFile]:
    """The files behind `sources`, in a fixed order: as given, a folder's by their sorted paths.

    A folder is searched recursively for text (`.txt`, `.text`, `.md`), JSON lines (`.jsonl`,
    `.ndjson`) and Parquet (`.parquet`), the first two also as `.gz` and `.xz`; hidden files and
    folders are left out. A file that is named is read whatever its suffix, as text if unknown.

    Raises:
        UserError: A source does not exist, or a folder has no such file.
    """
    files: list[SourceFile] = []
    for source in map(Path, sources):
        try:
            is_folder = stat.S_ISDIR(source.stat().st_mode)
        except FileNotFoundError as error:
            raise UserError(f"sources: no such file or directory: {source}") from error
        except OSError as error:
            raise UserError(f"sources: cannot read {source}: {reason(error)}") from error
        files.extend(_folder_files(source) if is_folder else [_file(source, source.name)])
    if not files:
        raise UserError("sources: got none; allowed: one or more files or directories")
    return files


def read_documents(files: Iterable[SourceFile], *, text_field: str) -> Iterator[Document]:
    """The documents of `files` in order, empty ones included.

    Plain text is cut at lines that hold only `<|endoftext|>`, and loses the line end before the
    cut and at the end of the file. JSON lines and Parquet hold one document per row, in the field
    `text_field`.

    Raises:
        UserError: Unreadable or damaged file, invalid UTF-8, a NUL character, a row without
            `text_field` or with anything but a string in it; the message names file and line.
    """
    for file in files:
        for text, where in _texts(file.path, text_field):
            yield _document(text, where, text_field)


def read_rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The rows of a file of JSON lines or Parquet, and where each stands.

    Args:
        path: Parquet if its suffix says so, else JSON lines, also as `.gz` and `.xz`.

    Raises:
        UserError: Unreadable or damaged file, or a line that is not a JSON object; the message
            names file and line.
    """
    if _suffix(path) in PARQUET_SUFFIXES:
        return parquet_rows(path)
    return jsonl_rows(_lines(path), path)


def _file(path: Path, name: str) -> SourceFile:
    if path.exists() and not path.is_file():
        # a pipe, for one, would wait for ever, and gives its text only once
        raise UserError(f"sources: got {path}, which is no regular file; allowed: files, folders")
    return SourceFile(path=path, name=name)


def _folder_files(folder: Path) -> list[SourceFile]:
    names = sorted(name for name in _walked(folder) if _is_known(Path(name)))
    if not names:
        raise UserError(f"sources: no text, JSON lines or Parquet file in {folder}")
    return [_file(folder / name, name) for name in names]


def _walked(folder: Path) -> Iterator[str]:
    """The files below `folder`, as paths from there, but for what is hidden."""

    def refuse(error: OSError) -> None:
        raise UserError(f"sources: cannot list {error.filename}: {reason(error)}") from error

    for parent, folders, files in os.walk(folder, onerror=refuse):
        folders[:] = [name for name in folders if not name.startswith(".")]
        for name in files:
            if not name.startswith("."):
                yield Path(parent, name).relative_to(folder).as_posix()


def _suffix(path: Path) -> str:
    """The suffix that names the format: `.jsonl` for `a.jsonl.xz`."""
    return Path(path.stem).suffix.lower() if path.suffix.lower() in OPENERS else path.suffix.lower()


def _is_known(path: Path) -> bool:
    return _suffix(path) in (*TEXT_SUFFIXES, *JSONL_SUFFIXES, *PARQUET_SUFFIXES)


def _texts(path: Path, text_field: str) -> Iterator[tuple[object, str]]:
    if _suffix(path) in PARQUET_SUFFIXES:
        return parquet_texts(path, text_field)
    lines = _lines(path)
    if _suffix(path) in JSONL_SUFFIXES:
        return jsonl_texts(lines, path, text_field)
    return _plain_texts(lines, path)


def _plain_texts(lines: Iterable[tuple[int, str]], path: Path) -> Iterator[tuple[str, str]]:
    parts: list[str] = []
    start = 1
    for number, line in lines:
        if line.rstrip("\r\n") == DOCUMENT_LINE:
            yield _joined(parts), f"{path}:{start}"
            parts, start = [], number + 1
        else:
            parts.append(line)
    if parts:
        yield _joined(parts), f"{path}:{start}"


def _joined(lines: list[str]) -> str:
    return "".join(lines).removesuffix("\n").removesuffix("\r")


def _lines(path: Path) -> Iterator[tuple[int, str]]:
    """Numbered lines with their ends; decoded one by one, so that an error can name its line."""
    try:
        with _open(path) as file:
            for number, line in enumerate(file, start=1):
                text = _decoded(line, f"{path}:{number}")
                yield number, text.removeprefix("\ufeff") if number == 1 else text
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from error


def _open(path: Path) -> io.BufferedIOBase:
    opener = OPENERS.get(path.suffix.lower())
    return opener(path, "rb") if opener else path.open("rb")


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise UserError(f"{where}: byte {error.start + 1} (0x{byte:02x}) is not UTF-8") from error


def _document(text: object, where: str, field: str) -> Document:
    if not isinstance(text, str):
        raise UserError(f"{where}: {field}: got {str(text)[:40]}; allowed: a string")
    if "\0" in text:
        raise UserError(f"{where}: {field}: got a NUL character; allowed: text without one")
    try:
        return Document(text=text, utf8=text.encode("utf-8"), where=where)
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: {field}: got half of a surrogate pair; allowed: UTF-8"
        ) from error
