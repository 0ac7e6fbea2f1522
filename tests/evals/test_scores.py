"""Metrics and standard errors are what their definitions give, for a model scored directly."""

from __future__ import annotations

import json
import math
import re
import statistics
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from depth_memory import evals, streams
from depth_memory.errors import UserError
from depth_memory.evals.scores import score
from tests.evals import direct
from tests.evals.conftest import build
from tests.evals.examples import HUB, PAGE_SCORED


def run(name: str, model: Any, tokenizer: Any, task_data: Path, **options: Any) -> evals.TaskResult:
    tasks = evals.load_tasks([name], task_data)
    return evals.evaluate(model, tokenizer, tasks, **options)[name]


def values(result: evals.TaskResult) -> dict[str, float]:
    return {metric: found.value for metric, found in result.scores.items()}


def logs(result: evals.TaskResult) -> dict[str, float]:
    """The values, and the logarithms of perplexities: rounding is relative to these."""
    found = values(result)
    return {m: math.log(v) if m.endswith("perplexity") else v for m, v in found.items()}


@pytest.mark.parametrize("stream", streams.STREAMS)
def test_wikitext(stream: str, tokenizer: Any, task_data: Path) -> None:
    model = build(stream)
    pages = [row["page"] for row in HUB["wikitext"]]
    scored = [PAGE_SCORED, pages[1]]
    total = sum(direct.of_text(model, tokenizer, text, 48) for text in scored)
    words = sum(len(re.split(r"\s+", page)) for page in pages)
    size = sum(len(page.encode()) for page in pages)
    found = run("wikitext", model, tokenizer, task_data, length=48)
    assert found.documents == 2
    bits = -total / size / math.log(2)
    expected = {"word_perplexity": -total / words, "byte_perplexity": -total / size}
    assert logs(found) == pytest.approx(expected | {"bits_per_byte": bits}, rel=1e-5)
    word, byte, bits = values(found).values()
    assert math.log(word) / math.log(byte) == pytest.approx(size / words, rel=1e-12)
    assert math.log2(byte) == pytest.approx(bits, rel=1e-12)


def test_lambada(tokenizer: Any, task_data: Path) -> None:
    model = build("ldm")
    texts = [row["text"] for row in HUB["lambada"]]
    pairs = [(text.rpartition(" ")[0], " " + text.rpartition(" ")[2]) for text in texts]
    expected = [direct.of_pair(model, tokenizer, *pair) for pair in pairs]
    mean = statistics.fmean(likelihood for likelihood, _ in expected)
    found = logs(run("lambada", model, tokenizer, task_data))
    assert found["perplexity"] == pytest.approx(-mean, rel=1e-5)
    assert found["acc"] == statistics.fmean(greedy for _, greedy in expected)


@pytest.mark.parametrize("likely", [True, False])
def test_lambada_counts_a_word_that_is_the_most_probable(
    likely: bool, tokenizer: Any, tmp_path: Path
) -> None:
    model, context = build("preln"), "the mill was built by the"
    before, whole = (tokenizer.encode(context + end) for end in ("", " z"))
    answer = whole[len(before) :]
    with torch.no_grad():
        for i, token in enumerate(answer):
            hidden = model.model(torch.tensor([whole[: len(before) + i]])).last_hidden_state
            model.lm_head.weight[token] = (3 if likely else -3) * hidden[0, -1]
    (tmp_path / "lambada.jsonl").write_text(json.dumps({"text": f"{context} z"}) + "\n")
    found = run("lambada", model, tokenizer, tmp_path)
    assert direct.of_pair(model, tokenizer, context, " z")[1] is likely
    assert (found.scores["acc"].value, found.scores["acc"].stderr) == (float(likely), None)


CHOICES = {
    "piqa": lambda row: (f"Question: {row['goal']}\nAnswer:", [row["sol1"], row["sol2"]]),
    "arc_easy": lambda row: (f"Question: {row['question']}\nAnswer:", row["choices"]["text"]),
    "openbookqa": lambda row: (row["question_stem"], row["choices"]["text"]),
    "siqa": lambda row: (
        f"Q: {row['context']} {row['question']}\nA:",
        [row["answerA"], row["answerB"], row["answerC"]],
    ),
}
GOLD = {"piqa": [0, 1], "arc_easy": [0, 1], "openbookqa": [0, 2], "siqa": [0, 1, 2, 0, 1]}


@pytest.mark.parametrize("name", CHOICES)
def test_choices(name: str, tokenizer: Any, task_data: Path) -> None:
    model = build("ldm")
    right, normed = [], []
    for row, gold in zip(HUB[name], GOLD[name], strict=True):
        context, choices = CHOICES[name](row)
        found = [direct.of_pair(model, tokenizer, context, f" {c}")[0] for c in choices]
        right.append(int(np.argmax(found)) == gold)
        lengths = [len(choice) for choice in choices]
        normed.append(int(np.argmax(np.divide(found, lengths))) == gold)
    expected = {"acc": statistics.fmean(right), "acc_norm": statistics.fmean(normed)}
    if name == "siqa":
        del expected["acc_norm"]
    result = run(name, model, tokenizer, task_data, batch=3)
    assert values(result) == expected
    spread = statistics.stdev(right) / math.sqrt(len(right))
    assert result.scores["acc"].stderr == pytest.approx(spread, rel=1e-12)


