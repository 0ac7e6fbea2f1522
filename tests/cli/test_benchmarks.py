"""`evaluate --tasks`: models side by side, one table, one JSON, mistakes in one line."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel

from depth_memory import data, evals
from tests.cli.conftest import assert_refused
from tests.evals.examples import HUB, write

NAMES = "wikitext,lambada,piqa,siqa"


@pytest.fixture(scope="session")
def task_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write(tmp_path_factory.mktemp("task-data"))


def scores(result: dict[str, Any], task: str) -> dict[str, float]:
    return {name: found["value"] for name, found in result["tasks"][task]["scores"].items()}


def test_several_models_stand_side_by_side(command, run, task_data, tmp_path):
    models, out = [run, run / "checkpoints" / "step-00000005"], tmp_path / "new" / "scores.json"
    argv = ["evaluate", *models, "--tasks", NAMES, "--task-data", task_data, "--out", out]
    code, table, err = command(*argv)
    assert code == 0, err
    header, *rows = [line.split() for line in table.splitlines()]
    assert header == ["task", "metric", "documents", *map(str, models)]
    assert [row[0] for row in rows] == ["wikitext"] * 3 + ["lambada"] * 2 + ["piqa"] * 2 + ["siqa"]
    assert all(row.count("±") == 2 for row in rows)
    results = json.loads(out.read_text())
    assert [result["model"] for result in results] == list(map(str, models))
    assert {result["stream"] for result in results} == {"ldm"}
    assert scores(results[0], "wikitext") != scores(results[1], "wikitext")
    for row in rows:
        task, metric, documents = row[:3]
        assert documents == str(len(HUB[task]))
        shown = f"{scores(results[0], task)[metric]:.6f}"[:4]
        assert row[3].startswith(shown.rstrip("."))


def test_json_is_all_of_standard_output(command, run, task_data):
    argv = ["evaluate", run, "--tasks", "piqa", "--task-data", task_data, "--json"]
    code, out, err = command(*argv)
    assert code == 0
    (result,) = json.loads(out)
    task = result["tasks"]["piqa"]
    assert task["data"] == str(task_data / "piqa.jsonl")
    assert (task["documents"], task["truncated"], task["version"]) == (2, 0, 1.0)
    assert len(task["sha256"]) == 64
    assert (result["batch"], result["dtype"]) == (1, "float32")
    assert {"torch", "lm_eval", "commit"} <= set(result["versions"])
    assert err.splitlines()[0] == f"piqa: 2 documents of {task_data / 'piqa.jsonl'}"
    assert err.splitlines()[1].startswith(f"{run}: piqa: acc ")
    assert len(err.splitlines()) == 2


def test_it_agrees_with_the_library(command, run, task_data):
    options = ["--batch", 3, "--length", 32, "--limit", 1, "--json"]
    argv = ["evaluate", run, "--tasks", "wikitext", "--task-data", task_data, *options]
    (result,) = json.loads(command(*argv).out)
    from transformers import AutoModelForCausalLM

    import depth_memory.models  # noqa: F401

    model = AutoModelForCausalLM.from_pretrained(run / "model")
    tokenizer = evals.load_tokenizer(run / "model")
    tasks = evals.load_tasks(["wikitext"], task_data)
    found = evals.evaluate(model, tokenizer, tasks, length=32, limit=1)["wikitext"]
    expected = {metric: score.value for metric, score in found.scores.items()}
    assert scores(result, "wikitext") == pytest.approx(expected, rel=1e-4)
    assert result["tasks"]["wikitext"]["documents"] == found.documents == 1
    assert result["context"] == 32


def test_the_validation_loss_can_stand_among_the_tasks(command, run, task_data):
    plain = ["evaluate", run, "--windows", 2, "--json"]
    (expected,) = json.loads(command(*plain).out)
    argv = [*plain, "--tasks", "piqa,validation", "--task-data", task_data]
    (result,) = json.loads(command(*argv).out)
    assert list(result["tasks"]) == ["piqa", "validation"]
    names = ("loss", "token_perplexity", "bits_per_byte")
    assert scores(result, "validation") == {name: expected[name] for name in names}
    alone = command("evaluate", run, "--windows", 2, "--tasks", "validation")
    assert alone.code == 0
    assert [line.split()[:2] for line in alone.out.splitlines()[1:]] == [
        ["validation", name] for name in names
    ]


def test_a_model_of_another_architecture(command, run, task_data, tmp_path):
    torch.manual_seed(0)
    size = {"vocab_size": 320, "n_positions": 32, "n_embd": 16, "n_layer": 1, "n_head": 2}
    GPT2LMHeadModel(GPT2Config(**size)).save_pretrained(tmp_path / "gpt")
    shutil.copy(run / "model" / "tokenizer.json", tmp_path / "gpt")
    argv = ["evaluate", tmp_path / "gpt", run, "--tasks", "all", "--task-data", task_data]
    code, out, err = command(*argv, "--json")
    assert code == 0, err
    gpt, own = json.loads(out)
    assert list(gpt["tasks"]) == list(own["tasks"]) == list(evals.TASKS)
    assert (gpt["architecture"], gpt["stream"]) == ("GPT2LMHeadModel", None)
    assert gpt["context"] == 32
    cut = gpt["tasks"]["siqa"]["truncated"]
    assert cut > 0
    assert f"siqa: {cut} contexts were cut short" in err


def test_weights_can_be_cast(command, run, task_data):
    argv = ["evaluate", run, "--tasks", "piqa", "--task-data", task_data, "--json"]
    (result,) = json.loads(command(*argv, "--dtype", "bfloat16").out)
    assert result["dtype"] == "bfloat16"
    plain = ["evaluate", run, "--windows", 2, "--json"]
    (loss,), (cast,) = (json.loads(command(*plain, *o).out) for o in ([], ["--dtype", "bfloat16"]))
    assert (loss["dtype"], cast["dtype"]) == ("float32", "bfloat16")
    assert loss["loss"] != cast["loss"] == pytest.approx(loss["loss"], rel=1e-2)
    among = [*plain, "--tasks", "validation", "--dtype", "bfloat16"]
    (result,) = json.loads(command(*among).out)
    assert scores(result, "validation")["loss"] == cast["loss"]


WITHOUT_EFFECT = {
    "limit": (["--limit", "2"], "--limit: got '2'; allowed: it with benchmarks in --tasks"),
    "batch": (
        ["--tasks", "validation", "--batch", "2"],
        "--batch: got '2'; allowed: it with benchmarks in --tasks",
    ),
    "task data": (["--task-data", "a"], "--task-data: got 'a'; allowed: it with benchmarks in"),
    "windows": (
        ["--tasks", "piqa", "--windows", "2"],
        "--windows: got '2'; allowed: it with validation in --tasks",
    ),
    "data": (["--tasks", "piqa", "--data", "a"], "--data: got 'a'; allowed: it with validation in"),
}


@pytest.mark.parametrize("case", WITHOUT_EFFECT)
def test_an_option_that_would_change_nothing_is_refused(command, run, case):
    argv, message = WITHOUT_EFFECT[case]
    assert_refused(command("evaluate", run, *argv), message)


def tasks_of(folder: Path, *names: str) -> list[object]:
    return ["--tasks", ",".join(names), "--task-data", folder]


def test_mistakes_are_told_before_anything_is_computed(command, run, task_data, tmp_path):
    unknown = command("evaluate", run, "--tasks", "piqa,chess")
    assert_refused(unknown, "--tasks: got 'chess'; allowed: validation, all, wikitext, lambada, ")
    assert_refused(command("evaluate", run, "--tasks", ","), "--tasks: got ','; allowed: validatio")
    missing = command("evaluate", run, *tasks_of(tmp_path / "nowhere", "piqa"))
    assert_refused(missing, f"--task-data: got '{tmp_path / 'nowhere'}'; allowed: a directory")
    both = command("evaluate", run, tmp_path, *tasks_of(task_data, "piqa"))
    assert_refused(both, f"model: got '{tmp_path}'; allowed: a directory of a run")
    folder = command("evaluate", run, "--out", tmp_path, *tasks_of(task_data, "piqa"))
    assert_refused(folder, f"--out: cannot write {tmp_path}: it is a directory; ")
    (tmp_path / "file").touch()
    blocked = tmp_path / "file" / "out.json"
    done = command("evaluate", run, "--out", blocked, *tasks_of(task_data, "piqa"))
    assert_refused(done, f"--out: cannot write {blocked}: ")
    (tmp_path / "piqa.jsonl").write_text('{"query": "a"}\n')
    malformed = command("evaluate", run, *tasks_of(tmp_path, "piqa"))
    assert_refused(malformed, f"{tmp_path / 'piqa.jsonl'}:1: no field 'choices'; it has: query")
    for option, value, allowed in (
        ("--limit", 0, "a whole number, at least 1, at most "),
        ("--batch", "auto", "a whole number, at least 1, at most "),
        ("--dtype", "int8", "auto, bfloat16, float16, float32"),
    ):
        done = command("evaluate", run, option, value, *tasks_of(task_data, "piqa"))
        assert_refused(done, f"{option}: got '{value}'; allowed: {allowed}")


def refused_after_the_data(done, message):
    assert (done.code, done.out) == (2, ""), done
    assert [line for line in done.lines if line.startswith("error: ")] == done.lines[-1:]
    assert done.lines[-1].startswith(f"error: {message}"), done.err


def test_what_does_not_fit_the_model(command, run, task_data, tmp_path):
    argv = ["evaluate", run, *tasks_of(task_data, "piqa")]
    long = command(*argv, "--length", 9999)
    refused_after_the_data(long, f"{run}: --length: got 9999; allowed: 1 to the model's position ")
    bigger = data.train_tokenizer(["any text will do " * 9, "abcdefghij klmnop " * 9], 310)
    large = json.loads(bigger.json)
    vocabulary = large["model"]["vocab"]
    vocabulary |= {f"<{i}>": i for i in range(len(vocabulary), 400)}
    (tmp_path / "tokenizer.json").write_text(json.dumps(large))
    done = command(*argv, "--tokenizer", tmp_path / "tokenizer.json")
    refused_after_the_data(
        done, f"{run}: tokenizer: largest id: got 399; allowed: below the model's "
    )


@pytest.mark.parametrize("plain", [True, False])
def test_a_tokenizer_without_an_end_of_text(command, run, task_data, tmp_path, plain):
    model = shutil.copytree(run / "model", tmp_path / "model")
    (model / "weights.json").unlink()
    config = json.loads((model / "tokenizer_config.json").read_text())
    del config["eos_token"]
    (model / "tokenizer_config.json").write_text(json.dumps(config))
    if plain:
        (model / "tokenizer_config.json").unlink()
        text = (model / "tokenizer.json").read_text().replace("<|endoftext|>", "<start>")
        (model / "tokenizer.json").write_text(text)
    refused_after_the_data(command("evaluate", model, *tasks_of(task_data, "piqa")), "tokenizer: ")


def test_a_model_without_a_tokenizer(command, run, task_data, tmp_path):
    model = shutil.copytree(run / "model", tmp_path / "model")
    (model / "weights.json").unlink()
    (model / "tokenizer_config.json").unlink()
    (model / "tokenizer.json").unlink()
    argv = ["evaluate", model, *tasks_of(task_data, "piqa")]
    refused_after_the_data(command(*argv), f"tokenizer: cannot read {model / 'tokenizer.json'}: ")
    assert command(*argv, "--tokenizer", run / "model").code == 0


def test_without_the_harness_the_extra_is_named(command, run, task_data, monkeypatch):
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    done = command("evaluate", run, *tasks_of(task_data, "piqa"))
    assert_refused(done, "--tasks: got 'no lm_eval")
    assert done.lines[-1].endswith("allowed: it after pip install 'depth-memory[eval]'")
    assert command("evaluate", run, "--windows", 1, "--tasks", "validation").code == 0


def test_results_of_the_loss_can_be_kept(command, run, tmp_path):
    out = tmp_path / "loss.json"
    done = command("evaluate", run, "--windows", 1, "--json", "--out", out)
    assert json.loads(done.out) == json.loads(out.read_text())
