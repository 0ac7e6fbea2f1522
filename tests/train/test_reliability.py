"""A few of the kills that `python -m tests.reliability` does in number."""

from __future__ import annotations

import json
from pathlib import Path

from tests.reliability import KINDS, attempts


def test_after_a_kill_everything_is_as_without_it(tmp_path: Path) -> None:
    found = attempts(tmp_path, kills=4, seed=1)
    assert [attempt.kind for attempt in found] == list(KINDS)
    assert all(attempt.equal for attempt in found)


def test_the_page_on_training_says_what_was_recorded() -> None:
    root = Path(__file__).parents[2]
    found = json.loads((root / "results" / "reliability-cpu.json").read_text())
    assert sum(attempt["equal"] for attempt in found["attempts"]) == found["equal"] == 50
    assert len(found["attempts"]) == sum(found["kills"].values()) == 50
    assert "in 50\nof 50" in (root / "docs" / "training.md").read_text()
