"""HSDP: copies of a spread network train as one process does."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from depth_memory.errors import UserError
from depth_memory.train import Run, read_metrics, train
from tests.train.processes import call, call_ranks
from tests.train.tiny import tiny_run


def losses(run: Run) -> list[float]:
    return [record["loss"] for record in read_metrics(run.out / "metrics.jsonl")]


def finish(run: Run) -> None:
    train(run, show=False)


def refused(run: Run) -> str:
    with pytest.raises(UserError) as error:
        train(run, show=False)
    return str(error.value)


@pytest.fixture(scope="module")
def one(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("one") / "run"
    run = tiny_run(corpus, out, steps=3, eval_every=0)
    call(finish, run)
    return run


def test_copies_train_as_one_process(one: Run, tmp_path: Path) -> None:
    run = replace(one, out=tmp_path / "run", replicas=2)
    # two copies on two processes each, and then on one each
    call_ranks(4, finish, replace(run, steps=2))
    call_ranks(2, finish, run)
    assert losses(run) == pytest.approx(losses(one), abs=1e-6)


def test_copies_that_do_not_divide_the_processes_are_refused(one: Run, tmp_path: Path) -> None:
    run = replace(one, out=tmp_path / "run", replicas=3)
    message = "replicas: got 3; allowed: a divisor of the number of processes, which is "
    assert refused(run) == f"{message}1"
    assert call_ranks(2, refused, run) == [f"{message}2"] * 2
    assert not run.out.exists()
