"""Formats with one document per row: JSON lines and Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from depth_memory.errors import UserError
from depth_memory.files import reason

Line = tuple[int, str, float]
"""Its number, its text, and the share of the file that is read with it."""


def jsonl_rows(lines: Iterable[Line], path: Path) -> Iterator[tuple[dict[str, Any], str, float]]:
    """The object in each row, where it stands, and the share of the file that is read with it.

    Blank lines are skipped.

    Raises:
        UserError: A line is not a JSON object.
    """
    for number, line, share in lines:
        if line.strip():
            where = f"{path}:{number}"
            yield _object(_parsed(line, where), where), where, share


def jsonl_texts(
    lines: Iterable[Line], path: Path, text_field: str
) -> Iterator[tuple[object, str, float]]:
    """The value of `text_field` in each row, with place and share as in `jsonl_rows`.

    Raises:
        UserError: A line is not a JSON object, or has no such field.
    """
    for row, where, share in jsonl_rows(lines, path):
        if text_field not in row:
            names = ", ".join(sorted(map(str, row))) or "none"
            raise UserError(f"{where}: no field {text_field!r}; it has: {names}")
        yield row[text_field], where, share


def parquet_rows(
    path: Path, field: str | None = None, *, skip: int = 0
) -> Iterator[tuple[dict[str, Any], str, float]]:
    """The rows, where each stands, and the share of the rows so far; read batch by batch.

    Args:
        path: The file.
        field: The only column to read; all if not given.
        skip: How many of the first rows are left out, and as far as possible not read.

    Raises:
        UserError: pyarrow is not installed, the file cannot be read, or it has no such column.
    """
    parquet = pyarrow_parquet()
    try:
        with parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if field is not None and field not in columns:
                raise UserError(f"{path}: no column {field!r}; it has: {', '.join(columns)}")
            groups, number = _groups_after(file.metadata, skip)
            wanted = None if field is None else [field]
            for batch in file.iter_batches(1024, row_groups=groups, columns=wanted):
                for row in batch.to_pylist():
                    number += 1
                    if number > skip:
                        yield row, f"{path}: row {number}", number / file.metadata.num_rows
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable Parquet file: {reason(error)}") from error


def parquet_texts(
    path: Path, text_field: str, *, skip: int = 0
) -> Iterator[tuple[object, str, float]]:
    """The values of the column `text_field`, with place and share as in `parquet_rows`.

    Raises:
        UserError: pyarrow is not installed, the file cannot be read, or it has no such column.
    """
    for row, where, share in parquet_rows(path, text_field, skip=skip):
        yield row[text_field], where, share


def _groups_after(metadata: Any, skip: int) -> tuple[list[int], int]:
    """The row groups that hold more than the first `skip` rows, and how many come before them."""
    before = 0
    for group in range(metadata.num_row_groups):
        size = metadata.row_group(group).num_rows
        if before + size > skip:
            return list(range(group, metadata.num_row_groups)), before
        before += size
    return [], before


def _parsed(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not a line of JSON: {reason(error)}") from error


def _object(row: object, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"{where}: got {type(row).__name__}; allowed: a JSON object")
    return row


def pyarrow_parquet() -> Any:
    """The reader of Parquet.

    Raises:
        UserError: It is not installed; names the extra.
    """
    try:
        import pyarrow.parquet
    except ImportError as error:
        hint = "pip install 'depth-memory[data]'"
        raise UserError(f"sources: Parquet needs pyarrow; install it with {hint}") from error
    return pyarrow.parquet
