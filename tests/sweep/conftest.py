from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.cli.conftest import command
from tests.train.tiny import write_corpus

__all__ = ["command"]

STEPS = 6


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(scope="session")
def description(corpus: Path) -> dict:
    """Four runs of the debug preset that take a moment each."""
    fields = {
        "data.directory": str(corpus),
        "device": "cpu",
        "steps": STEPS,
        "save_every": 2,
        "eval_every": 3,
        "eval_windows": 2,
    }
    return {
        "preset": "debug",
        "set": fields,
        "axes": {"stream": ["preln", "ldm"], "optim.lr": [0.001, 0.003]},
    }


@pytest.fixture
def write(tmp_path: Path) -> Callable[[dict], Path]:
    def write(description: dict) -> Path:
        path = tmp_path / "tiny.json"
        path.write_text(json.dumps(description))
        return path

    return write
