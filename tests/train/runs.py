"""Short runs, and what they leave: shared by the tests of kills and of resuming."""

from __future__ import annotations

import json
from pathlib import Path

from depth_memory.train import Run, read_metrics, train
from tests.train.tiny import tiny_run

STEPS = 6


def short(corpus: Path, out: Path, **changes) -> Run:
    sizes = {"steps": STEPS, "save_every": 2, "eval_every": 3, "keep": 1, **changes}
    return tiny_run(corpus, out, **sizes)


def finish(run: Run) -> None:
    train(run, show=False)


def weights(out: Path) -> bytes:
    return (out / "model" / "model.safetensors").read_bytes()


MEASURED = {"tokens_per_second", "mfu", "peak_memory_bytes", "seconds_to_first_step"}


def curve(out: Path) -> list[tuple]:
    """What `metrics.jsonl` holds, without what was measured."""
    return [
        tuple(value for key, value in record.items() if key not in MEASURED)
        for record in read_metrics(out / "metrics.jsonl")
    ]


def sessions(out: Path) -> list[int]:
    return [s["from_step"] for s in json.loads((out / "run.json").read_text())["sessions"]]
