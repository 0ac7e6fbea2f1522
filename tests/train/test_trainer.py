"""Our models in transformers' Trainer, as it is: the steps of our own loop, and an exact resume."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, Trainer, TrainingArguments
from transformers.utils import logging

from depth_memory.data import open_split
from depth_memory.train import OptimSpec, Run, ScheduleSpec, read_metrics, train
from depth_memory.train.build import build_model
from depth_memory.train.optim import build
from depth_memory.train.schedule import factor
from tests.train.tiny import MODEL, tiny_run

pytestmark = pytest.mark.filterwarnings("ignore")  # transformers' own, in any of its versions

STEPS = 4
LDM: dict[str, Any] = dict(vars(MODEL.stream), name="ldm")
CASES = {
    "preln": ({"name": "preln"}, "adamw"),
    "mhc": ({"name": "mhc", "lanes": 2, "iterations": 3}, "adamw"),
    "block_attnres": ({"name": "block_attnres", "blocks": 2}, "adamw"),
    "ldm": (LDM, "adamw"),
    "ldm by muon": (LDM, "muon"),
}


class Batches(torch.utils.data.IterableDataset):
    """The rows that our loop takes, in its order."""

    def __init__(self, run: Run) -> None:
        self.run = run

    def __iter__(self):
        run, split = self.run, open_split(self.run.data.directory, "train")
        for step in range(run.steps):
            for row in split.batch(step, rows=run.rows, length=run.length, seed=run.seed):
                ids = torch.from_numpy(row)
                # the Trainer counts the first label too, though nothing predicts it
                labels = torch.cat([torch.tensor([-100]), ids[1:]])
                yield {"input_ids": ids, "labels": labels}


@pytest.fixture(autouse=True)
def _quiet():
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    yield
    logging.set_verbosity(level)


def run_of(corpus: Path, out: Path, case: str) -> Run:
    stream, optimizer = CASES[case]
    return tiny_run(
        corpus,
        out,
        model=replace(MODEL, stream=stream),
        optim=OptimSpec(name=optimizer, lr=3e-3),
        schedule=ScheduleSpec(warmup=2),
        steps=STEPS,
        rows=2,
        length=16,
        eval_every=0,
        save_every=0,
    )


def trainer(run: Run, out: Path, **changes) -> Trainer:
    """The Trainer with the optimiser and the schedule of a run."""
    torch.manual_seed(run.seed)
    model = build_model(run.model, 257)
    optimizer = build(dict(model.named_parameters()), run.optim)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: factor(run.schedule, min(step, run.steps - 1), run.steps)
    )
    arguments = TrainingArguments(
        str(out),
        max_steps=run.steps,
        per_device_train_batch_size=run.rows,
        max_grad_norm=run.optim.clip,
        save_steps=2,
        logging_steps=1,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
        **{"gradient_checkpointing": True, **changes},
    )
    return Trainer(model, arguments, train_dataset=Batches(run), optimizers=(optimizer, schedule))


@pytest.mark.parametrize("case", CASES)
def test_the_trainer_takes_the_steps_of_our_loop_and_resumes_exactly(corpus, tmp_path, case):
    run = run_of(corpus, tmp_path / "ours", case)
    train(run, show=False)
    ours = AutoModelForCausalLM.from_pretrained(run.out / "model").state_dict()
    theirs = trainer(run, tmp_path / "theirs")
    theirs.train()
    losses = [entry["loss"] for entry in theirs.state.log_history if "loss" in entry]
    expected = [record["loss"] for record in read_metrics(run.out / "metrics.jsonl")]
    assert losses == pytest.approx(expected, abs=1e-4)  # some versions round to four digits
    assert losses[-1] < losses[0]
    # Muon's iteration rounds each update, of about the learning rate, to bfloat16
    allowed = STEPS * run.optim.lr * 2**-6 if run.optim.name == "muon" else 1e-5
    for name, value in theirs.model.state_dict().items():
        assert torch.allclose(value, ours[name], rtol=1e-4, atol=allowed), name
    resumed = trainer(run, tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=str(tmp_path / "theirs" / "checkpoint-2"))
    assert resumed.state.global_step == STEPS
    for name, value in resumed.model.state_dict().items():
        assert torch.equal(value, theirs.model.state_dict()[name]), name
    resumed.save_model(str(tmp_path / "saved"))
    saved = AutoModelForCausalLM.from_pretrained(tmp_path / "saved")
    ids = torch.arange(20)[None]
    assert torch.equal(saved(ids).logits, resumed.model.eval()(ids).logits)