def test_hellaswag(tokenizer: Any, task_data: Path) -> None:
    model = build("ldm")
    right = []
    for row in HUB["hellaswag"]:
        start = f"{row['activity_label']}: {row['ctx_a']} {row['ctx_b'].capitalize()}"
        # the tasks' tests hold the harness to this, word by word
        start = start.strip().replace(" [title]", ". ").replace("  ", " ")
        endings = [ending.replace("[substeps] ", "") for ending in row["endings"]]
        found = [direct.of_pair(model, tokenizer, start, f" {e}")[0] for e in endings]
        right.append(int(np.argmax(found)) == int(row["label"]))
    found = run("hellaswag", model, tokenizer, task_data)
    assert found.scores["acc"].value == statistics.fmean(right)
    assert found.documents == 5


def test_winogrande_scores_what_follows_the_gap(tokenizer: Any, task_data: Path) -> None:
    model = build("ldm")
    right = []
    for row in HUB["winogrande"]:
        before, _, after = row["sentence"].partition("_")
        contexts = [before + row["option1"], before + row["option2"]]
        found = [direct.of_pair(model, tokenizer, c, f" {after.strip()}")[0] for c in contexts]
        right.append(int(np.argmax(found)) == int(row["answer"]) - 1)
    found = values(run("winogrande", model, tokenizer, task_data))
    assert found == {"acc": statistics.fmean(right)}


def test_tasks_can_be_used_again_and_batch_does_not_matter(tokenizer: Any, task_data: Path) -> None:
    tasks = evals.load_tasks(evals.TASKS, task_data)
    models = [build("ldm"), build("preln")]
    first, other, again = (
        evals.evaluate(m, tokenizer, tasks, batch=b)
        for m, b in zip([*models, models[0]], (1, 2, 5), strict=True)
    )
    assert list(first) == list(evals.TASKS)
    for name in evals.TASKS:
        assert logs(again[name]) == pytest.approx(logs(first[name]), rel=1e-5)
    assert logs(first["wikitext"]) != pytest.approx(logs(other["wikitext"]), rel=1e-3)


def test_a_limit_takes_the_first_documents(tokenizer: Any, task_data: Path) -> None:
    model = build("preln")
    found = run("siqa", model, tokenizer, task_data, limit=2)
    assert found.documents == 2


def test_steps_count_the_sequences(tokenizer: Any, task_data: Path, capsys: Any) -> None:
    seen = []

    def step(task: evals.Task, rows: int) -> None:
        seen.append((task.name, rows))
        print("heard")

    run("piqa", build("preln"), tokenizer, task_data, batch=3, step=step)
    assert seen == [("piqa", 3), ("piqa", 1)]
    assert capsys.readouterr() == ("heard\nheard\n", "")


def test_the_model_and_the_tokenizer_are_left_alone(tokenizer: Any, task_data: Path) -> None:
    model = build("preln").train()
    run("piqa", model, tokenizer, task_data)
    assert model.training
    assert tokenizer.pad_token is None
    assert all(parameter.grad is None for parameter in model.parameters())


def test_what_does_not_fit_is_refused(tokenizer: Any, task_data: Path) -> None:
    with pytest.raises(UserError, match=r"^length: got 513; allowed: 1 to the model's position"):
        run("piqa", build("preln"), tokenizer, task_data, length=513)
    tokenizer.add_tokens(["longer", "than", "the", "vocabulary"])
    with pytest.raises(UserError, match=r"^tokenizer: largest id: got 323; allowed: below the"):
        run("piqa", build("preln"), tokenizer, task_data)
    tokenizer.eos_token = None
    with pytest.raises(UserError, match=r"^tokenizer: eos_token: got None; allowed: "):
        run("piqa", build("preln", vocab_size=400), tokenizer, task_data)


def test_a_perplexity_has_the_error_that_a_bootstrap_finds() -> None:
    generator = np.random.default_rng(0)
    lengths = generator.integers(50, 200, 400)
    likelihoods = -lengths * generator.normal(3, 0.3, 400)
    picks = generator.integers(400, size=(4000, 400))
    means = np.exp(-likelihoods[picks].mean(-1) / 100)
    ratios = np.exp(-likelihoods[picks].sum(-1) / lengths[picks].sum(-1))
    found = score("perplexity", np.exp(-likelihoods.mean() / 100), likelihoods / 100)
    assert found.stderr == pytest.approx(means.std(), rel=0.05)
    pairs = list(zip(likelihoods, lengths, strict=True))
    total = -likelihoods.sum() / lengths.sum()
    found = score("word_perplexity", np.exp(total), pairs)
    assert found.stderr == pytest.approx(ratios.std(), rel=0.05)
    bits = score("bits_per_byte", total / math.log(2), pairs)
    assert bits.stderr == pytest.approx(np.log2(ratios).std(), rel=0.05)


def test_a_perplexity_beyond_floats_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    model = build("preln")
    with torch.no_grad():
        model.lm_head.weight.mul_(1e4)
    (tmp_path / "lambada.jsonl").write_text(json.dumps({"text": "the mill was built"}) + "\n")
    with pytest.raises(UserError, match=r"^perplexity of lambada: got more than a float can hold"):
        run("lambada", model, tokenizer, tmp_path)


def test_one_document_has_no_error() -> None:
    assert score("acc", 1.0, [1.0]).stderr is None
