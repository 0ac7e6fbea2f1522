"""Formats with one document per row: JSON lines and Parquet."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from depth_memory.errors import UserError
from depth_memory.files import reason


def jsonl_texts(
    lines: Iterable[tuple[int, str]], path: Path, text_field: str
) -> Iterator[tuple[object, str]]:
    """The value of `text_field` in each row, and where it stands; blank lines are skipped.

    Raises:
        UserError: A line is not a JSON object, or has no such field.
    """
    for number, line in lines:
        if line.strip():
            where = f"{path}:{number}"
            yield _field(_parsed(line, where), text_field, where), where


def parquet_texts(path: Path, text_field: str) -> Iterator[tuple[object, str]]:
    """The values of the column `text_field`, and where each stands; read batch by batch.

    Raises:
        UserError: pyarrow is not installed, the file cannot be read, or it has no such column.
    """
    parquet = _pyarrow_parquet()
    try:
        with parquet.ParquetFile(path) as file:
            columns = file.schema_arrow.names
            if text_field not in columns:
                raise UserError(f"{path}: no column {text_field!r}; it has: {', '.join(columns)}")
            row = 0
            for batch in file.iter_batches(batch_size=1024, columns=[text_field]):
                for value in batch.column(0).to_pylist():
                    row += 1
                    yield value, f"{path}: row {row}"
    except UserError:
        raise
    except (OSError, ValueError) as error:
        raise UserError(f"{path}: not a readable Parquet file: {reason(error)}") from error


def _parsed(line: str, where: str) -> object:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not a line of JSON: {reason(error)}") from error


def _field(row: object, text_field: str, where: str) -> object:
    if not isinstance(row, dict):
        raise UserError(f"{where}: got {type(row).__name__}; allowed: a JSON object")
    if text_field not in row:
        names = ", ".join(sorted(map(str, row))) or "none"
        raise UserError(f"{where}: no field {text_field!r}; it has: {names}")
    return row[text_field]


def _pyarrow_parquet() -> Any:
    try:
        import pyarrow.parquet
    except ImportError as error:
        hint = "pip install 'depth-memory[data]'"
        raise UserError(f"sources: Parquet needs pyarrow; install it with {hint}") from error
    return pyarrow.parquet
