"""Formats with one document per row: JSON lines and Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from depth_memory.errors import UserError
from depth_memory.files import reason


def jsonl_rows(
    lines: Iterable[tuple[int, str]], path: Path
) -> Iterator[tuple[dict[str, Any], str]]:
    """The object in each row, and where it stands; blank lines are skipped.

    Raises:
        UserError: A line is not a JSON object.
    """
    for number, line in lines:
        if line.strip():
            where = f"{path}:{number}"
            yield _object(_parsed(line, where), where), where


def jsonl_texts(
    lines: Iterable[tuple[int, str]], path: Path, text_field: str
) -> Iterator[tuple[object, str]]:
    """The value of `text_field` in each row, and where it stands; blank lines are skipped.

    Raises:
        UserError: A line is not a JSON object, or has no such field.
    """
    for row, where in jsonl_rows(lines, path):
        if text_field not in row:
            names = ", ".join(sorted(map(str, row))) or "none"
            raise UserError(f"{where}: no field {text_field!r}; it has: {names}")
        yield row[text_field], where


def parquet_rows(path: Path, field: str | None = None) -> Iterator[tuple[dict[str, Any], str]]:
    """The rows, and where each stands; read batch by batch.

    Args:
        path: The file.
        field: The only column to read; all if not given.

    Raises:
        UserError: pyarrow is not installed, the file cannot be read, or it has no such column.
    """
    parquet = _pyarrow_parquet()
    try:
        with parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if field is not None and field not in columns:
                raise UserError(f"{path}: no column {field!r}; it has: {', '.join(columns)}")
            number = 0
            for batch in file.iter_batches(1024, columns=None if field is None else [field]):
                for row in batch.to_pylist():
                    number += 1
                    yield row, f"{path}: row {number}"
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable Parquet file: {reason(error)}") from error


def parquet_texts(path: Path, text_field: str) -> Iterator[tuple[object, str]]:
    """The values of the column `text_field`, and where each stands; read batch by batch.

    Raises:
        UserError: pyarrow is not installed, the file cannot be read, or it has no such column.
    """
    for row, where in parquet_rows(path, text_field):
        yield row[text_field], where


def _parsed(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not a line of JSON: {reason(error)}") from error


def _object(row: object, where: str) -> dict[str, Any]:
    if not isinstance(row, dict):
        raise UserError(f"{where}: got {type(row).__name__}; allowed: a JSON object")
    return row


def _pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        hint = "pip install 'depth-memory[data]'"
        raise UserError(f"sources: Parquet needs pyarrow; install it with {hint}") from error
    return pyarrow.parquet
