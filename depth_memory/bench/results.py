"""The file of a benchmark: what was measured where, row by row, whole at every moment."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch

from depth_memory.errors import UserError, invalid
from depth_memory.files import dumps, read_json, reason, replaced_file
from depth_memory.train import provenance

Row = dict[str, Any]


class Results:
    """The rows of a file and what they have in common. Final."""

    def __init__(
        self,
        path: Path,
        *,
        configuration: Mapping[str, Any],
        device: torch.device,
        key: Sequence[str],
    ):
        """Begin a file, or go on with one that was made in the same way.

        Args:
            path: Of the file.
            configuration: What all rows have in common.
            device: Where they are measured.
            key: The fields that tell one row from another.

        Raises:
            UserError: The file holds something else, or cannot be written.
        """
        self.path, self._key = path, tuple(key)
        self.header = {
            "device": provenance.device_name(device),
            "versions": provenance.versions("triton"),
            "commit": provenance.commit(),
            "configuration": json.loads(json.dumps(configuration)),
        }
        self.rows: list[Row] = self._read()
        self._write()

    def find(self, row: Mapping[str, Any]) -> Row | None:
        """The row that measures the same as `row`, if there is one."""
        wanted = self._identity(row)
        return next((found for found in self.rows if self._identity(found) == wanted), None)

    def add(self, row: Row) -> None:
        """Add a row, in the place of one that measures the same."""
        wanted = self._identity(row)
        self.rows = [r for r in self.rows if self._identity(r) != wanted] + [row]
        self._write()

    def _identity(self, row: Mapping[str, Any]) -> tuple[Any, ...]:
        return tuple(row.get(name) for name in self._key)

    def _read(self) -> list[Row]:
        try:
            if not self.path.exists():
                return []
            document = read_json(self.path, "a file of results")
        except OSError as error:
            raise UserError(f"--out: cannot read {self.path}: {reason(error)}") from error
        except UserError as error:
            raise UserError(f"--out: {error}") from error
        rows = document.pop("rows", None)
        if not isinstance(rows, list) or not all(isinstance(row, dict) for row in rows):
            raise UserError(f"--out: {self.path}: not a file of results (it has no rows)")
        for name, value in self.header.items():
            if document.get(name) != value:
                raise self._other(name, document.get(name), value)
        return rows

    def _other(self, name: str, found: Any, own: Any) -> UserError:
        """The error for a file of another configuration, which names the first difference."""
        if isinstance(found, dict) and isinstance(own, dict):
            part = next(key for key in {**own, **found} if found.get(key) != own.get(key))
            name, found, own = f"{name}.{part}", found.get(part), own.get(part)
        allowed = f"{own!r}, as these rows would be measured; or another file"
        return invalid(f"--out: {self.path}: {name}", found, allowed)

    def _write(self) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with replaced_file(self.path) as partial:
                partial.write_text(dumps({**self.header, "rows": self.rows}))
        except OSError as error:
            raise UserError(f"--out: cannot write {self.path}: {reason(error)}") from error
