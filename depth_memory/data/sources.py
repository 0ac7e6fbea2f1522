"""Where text comes from: files and folders, read one document at a time.

A document is the unit of everything that follows: it is tokenised whole, it falls into one split,
it gets one separator. One document is in memory at a time, never a corpus.
"""

from __future__ import annotations

import gzip
import io
import itertools
import lzma
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depth_memory.data import hub
from depth_memory.data.records import (
    Line,
    jsonl_rows,
    jsonl_texts,
    parquet_rows,
    parquet_texts,
    pyarrow_parquet,
)
from depth_memory.errors import UserError
from depth_memory.files import reason

DOCUMENT_LINE = "<|endoftext|>"
"""A line of a plain-text file that ends one document and starts the next."""

OPENERS = {".gz": gzip.open, ".xz": lzma.open}
TEXT_SUFFIXES = (".txt", ".text", ".md")
JSONL_SUFFIXES = (".jsonl", ".ndjson")
PARQUET_SUFFIXES = (".parquet",)


@dataclass(frozen=True, kw_only=True, slots=True)
class Position:
    """How far a list of files is read: so many documents of the file of that index."""

    file: int = 0
    documents: int = 0


START = Position()


@dataclass(frozen=True, kw_only=True, slots=True)
class Document:
    """One text, and where it stands: `file:line`, or `file: row n` for Parquet."""

    text: str
    utf8: bytes
    where: str
    end: Position = START
    """How far the files are read with it."""
    share: float = 0.0
    """And what share of its own."""


@dataclass(frozen=True, kw_only=True)
class SourceFile:
    """A file to read, and its name in the manifest: relative to the source that the user gave."""

    path: Path
    """Where it lies, or below the folder of downloads will lie."""
    name: str
    remote: hub.RemoteFile | None = None
    """What to download, where it is on the hub."""


def find_files(sources: Iterable[str | Path]) -> list[SourceFile]:
    """The files behind `sources`, in a fixed order: as given, a folder's by their sorted paths.

    A folder is searched recursively for text (`.txt`, `.text`, `.md`), JSON lines (`.jsonl`,
    `.ndjson`) and Parquet (`.parquet`), the first two also as `.gz` and `.xz`; hidden files and
    folders are left out. A file that is named is read whatever its suffix, as text if unknown.
    A string `hf://datasets/...` stands for files on the hub (`hub.find`), where a folder's are its
    Parquet and its JSON lines.

    Raises:
        UserError: A source does not exist, or a folder has no such file.
    """
    files: list[SourceFile] = []
    for source in sources:
        files.extend(
            _remote_files(str(source)) if hub.is_remote(source) else _local_files(Path(source))
        )
    if not files:
        raise UserError("sources: got none; allowed: one or more files or directories")
    return files


def read_documents(
    files: Sequence[SourceFile],
    *,
    text_field: str,
    start: Position = START,
    downloads: Path | None = None,
) -> Iterator[Document]:
    """The documents of `files` in order, empty ones included.

    Plain text is cut at lines that hold only `<|endoftext|>`, and loses the line end before the
    cut and at the end of the file. JSON lines and Parquet hold one document per row, in the field
    `text_field`.

    Args:
        files: Local ones, or such on the hub, of which the next is fetched meanwhile.
        text_field: Name of the field or column.
        start: Where to begin; what comes before is passed over.
        downloads: Folder for files from the hub while they are read.

    Raises:
        UserError: Unreadable or damaged file, invalid UTF-8, a NUL character, a row without
            `text_field` or with anything but a string in it; the message names file and line.
    """
    skip = start.documents
    for index, path in enumerate(_present(files[start.file :], downloads), start.file):
        for count, (text, where, share) in enumerate(_texts(path, text_field, skip), skip + 1):
            end = Position(file=index, documents=count)
            yield _document(text, where, text_field, end, share)
        skip = 0


def read_rows(path: Path) -> Iterator[tuple[dict[str, Any], str]]:
    """The rows of a file of JSON lines or Parquet, and where each stands.

    Args:
        path: Parquet if its suffix says so, else JSON lines, also as `.gz` and `.xz`.

    Raises:
        UserError: Unreadable or damaged file, or a line that is not a JSON object; the message
            names file and line.
    """
    is_parquet = _suffix(path) in PARQUET_SUFFIXES
    rows = parquet_rows(path) if is_parquet else jsonl_rows(_lines(path), path)
    return ((row, where) for row, where, _ in rows)


