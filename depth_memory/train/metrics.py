"""`metrics.jsonl`: one record per logged step, never twice and never lost by a resume."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from depth_memory.errors import UserError, invalid
from depth_memory.files import misfit, naming, reason
from depth_memory.train import files

Record = dict[str, Any]


class MetricsFile:
    """The records of a run up to some step, open for more; `count` are there. Final."""

    def __init__(self, path: Path, step: int):
        """Keep the records up to `step`; those after it were written by what a kill undid."""
        kept = [line for record, line in _lines(path) if record["step"] <= step]
        files.write_text(path, "".join(kept))
        self.count = len(kept)
        self._path = path
        self._file = path.open("a", encoding="utf-8")

    def write(self, record: Record) -> None:
        """Append a record; it holds its `step`."""
        with naming(self._path):
            self._file.write(json.dumps(record, allow_nan=False) + "\n")
            self._file.flush()
        self.count += 1

    def sync(self) -> None:
        """Make every record durable: a checkpoint must not know steps that the records lack."""
        os.fsync(self._file.fileno())

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_metrics(path: Path) -> list[Record]:
    """The records of a `metrics.jsonl`; a half-written last one is left out.

    Raises:
        UserError: It cannot be read, or a line is no record that follows the last; names the line.
    """
    return [record for record, _ in _lines(path)]


def check_complete(path: Path, records: list[Record], step: int, expected: int | None) -> None:
    """Refuse to go on from a checkpoint whose records are gone: they were durable before it.

    Args:
        path: Of the records.
        records: All there are.
        step: Of the checkpoint.
        expected: How many it counted; None for one of a version that did not count.

    Raises:
        UserError: There are others; says how many are missing.
    """
    there = sum(record["step"] <= step for record in records)
    if expected is not None and there != expected:
        found = f"{path}: has {there} of {expected} records up to step {step}, to go on from there"
        raise UserError(f"{found}; bring it back, or begin again in a new directory")


def _lines(path: Path) -> list[tuple[Record, str]]:
    try:
        content = path.read_bytes()
    except FileNotFoundError:
        return []
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from error
    lines = content.split(b"\n")[:-1]
    found, last = [], 0
    for number, line in enumerate(lines, start=1):
        record, text = _parsed(line, f"{path}:{number}")
        if record["step"] <= last:
            allowed = f"a whole number above {last}, the step before"
            raise invalid(f"{path}:{number}: step", record["step"], allowed)
        last = record["step"]
        found.append((record, text))
    return found


def _parsed(line: bytes, where: str) -> tuple[Record, str]:
    try:
        text = line.decode("utf-8")
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UserError(f"{where}: not a line of JSON: {reason(error)}") from error
    if not isinstance(record, dict) or misfit(record, {"step": int}):
        raise UserError(f"{where}: not a record of a run: it has no step")
    return record, f"{text}\n"
