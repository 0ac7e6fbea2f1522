"""What a user may get wrong about models and texts: every command that takes one says it alike."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from depth_memory.files import sealed
from tests.cli.conftest import assert_refused, contents

pytestmark = pytest.mark.usefixtures("elsewhere")

COMMANDS: dict[str, list[str]] = {
    "convert": ["convert", "MODEL", "--stream", "ldm", "--out", "NEW"],
    "train": ["train", "--from", "MODEL", "debug", "--data.directory", "CORPUS", "--out", "NEW"],
    "evaluate": ["evaluate", "MODEL", "--data", "CORPUS"],
    "tasks": ["evaluate", "MODEL", "--tasks", "piqa", "--task-data", "TASKS"],
    "generate": ["generate", "MODEL", "--prompt", "the"],
    "inspect": ["inspect", "MODEL", "--text", "the old", "--out", "NEW"],
}


def changed(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def without_end(folder: Path) -> None:
    """A tokenizer, and what transformers knows of it, without an end of text."""
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|other|>"))
    (folder / "tokenizer_config.json").write_text('{"tokenizer_class": "PreTrainedTokenizerFast"}')


def newer_manifest(folder: Path) -> None:
    from depth_memory.weights import write_manifest

    write_manifest(folder, {"format": 2})


NEWER = "up to 1 (written by a newer depth-memory)"
CASES: dict[str, tuple[Callable[[Path], object], str]] = {
    "an unsupported architecture": (
        lambda d: changed(d / "config.json", model_type="gpt2"),
        "model_type: got 'gpt2'; allowed: depth_llama, depth_qwen3",
    ),
    "no directory": (shutil.rmtree, "got '{}'; allowed: a directory"),
    "no configuration": (
        lambda d: (d / "config.json").unlink(),
        "got '{}'; allowed: a directory of a run, of one of its checkpoints, or of a saved",
    ),
    "no weights": (
        lambda d: (d / "model.safetensors").unlink(),
        "{}: no weights; looked for model.safetensors and model.safetensors.index.json",
    ),
    "a configuration of a newer version": (
        lambda d: changed(d / "config.json", depth_format=2, stream={"name": "tomorrow's"}),
        f"{{}}/config.json: depth_format: got 2; allowed: {NEWER}",
    ),
    "weights of a newer version": (
        newer_manifest,
        f"{{}}/weights.json: format: got 2; allowed: {NEWER}",
    ),
    "a tokenizer without an end of text": (without_end, "tokenizer: "),
}
EXCEPT = {
    # which any architecture may be evaluated on: an unknown one is refused by test_damage
    ("an unsupported architecture", "tasks"),
    # a tokenizer is none of its business: it says in a line that no data can be made with this one
    ("a tokenizer without an end of text", "convert"),
}


@pytest.fixture
def place(run, corpus, task_data, tmp_path) -> Callable[[str], list[object]]:
    """A model to spoil, and a command with places in the place of their names."""
    model = shutil.copytree(run / "model", tmp_path / "model")
    (model / "weights.json").unlink()
    places = {"MODEL": model, "CORPUS": corpus, "TASKS": task_data, "NEW": tmp_path / "new"}
    return lambda command: [places.get(word, word) for word in COMMANDS[command]]


@pytest.fixture(scope="session")
def task_data(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("tasks")
    row = {"query": "Question: a", "choices": ["b", "c"], "gold": 1}
    (folder / "piqa.jsonl").write_text(json.dumps(row))
    return folder


PAIRS = [(case, name) for case in CASES for name in COMMANDS if (case, name) not in EXCEPT]


@pytest.mark.parametrize(("case", "name"), PAIRS)
def test_a_model_that_cannot_be_used(command, place, tmp_path, case, name):
    spoil, message = CASES[case]
    model = tmp_path / "model"
    spoil(model)
    before = contents(tmp_path)
    done = command(*place(name))
    assert (done.code, done.out) == (2, ""), done.err
    assert done.lines[-1].startswith("error: ")
    assert message.format(model) in done.lines[-1]
    assert contents(tmp_path) == before
    assert not (tmp_path / "new").exists()


def newer_state(folder: Path) -> None:
    manifest = json.loads((folder / "state.json").read_text())
    del manifest["checksum"]
    (folder / "state.json").write_text(sealed({**manifest, "format": 2}))


@pytest.mark.parametrize("name", COMMANDS)
def test_a_run_of_a_newer_version(command, place, run, tmp_path, name):
    argv = place(name)
    model = tmp_path / "model"
    shutil.rmtree(model)
    shutil.copytree(run, model)
    checkpoint = model / "checkpoints" / "step-00000010"
    newer_state(checkpoint)
    shutil.rmtree(model / "model")
    done = command(*argv)
    assert (done.code, done.out) == (2, ""), done.err
    assert done.lines[-1].startswith("error: ")
    assert done.lines[-1].endswith(f"format: got 2; allowed: {NEWER}")
    changed(model / "run.json", format=2)
    assert_refused(command(*argv), f"{model / 'run.json'}: format: got 2; allowed: {NEWER}")
    assert not (tmp_path / "new").exists()


LONG = "the old house " * 100
TOO_LONG: dict[str, tuple[list[str], str]] = {
    "train": (["--length", "129"], "length: got 129; allowed: 1 to the position limit"),
    "evaluate": (
        ["--length", "129"],
        "--length: got 129; allowed: at most the position limit 128 ",
    ),
    "tasks": (["--length", "129"], "MODEL: --length: got 129; allowed: 1 to "),
    "generate": (["--prompt", LONG], "--prompt 2: tokens: got "),
    "inspect": (["--text", LONG], "--text: tokens: got "),
}


@pytest.mark.parametrize("name", TOO_LONG)
def test_a_text_longer_than_the_context(command, place, tmp_path, name):
    options, message = TOO_LONG[name]
    done = command(*place(name), *options)
    assert (done.code, done.out) == (2, ""), done.err
    message = message.replace("MODEL", str(tmp_path / "model"))
    assert done.lines[-1].startswith(f"error: {message}")
    assert not (tmp_path / "new").exists()


def test_a_task_without_local_data(command, run, task_data, monkeypatch):
    import datasets

    def unreachable(*_, **__):
        raise ConnectionError("no network")

    monkeypatch.setattr(datasets, "load_dataset", unreachable)
    done = command("evaluate", run, "--tasks", "siqa", "--task-data", task_data)
    allowed = f"allowed: social_iqa.jsonl or social_iqa.parquet in {task_data}"
    assert_refused(done, f"task siqa: no data: not from the hub (no network); {allowed}")
