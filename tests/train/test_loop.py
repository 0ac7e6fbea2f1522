"""A whole run: it learns, leaves what it promises, and nothing else."""

from __future__ import annotations

import errno
import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from depth_memory.data import load_tokenizer, open_split
from depth_memory.errors import UserError
from depth_memory.train import DataSpec, Run, evaluate, files, load_run, read_metrics, train
from depth_memory.train import metrics as metrics_module
from tests.train.tiny import tiny_run

VALIDATION = {"validation_loss", "bits_per_byte"}


@pytest.fixture(scope="module", params=["float32", "bfloat16"])
def run(request: pytest.FixtureRequest, corpus: Path, tmp_path_factory) -> Run:
    out = tmp_path_factory.mktemp(request.param) / "run"
    run = tiny_run(corpus, out, precision=request.param)
    train(run, show=False)
    return run


def test_the_loss_falls(run: Run) -> None:
    records = read_metrics(run.out / "metrics.jsonl")
    assert records[-1]["loss"] < records[0]["loss"] - 0.5
    assert [record["step"] for record in records] == list(range(1, 13))
    assert {tuple(sorted(VALIDATION & record.keys())) for record in records[:5]} == {()}
    assert [r["step"] for r in records if r.keys() >= VALIDATION] == [6, 12]
    assert all(record["tokens"] == run.rows * run.length for record in records)


def test_the_model_is_one_of_transformers_and_evaluates_the_same(run: Run, corpus: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(run.out / "model")
    assert str(model.dtype) == f"torch.{run.precision}"
    split = open_split(corpus, "validation")
    found = evaluate(model, split, length=run.length, rows=run.rows, windows=run.eval_windows)
    assert found.loss == read_metrics(run.out / "metrics.jsonl")[-1]["validation_loss"]
    split.check_tokenizer(load_tokenizer(run.out / "model"))


def test_transformers_reads_the_tokenizer(run: Run) -> None:
    ours = load_tokenizer(run.out / "model")
    theirs = AutoTokenizer.from_pretrained(run.out / "model")
    text = "the old sea, é!"
    assert theirs(text)["input_ids"] == ours.encode(text).tolist()
    assert theirs.eos_token_id == ours.end_id
    assert (
        json.loads((run.out / "model" / "config.json").read_text())["eos_token_id"] == ours.end_id
    )


def test_a_checkpoint_loads_as_a_model_too(run: Run) -> None:
    path = run.out / "checkpoints" / "step-00000012"
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32)
    final = AutoModelForCausalLM.from_pretrained(run.out / "model", dtype=torch.float32)
    tokens = torch.arange(20)[None]
    tolerance = 0.0 if run.precision == "float32" else 0.05
    with torch.no_grad():
        difference = model(tokens).logits - final(tokens).logits
    assert difference.abs().max() <= tolerance


def test_the_configuration_and_its_circumstances_are_saved(run: Run) -> None:
    assert load_run(run.out) == run
    (session,) = json.loads((run.out / "run.json").read_text())["sessions"]
    assert session["from_step"] == 0
    assert session["versions"]["torch"] == torch.__version__
    assert session["parameters"] > 0
    assert "commit" in session


def test_a_finished_run_finds_nothing_to_do(run: Run) -> None:
    before = (
        (run.out / "metrics.jsonl").read_bytes(),
        (run.out / "model" / "config.json").read_bytes(),
    )
    assert train(run, show=False).step == run.steps
    after = (
        (run.out / "metrics.jsonl").read_bytes(),
        (run.out / "model" / "config.json").read_bytes(),
    )
    assert after == before


def test_no_global_state_is_left_behind(corpus: Path, tmp_path: Path) -> None:
    torch.manual_seed(5)
    before = torch.random.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()
    train(tiny_run(corpus, tmp_path / "run", steps=2), show=False)
    after = torch.random.get_rng_state(), torch.get_num_threads(), torch.get_default_dtype()
    assert torch.equal(after[0], before[0])
    assert after[1:] == before[1:]


def test_records_can_be_rarer(corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(corpus, tmp_path / "run", steps=7, log_every=3, eval_every=5, save_every=0)
    train(run, show=False)
    steps = [record["step"] for record in read_metrics(run.out / "metrics.jsonl")]
    assert steps == [3, 5, 6, 7]
    assert [p.name for p in (run.out / "checkpoints").iterdir()] == ["step-00000007"]


def test_recomputed_activations_change_nothing(corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(corpus, tmp_path / "plain", steps=3)
    again = replace(run, out=tmp_path / "recomputed", checkpointing=True)
    models = []
    for each in (run, again):
        train(each, show=False)
        models.append((each.out / "model" / "model.safetensors").read_bytes())
    assert models[0] == models[1]


def test_bad_data_is_refused_before_anything_is_written(corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(corpus, tmp_path / "run")
    with pytest.raises(UserError, match="not a prepared corpus"):
        train(replace(run, data=DataSpec(directory=tmp_path / "nowhere")))
    with pytest.raises(UserError, match=r"steps: got 0; allowed: at least 1"):
        train(replace(run, steps=0))
    assert not run.out.exists()


def test_a_disk_that_fills_under_the_metrics_is_one_line(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(self: object, record: dict) -> None:
        raise OSError(errno.ENOSPC, "No space left on device", "metrics.jsonl")

    monkeypatch.setattr(metrics_module.MetricsFile, "write", refuse)
    with pytest.raises(UserError, match=r"^out: cannot use metrics.jsonl: No space left on device"):
        train(tiny_run(corpus, tmp_path / "run"), show=False)


def test_a_refusal_elsewhere_is_not_put_down_to_out(tmp_path: Path) -> None:
    for name, line in (("run/a", "out: cannot use "), ("cache/a", "cannot use ")):
        file = str(tmp_path / name)
        error = PermissionError(errno.EACCES, "Permission denied", file)
        with pytest.raises(UserError) as caught, files.refusals_explained(tmp_path / "run"):
            raise error
        assert str(caught.value) == f"{line}{file}: Permission denied"
