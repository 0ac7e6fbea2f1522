"""What is missing or damaged in a run's directory is said, and never taken for a new run."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from depth_memory.data import open_split
from depth_memory.errors import UserError
from depth_memory.train import Run, ScheduleSpec, directory, load_run, read_metrics, train
from depth_memory.train.export import export
from tests.train.runs import STEPS, curve, finish, sessions, short
from tests.train.test_resume import contents


@pytest.fixture(scope="module")
def finished(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("finished") / "run"
    finish(short(corpus, out))
    return out


@pytest.fixture
def run(corpus: Path, tmp_path: Path, finished: Path) -> Run:
    """One that is finished, with checkpoints and a model."""
    return short(corpus, Path(shutil.copytree(finished, tmp_path / "run")))


def refusal(run: Run) -> str:
    """Why the run does not start; nothing of it changes."""
    before = contents(run.out)
    with pytest.raises(UserError) as error:
        finish(run)
    assert contents(run.out) == before
    assert "\n" not in str(error.value)
    return str(error.value)


def without_model(out: Path) -> None:
    shutil.rmtree(out / "checkpoints")
    shutil.rmtree(out / "model")


def without_model_and_emptied(out: Path) -> None:
    without_model(out)
    (out / "checkpoints").mkdir()


def resumed_without_records(out: Path) -> None:
    without_model_and_emptied(out)
    (out / "metrics.jsonl").unlink()
    edit(out, lambda content: content["sessions"].append({"from_step": 4}))


def edit(out: Path, change: Callable[[dict], object]) -> None:
    content = json.loads((out / "run.json").read_text())
    change(content)
    (out / "run.json").write_text(json.dumps(content))


@pytest.mark.parametrize(
    ("lose", "sign"),
    [
        (lambda out: shutil.rmtree(out / "checkpoints"), "a model"),
        (without_model, f"records up to step {STEPS} in metrics.jsonl"),
        (without_model_and_emptied, f"records up to step {STEPS} in metrics.jsonl"),
        (resumed_without_records, "starts from checkpoints"),
    ],
)
def test_lost_checkpoints_do_not_begin_the_run_again(
    run: Run, lose: Callable[[Path], object], sign: str
) -> None:
    lose(run.out)
    assert refusal(run) == (
        f"out: {run.out} has {sign}, but no checkpoint to go on from; "
        f"bring {run.out}/checkpoints back, or begin again in a new directory"
    )


@pytest.mark.parametrize("name", ["notes.txt", "adapter_model.safetensors", "card/README.md"])
def test_what_someone_else_put_into_the_model_is_not_removed(run: Run, name: str) -> None:
    path = run.out / "model" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text("years of work")
    first = run.out / "model" / Path(name).parts[0]
    expected = (
        f"out: {first} was not written by a run; "
        "move it away, as the directory is replaced when the run ends"
    )
    assert refusal(run) == expected
    split = open_split(run.data.directory, "train")
    source = run.out / "checkpoints" / f"step-{STEPS:08d}"
    with pytest.raises(UserError) as error:
        export(run, source, run.out / "model", split.vocab_size, split.tokenizer)
    assert str(error.value) == expected
    assert path.read_text() == "years of work"


def test_a_model_of_an_earlier_session_is_replaced(run: Run) -> None:
    (run.out / "model" / "weights.json").unlink()
    (run.out / "model" / "config.json").write_text("damaged")
    finish(run)
    assert json.loads((run.out / "model" / "config.json").read_text())["model_type"]


def test_a_link_in_place_of_the_model_is_left_alone(run: Run, tmp_path: Path) -> None:
    (run.out / "model").rename(tmp_path / "elsewhere")
    (run.out / "model").symlink_to(tmp_path / "elsewhere")
    message = f"out: {run.out / 'model'} is not the directory of a model; move it away"
    assert refusal(run) == message


def test_a_file_in_place_of_the_checkpoints(run: Run) -> None:
    shutil.rmtree(run.out / "checkpoints")
    (run.out / "checkpoints").write_text("")
    assert refusal(run) == f"{run.out}/checkpoints: cannot be listed: Not a directory"


def test_a_run_killed_before_its_first_checkpoint_begins_again(run: Run) -> None:
    expected = curve(run.out)
    without_model_and_emptied(run.out)
    metrics = run.out / "metrics.jsonl"
    metrics.write_text("".join(metrics.read_text().splitlines(keepends=True)[:2]))
    finish(run)
    assert curve(run.out) == expected
    assert sessions(run.out) == [0, 0]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not the description of a run (Expecting"),
        ("[1]", "not the description of a run (no JSON object)"),
        ("\udcff", "not the description of a run ("),
        ("[" * 100_000, "not the description of a run ("),
    ],
)
def test_a_description_that_is_none(run: Run, text: str, message: str) -> None:
    (run.out / "run.json").write_text(text, errors="surrogateescape")
    assert refusal(run).startswith(f"{run.out}/run.json: {message}")


@pytest.mark.parametrize(
    ("part", "value"),
    [("format", True), ("sessions", [{}]), ("sessions", [{"from_step": "x"}])],
)
def test_a_description_with_a_part_of_another_kind(run: Run, part: str, value: object) -> None:
    edit(run.out, lambda content: content.update({part: value}))
    assert refusal(run).endswith(f"not the description of a run ({part} is missing or damaged)")


def foreign(path: Path) -> None:
    path.write_text('{"step": -5}\n')


def first_lost(path: Path) -> None:
    path.write_text("".join(path.read_text().splitlines(keepends=True)[1:]))


def doubled(path: Path) -> None:
    path.write_text(path.read_text() + '{"step": 6}\n')


LOST = f"records up to step {STEPS}, to go on from there; bring it back, or begin again in a new"


@pytest.mark.parametrize(
    ("lose", "message"),
    [
        (Path.unlink, f": has 0 of 6 {LOST} directory"),
        (lambda path: path.write_text(""), f": has 0 of 6 {LOST} directory"),
        (first_lost, f": has 5 of 6 {LOST} directory"),
        (foreign, ":1: step: got -5; allowed: a whole number above 0, the step before"),
        (doubled, ":7: step: got 6; allowed: a whole number above 6, the step before"),
    ],
)
def test_records_that_are_lost_are_not_gone_on_without(
    run: Run, lose: Callable[[Path], object], message: str
) -> None:
    path = run.out / "metrics.jsonl"
    lose(path)
    assert refusal(run) == f"{path}{message}"


PARTS = ("format", "config", "data", "sessions", "origin")
FITTING = (("origin", "gone"), ("sessions", []))
BROKEN = [(n, v) for n in PARTS for v in ("gone", [], 5.5, [3]) if (n, v) not in FITTING]


@pytest.mark.parametrize(("name", "value"), BROKEN)
def test_a_part_of_a_description_that_is_gone_or_of_another_kind(
    run: Run, name: str, value: object
) -> None:
    edit(run.out, lambda content: content.pop(name, None))
    if value != "gone":
        edit(run.out, lambda content: content.update({name: value}))
    message = f"not the description of a run ({name} is missing or damaged)"
    assert refusal(run) == f"{run.out}/run.json: {message}"


def test_a_wrong_value_of_a_description_is_not_put_down_to_the_user(run: Run) -> None:
    edit(run.out, lambda content: content["config"].update(steps="many"))
    expected = f"{run.out}/run.json: steps: got 'many'; allowed: a whole number"
    assert refusal(run) == expected
    with pytest.raises(UserError) as error:
        load_run(run.out)
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b"no json", "not a line of JSON: "),
        (b"\xff", "not a line of JSON: "),
        (b"[]", "not a record of a run: it has no step"),
        (b'{"loss": 1}', "not a record of a run: it has no step"),
    ],
)
def test_a_record_that_is_none(run: Run, line: bytes, message: str) -> None:
    path = run.out / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + line + b"\n")
    with pytest.raises(UserError) as error:
        read_metrics(path)
    assert str(error.value).startswith(f"{path}:{STEPS + 1}: {message}")
    assert refusal(run) == str(error.value)


def test_a_directory_in_place_of_the_records(run: Run) -> None:
    (run.out / "metrics.jsonl").unlink()
    (run.out / "metrics.jsonl").mkdir()
    assert refusal(run) == f"{run.out}/metrics.jsonl: cannot be read: Is a directory"


def test_a_refused_run_leaves_nothing(corpus: Path, tmp_path: Path) -> None:
    run = short(corpus, tmp_path / "new" / "run")
    with pytest.raises(UserError, match="resume is always"):
        train(run, resume="always")
    assert not (tmp_path / "new").exists()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match="a new directory, or one with"):
        train(replace(run, out=tmp_path / "mine"))
    assert [path.name for path in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def test_a_lock_that_its_holder_removed_is_not_taken_for_the_next(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = directory.fcntl.flock
    calls = []

    def remove_first(file, how):
        calls.append(how)
        if len(calls) == 1:
            (tmp_path / directory.LOCK).unlink()
        real(file, how)

    monkeypatch.setattr(directory.fcntl, "flock", remove_first)
    with directory.open_lock(tmp_path), pytest.raises(UserError, match="no other process uses"):
        directory.open_lock(tmp_path)
    assert len(calls) == 3


def test_places_do_not_depend_on_the_working_directory(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    monkeypatch.chdir(corpus.parent)
    sizes = {"steps": 2, "save_every": 1, "keep": 2, "schedule": ScheduleSpec(warmup=1)}
    run = short(Path(corpus.name), tmp_path / "run", **sizes)
    finish(run)
    shutil.rmtree(run.out / "checkpoints" / "step-00000002")
    monkeypatch.chdir(tmp_path)
    saved = load_run(run.out)
    assert saved.data.directory == corpus
    train(saved)
    assert sessions(run.out) == [0, 1]
    assert "going on from step 1" in capsys.readouterr().err.splitlines()


def of_stream(run: Run, **changes: object) -> Run:
    stream = replace(run.model.stream, **changes)
    return replace(run, model=replace(run.model, stream=stream))


def test_kernels_that_cannot_run_are_refused_before_a_directory_is_made(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    run = of_stream(short(corpus, tmp_path / "new" / "run"), impl="triton")
    with pytest.raises(UserError, match=r"^stream.impl: got 'triton'; allowed: auto, reference"):
        finish(run)
    assert not (tmp_path / "new").exists()


def test_how_a_stream_is_computed_may_change(run: Run) -> None:
    finish(of_stream(run, impl="reference"))
    assert sessions(run.out) == [0, STEPS]
    saved = load_run(run.out)
    assert saved.model.stream.impl == "reference"
    assert refusal(of_stream(run, key_dim=2)).startswith("model.stream.key_dim: got 2; allowed: 4")
