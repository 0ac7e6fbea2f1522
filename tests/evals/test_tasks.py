"""Prompts and targets are the harness's own, wherever the rows come from."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import datasets
import pytest

from depth_memory import evals
from depth_memory.errors import UserError
from tests.evals.examples import FLAT, HUB, PAGE_SCORED, write

TESTED = ("wikitext", "lambada", "openbookqa", "arc_easy", "arc_challenge")
"""Whose test split is scored; of the others it is the validation split."""

PROMPTS: dict[str, list[tuple[str, ...]]] = {
    "wikitext": [(PAGE_SCORED,)],
    "lambada": [
        (
            "She wrote to her sister every week, and a letter came from her",
            " sister",
        )
    ],
    "piqa": [
        ("Question: dry a wet boot\nAnswer:", " Fill it with rags."),
        ("Question: dry a wet boot\nAnswer:", " Fill it up."),
    ],
    "arc_easy": [
        ("Question: What melts ice?\nAnswer:", f" {answer}")
        for answer in ("heat", "cold", "dark", "noise")
    ],
    "hellaswag": [
        ("Baking bread: A baker kneads dough on a table. The baker", f" {ending}")
        for ending in ("shapes a loaf.", "sails away.", "paints the dough blue.", "sings to it.")
    ],
    "winogrande": [
        (f"The cup fell off the shelf because the {word}", " was crooked.")
        for word in ("cup", "shelf")
    ],
    "openbookqa": [
        ("A plant kept in the dark will", f" {end}") for end in ("wilt", "sing", "bloom", "run")
    ],
    "siqa": [
        ("Q: Robin lent Kim a coat. How would Kim feel?\nA:", f" {answer}")
        for answer in ("grateful", "angry", "hungry")
    ],
}
PROMPTS["arc_challenge"] = PROMPTS["arc_easy"]

SECOND_HELLASWAG = [
    ("Mowing the lawn: A man starts a mower. How to mow", f" {ending}")
    for ending in ("He eats.", "He sleeps well.", "He mows.", "He flies.")
]


def asked(loaded: evals.LoadedTask) -> list[tuple[list[tuple], Any]]:
    """For each document the pairs that a model is asked for, and the right answer."""
    task, found = loaded.definition, []
    for doc in task.eval_docs:
        context = task.fewshot_context(doc, 0)
        built = task.construct_requests(doc=doc, ctx=context, metadata=(None, 0, 1))
        requests = built if isinstance(built, list) else [built]
        gold = task.doc_to_text(doc) if task.multiple_input else task.doc_to_target(doc)
        found.append(([request.args for request in requests], gold))
    return found


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> None:
    """A hub that has the invented rows, under the names and splits of the real data sets."""
    tasks = {
        ("EleutherAI/wikitext_document_level", "wikitext-2-raw-v1"): "wikitext",
        ("EleutherAI/lambada_openai", "default"): "lambada",
        ("baber/piqa", None): "piqa",
        ("allenai/ai2_arc", "ARC-Easy"): "arc_easy",
        ("allenai/ai2_arc", "ARC-Challenge"): "arc_challenge",
        ("Rowan/hellaswag", None): "hellaswag",
        ("allenai/winogrande", "winogrande_xl"): "winogrande",
        ("allenai/openbookqa", "main"): "openbookqa",
        ("lighteval/siqa", None): "siqa",
    }

    def load_dataset(path: str, name: str | None = None, **_: Any) -> dict[str, datasets.Dataset]:
        task = tasks[path, name]
        rows = datasets.Dataset.from_list(HUB[task])
        return {"train": rows, "test" if task in TESTED else "validation": rows}

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)


def test_every_benchmark_has_examples() -> None:
    assert set(HUB) == set(PROMPTS) == set(evals.TASKS)


@pytest.mark.parametrize("name", evals.TASKS)
def test_prompts_are_those_of_the_definition(name: str, task_data: Path) -> None:
    (loaded,) = evals.load_tasks([name], task_data)
    assert asked(loaded)[0][0] == PROMPTS[name]
    assert loaded.documents == len(HUB[name])
    assert loaded.sha256 is not None


def test_the_marks_of_wikihow_are_taken_out(task_data: Path) -> None:
    (loaded,) = evals.load_tasks(["hellaswag"], task_data)
    assert asked(loaded)[1][0] == SECOND_HELLASWAG


@pytest.mark.parametrize("name", evals.TASKS)
def test_a_local_file_asks_what_the_hub_asks(name: str, task_data: Path, hub: None) -> None:
    (local,), (remote,) = evals.load_tasks([name], task_data), evals.load_tasks([name])
    assert asked(local) == asked(remote)
    assert remote.source.startswith("hub:")
    assert (remote.sha256, remote.documents) == (None, local.documents)


@pytest.mark.parametrize("name", FLAT)
def test_ready_made_prompts_ask_the_same(name: str, task_data: Path, tmp_path: Path) -> None:
    flat = write(tmp_path / "flat", {name: FLAT[name]})
    (expected,), (found,) = evals.load_tasks([name], task_data), evals.load_tasks([name], flat)
    for (pairs, gold), (other_pairs, other_gold) in zip(asked(expected), asked(found), strict=True):
        assert (pairs, gold) == (other_pairs, other_gold)


@pytest.mark.parametrize("name", evals.TASKS)
def test_parquet_asks_the_same(name: str, task_data: Path, tmp_path: Path) -> None:
    file = f"{evals.TASKS[name].files[0]}.parquet"
    datasets.Dataset.from_list(HUB[name]).to_parquet(tmp_path / file)
    (expected,), (found,) = evals.load_tasks([name], task_data), evals.load_tasks([name], tmp_path)
    assert asked(found) == asked(expected)


def test_what_is_not_in_the_directory_comes_from_the_hub(tmp_path: Path, hub: None) -> None:
    folder = write(tmp_path / "some", {"piqa": HUB["piqa"]})
    piqa, siqa = evals.load_tasks(["piqa", "siqa"], folder)
    assert piqa.source == str(folder / "piqa.jsonl")
    assert siqa.source == "hub:lighteval/siqa"


def test_a_task_has_the_names_of_the_harness_and_of_its_file(task_data: Path) -> None:
    names = ["lambada_openai", "openbook_qa", "social_iqa", "wikitext2_test", "lambada"]
    found = [loaded.task.name for loaded in evals.load_tasks(names, task_data)]
    assert found == ["lambada", "openbookqa", "siqa", "wikitext"]


def test_only_the_first_rows_are_read(task_data: Path) -> None:
    (loaded,) = evals.load_tasks(["siqa"], task_data, limit=3)
    assert loaded.documents == 3


def load(folder: Path, name: str = "piqa") -> Callable[[], object]:
    return lambda: evals.load_tasks([name], folder)


def refused(action: Callable[[], object]) -> str:
    with pytest.raises(UserError) as caught:
        action()
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_an_unknown_task_is_refused(task_data: Path) -> None:
    message = refused(load(task_data, "chess"))
    assert message.startswith("task: got 'chess'; allowed: wikitext, lambada, piqa, ")


def test_a_missing_directory_is_refused(tmp_path: Path) -> None:
    message = refused(load(tmp_path / "nowhere"))
    assert message == f"task data: got '{tmp_path / 'nowhere'}'; allowed: a directory"


@pytest.mark.parametrize("given", [True, False])
def test_a_task_without_data_is_refused_offline(
    given: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def unreachable(*_: Any, **__: Any) -> None:
        raise ConnectionError("Couldn't reach 'Rowan/hellaswag' on the Hub\nsecond line")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    message = refused(lambda: evals.load_tasks(["hellaswag"], tmp_path if given else None))
    assert message.startswith("task hellaswag: no data: not from the hub (Couldn't reach 'Rowan/")
    place = str(tmp_path) if given else "a directory of task data"
    assert message.endswith(f"allowed: hellaswag.jsonl or hellaswag.parquet in {place}")


def test_two_files_of_a_task_are_refused(tmp_path: Path) -> None:
    write(tmp_path, {"piqa": HUB["piqa"]})
    datasets.Dataset.from_list(HUB["piqa"]).to_parquet(tmp_path / "piqa.parquet")
    message = refused(load(tmp_path))
    assert message.endswith("got 'piqa.jsonl and piqa.parquet'; allowed: one of them")


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "piqa.jsonl").write_text("\n")
    assert refused(load(tmp_path)) == f"{tmp_path / 'piqa.jsonl'}: rows: got 0; allowed: at least 1"


def test_without_the_harness_the_extra_is_named(
    task_data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "lm_eval", None)
    message = refused(load(task_data))
    assert message.endswith("allowed: it after pip install 'depth-memory[eval]'")


GOOD: dict[str, dict[str, Any]] = {name: rows[0] for name, rows in HUB.items()}
TEXT = "a string of UTF-8, not empty"
MALFORMED: dict[str, tuple[str, dict[str, Any], str]] = {
    "no page": ("wikitext", {"text": "a"}, "no field 'page'; it has: text"),
    "empty page": (
        "wikitext",
        {"page": " "},
        "page: got ' '; allowed: a string of UTF-8, not empty",
    ),
    "no text": ("lambada", {"text": None}, "text: got None; allowed: a string of UTF-8, not empty"),
    "half a character": (
        "lambada",
        {"text": "a \ud800"},
        f"text: got 'a \\ud800'; allowed: {TEXT}",
    ),
    "one choice": (
        "piqa",
        {"query": "Question: a\n", "choices": ["b"], "gold": 0},
        "choices: got ['b']; allowed: a list of 2 strings, none empty",
    ),
    "gold out of range": (
        "piqa",
        {"query": "Question: a\n", "choices": ["b", "c"], "gold": 2},
        "gold: got 2; allowed: 0 to 1",
    ),
    "hidden label": ("piqa", GOOD["piqa"] | {"label": -1}, "label: got -1; allowed: 0 to 1"),
    "true label": ("piqa", GOOD["piqa"] | {"label": True}, "label: got True; allowed: 0 to 1"),
    "other answer": (
        "arc_easy",
        GOOD["arc_easy"] | {"answerKey": "E"},
        "answerKey: got 'E'; allowed: A, B, C, D",
    ),
    "no labels": (
        "arc_easy",
        GOOD["arc_easy"] | {"choices": ["a", "b"]},
        "choices: got ['a', 'b']; allowed: an object with text and label",
    ),
    "labels missing": (
        "openbookqa",
        GOOD["openbookqa"] | {"choices": {"text": ["a", "b"], "label": ["A"]}},
        "choices: label: got ['A']; allowed: a list of 2 strings, none empty",
    ),
    "three endings": (
        "hellaswag",
        GOOD["hellaswag"] | {"endings": ["a", "b", "c"]},
        "endings: got ['a', 'b', 'c']; allowed: a list of 4 strings, none empty",
    ),
    "no label": ("hellaswag", GOOD["hellaswag"] | {"label": ""}, "label: got ''; allowed: 0 to 3"),
    "no gap": (
        "winogrande",
        GOOD["winogrande"] | {"sentence": "No gap."},
        "sentence: got 'No gap.'; allowed: text with a gap _",
    ),
    "label from 1": ("siqa", GOOD["siqa"] | {"label": "0"}, "label: got '0'; allowed: 1 to 3"),
}


@pytest.mark.parametrize("case", MALFORMED)
def test_a_malformed_row_is_named_by_file_and_line(case: str, tmp_path: Path) -> None:
    name, row, expected = MALFORMED[case]
    path = tmp_path / f"{evals.TASKS[name].files[0]}.jsonl"
    path.write_text(f"{json.dumps(GOOD[name])}\n\n{json.dumps(row)}\n")
    message = refused(load(tmp_path, name))
    assert message.replace(f"{path}:3: ", "") == expected
    assert message.startswith(str(path))


@pytest.mark.parametrize("line", ['{"page": ', "[1]", '"text"'])
def test_a_line_that_is_no_object_is_named(line: str, tmp_path: Path) -> None:
    path = tmp_path / "wikitext.jsonl"
    path.write_text(f'{{"page": "good"}}\n{line}\n')
    assert refused(load(tmp_path, "wikitext")).startswith(f"{path}:2: ")
