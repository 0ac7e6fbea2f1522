"""`metrics.jsonl`: one record per logged step, never twice and never lost by a resume."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from depth_memory.errors import UserError
from depth_memory.files import naming, reason
from depth_memory.train import files

Record = dict[str, Any]


class MetricsFile:
    """The records of a run up to some step, open for more. Final."""

    def __init__(self, path: Path, step: int):
        """Keep the records up to `step`; those after it were written by what a kill undid."""
        kept = [line for record, line in _lines(path) if record["step"] <= step]
        files.write_text(path, "".join(kept))
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Append a record; it holds its `step`."""
        with naming(self._path):
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()

    def sync(self) -> None:
        """Make every record durable: a checkpoint must not know steps that the records lack."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[Record]:
    """The records of a `metrics.jsonl`; a half-written last one is left out.

    Raises:
        UserError: It cannot be read, or a line is no record; names the line.
    """
    return [record for record, _ in _lines(path)]


def _lines(path: Path) -> list[tuple[Record, str]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from error
    lines = content.split(b"\n")[:-1]
    return [_parsed(line, f"{path}:{number}") for number, line in enumerate(lines, start=1)]


def _parsed(line: bytes, where: str) -> tuple[Record, str]:
    try:
        text = line.decode("utf-8")
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not a line of JSON: {reason(error)}") from error
    if not isinstance(record, dict) or not isinstance(record.get("step"), int):
        raise UserError(f"{where}: not a record of a run: it has no step")
    return record, f"{text}\n"
