"""LDM by kernels trains as by the reference: alone, over two processes, with recomputation."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from depth_memory.train import Run, read_metrics, train
from tests.train.processes import call, call_ranks
from tests.train.tiny import tiny_run

LDM = {
    "name": "ldm", "sites": "block", "window": 2, "key_dim": 2, "groups": 2,
    "read_rank": 4, "write_rank": 4,
}  # fmt: skip


def losses_of(run: Run) -> list[float]:
    train(run, show=False)
    return [record["loss"] for record in read_metrics(run.out / "metrics.jsonl")]


def form(run: Run, name: str, impl: str, **changes) -> Run:
    stream = {**LDM, "impl": impl}
    changes = {
        "steps": 2,
        "save_every": 0,
        "eval_every": 0,
        "length": 4,
        "rows": 2,
        "eval_windows": 1,
        **changes,
    }
    model = replace(run.model, stream=stream)
    return replace(run, out=run.out.with_name(name), model=model, **changes)


@pytest.mark.parametrize("ranks", [1, 2])
def test_kernels_train_as_the_reference(ranks: int, corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(corpus, tmp_path / "run")
    reference = call(losses_of, form(run, "reference", "reference"))
    kernels = form(run, "kernels", "triton", checkpointing=ranks == 2)
    found = call(losses_of, kernels) if ranks == 1 else call_ranks(2, losses_of, kernels)[0]
    assert reference[-1] != reference[0]
    assert found == pytest.approx(reference, abs=2e-6)
