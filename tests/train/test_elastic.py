"""A run may change its number of processes as it goes on: the same tokens, the same losses."""

from __future__ import annotations

import hashlib
import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from depth_memory.data import TokenData
from depth_memory.train import Run, read_metrics, train
from tests.train.processes import call, call_ranks
from tests.train.tiny import tiny_run

STEPS = 6


class Stop(Exception):
    pass


def train_until(run: Run, stop: int) -> dict[int, str]:
    """Train to the end, or up to but not with step `stop`; step -> this rank's token ids."""
    seen = {}
    batch = TokenData.batch

    def noted(self: TokenData, step: int, *, rows: int, **options) -> np.ndarray:
        found = batch(self, step, rows=rows, **options)
        if rows == run.rows:  # not the probe of the corpus
            if step == stop:
                raise Stop
            seen[step] = found.tolist()
        return found

    TokenData.batch = noted
    try:
        train(run, show=False)
    except Stop:
        pass
    finally:
        TokenData.batch = batch
    return {step: json.dumps(ids) for step, ids in seen.items()}


def hashes(ranks: list[dict[int, str]]) -> dict[int, str]:
    """Step -> hash of the token ids of all ranks, one below the other."""
    return {
        step: hashlib.sha256(
            np.concatenate([np.array(json.loads(rank[step])) for rank in ranks]).tobytes()
        ).hexdigest()
        for step in ranks[0]
    }


def losses(run: Run) -> list[float]:
    return [record["loss"] for record in read_metrics(run.out / "metrics.jsonl")]


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Run:
    # more rows than the probe of the corpus reads
    return tiny_run(corpus, tmp_path / "run", steps=STEPS, save_every=2, eval_every=0, rows=8)


def test_two_processes_then_one_then_two(run: Run) -> None:
    alone = replace(run, out=run.out.with_name("alone"))
    expected = hashes([call(train_until, alone, STEPS)])
    assert sorted(expected) == list(range(STEPS))
    assert len(set(expected.values())) == STEPS
    parts = [
        call_ranks(2, train_until, run, 2),
        [call(train_until, run, 4)],
        call_ranks(2, train_until, run, STEPS),
    ]
    found = [hashes(part) for part in parts]
    assert [sorted(part) for part in found] == [[0, 1], [2, 3], [4, 5]]
    assert found[0] | found[1] | found[2] == expected
    assert losses(run) == pytest.approx(losses(alone), abs=1e-6)
    description = json.loads((run.out / "run.json").read_text())
    assert [session["processes"] for session in description["sessions"]] == [2, 1, 2]
    assert [session["from_step"] for session in description["sessions"]] == [0, 2, 4]