def _remote_files(address: str) -> list[SourceFile]:
    root, found = hub.parse(address).root, hub.find(address, _is_rows)
    files = [
        SourceFile(path=Path(file.path), name=f"{root}/{file.path}", remote=file) for file in found
    ]
    if any(_suffix(file.path) in PARQUET_SUFFIXES for file in files):
        pyarrow_parquet()  # what it lacks is said before gigabytes are fetched
    return files


def _present(files: Sequence[SourceFile], downloads: Path | None) -> Iterator[Path]:
    """Where each file lies; one from the hub is fetched while the last is read, and then removed.

    Raises:
        UserError: A file is on the hub, and there is no folder for it.
    """
    if all(file.remote is None for file in files):
        yield from (file.path for file in files)
        return
    if downloads is None:
        raise UserError("sources: got one on the hub; allowed: local files, to be read repeatedly")

    def fetched(file: SourceFile) -> Path:
        return file.path if file.remote is None else hub.fetch(file.remote, downloads)

    with ThreadPoolExecutor(1) as pool:
        coming = pool.submit(fetched, files[0])
        for file, following in itertools.zip_longest(files, files[1:]):
            path = coming.result()
            if following is not None:
                coming = pool.submit(fetched, following)
            yield path
            if file.remote is not None:
                path.unlink()


def _local_files(source: Path) -> list[SourceFile]:
    try:
        is_folder = stat.S_ISDIR(source.stat().st_mode)
    except FileNotFoundError as error:
        raise UserError(f"sources: no such file or directory: {source}") from error
    except OSError as error:
        raise UserError(f"sources: cannot read {source}: {reason(error)}") from error
    return _folder_files(source) if is_folder else [_file(source, source.name)]


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
    return _suffix(path) in TEXT_SUFFIXES or _is_rows(path)


def _is_rows(path: Path) -> bool:
    return _suffix(path) in (*JSONL_SUFFIXES, *PARQUET_SUFFIXES)


def _texts(path: Path, text_field: str, skip: int) -> Iterator[tuple[object, str, float]]:
    """The texts of a file after the first `skip`, with place and share of the file."""
    if _suffix(path) in PARQUET_SUFFIXES:
        return parquet_texts(path, text_field, skip=skip)
    is_rows = _suffix(path) in JSONL_SUFFIXES
    lines = _lines(path)
    texts = jsonl_texts(lines, path, text_field) if is_rows else _plain_texts(lines, path)
    return itertools.islice(texts, skip, None)


def _plain_texts(lines: Iterable[Line], path: Path) -> Iterator[tuple[str, str, float]]:
    parts: list[str] = []
    start = 1
    for number, line, share in lines:
        if line.rstrip("\r\n") == DOCUMENT_LINE:
            yield _joined(parts), f"{path}:{start}", share
            parts, start = [], number + 1
        else:
            parts.append(line)
    if parts:
        yield _joined(parts), f"{path}:{start}", 1.0


def _joined(lines: list[str]) -> str:
    return "".join(lines).removesuffix("\n").removesuffix("\r")


def _lines(path: Path) -> Iterator[Line]:
    """Lines with their ends; decoded one by one, so that an error can name its line."""
    try:
        with path.open("rb") as raw, _unpacked(raw, path) as file:
            size = max(os.fstat(raw.fileno()).st_size, 1)
            for number, line in enumerate(file, start=1):
                text = _decoded(line, f"{path}:{number}")
                yield (
                    number,
                    text.removeprefix("\ufeff") if number == 1 else text,
                    raw.tell() / size,
                )
    except (OSError, EOFError, lzma.LZMAError, zlib.error) as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from error


def _unpacked(raw: io.BufferedReader, path: Path) -> io.BufferedIOBase:
    opener = OPENERS.get(path.suffix.lower())
    return opener(raw, "rb") if opener else raw


def _decoded(line: bytes, where: str) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        byte = line[error.start]
        raise UserError(f"{where}: byte {error.start + 1} (0x{byte:02x}) is not UTF-8") from error


def _document(text: object, where: str, field: str, end: Position, share: float) -> Document:
    if not isinstance(text, str):
        raise UserError(f"{where}: {field}: got {str(text)[:40]}; allowed: a string")
    if "\0" in text:
        raise UserError(f"{where}: {field}: got a NUL character; allowed: text without one")
    try:
        utf8 = text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise UserError(
            f"{where}: {field}: got half of a surrogate pair; allowed: UTF-8"
        ) from error
    return Document(text=text, utf8=utf8, where=where, end=end, share=share)
