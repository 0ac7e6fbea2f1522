"""A few of the kills that `python -m tests.reliability` does in number."""

from __future__ import annotations

from pathlib import Path

from tests.reliability import KINDS, attempts


def test_after_a_kill_everything_is_as_without_it(tmp_path: Path) -> None:
    found = attempts(tmp_path, kills=4, seed=1)
    assert [attempt.kind for attempt in found] == list(KINDS)
    assert all(attempt.equal for attempt in found)
