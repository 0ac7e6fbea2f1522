"""A run goes on from its own checkpoints, and never touches what is not its own."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from safetensors import safe_open

from depth_memory.errors import UserError
from depth_memory.train import Run, ScheduleSpec, directory, train
from depth_memory.train import checkpoint as checkpoints
from tests.train.processes import result, start
from tests.train.runs import STEPS, curve, finish, sessions, short, weights
from tests.train.test_checkpoint import cut_last_byte, flip_one_byte, remove
from tests.train.tiny import write_corpus


@pytest.fixture
def interrupted(corpus: Path, tmp_path: Path) -> Run:
    """A run with checkpoints at steps 2 and 4, killed in its last step."""
    run = short(corpus, tmp_path / "run", keep=3)
    finish(run)
    shutil.rmtree(run.out / "model")
    shutil.rmtree(run.out / "checkpoints" / f"step-{STEPS:08d}")
    return run


@pytest.mark.parametrize("damage", [cut_last_byte, flip_one_byte, remove])
@pytest.mark.parametrize("name", ["model.safetensors", "state.json"])
def test_a_damaged_newest_is_passed_over_and_named(
    interrupted: Run, damage: Callable[[Path], None], name: str, capsys: pytest.CaptureFixture
) -> None:
    expected = curve(interrupted.out)
    damage(interrupted.out / "checkpoints" / "step-00000004" / name)
    outcome = train(interrupted)
    assert [text.split(" ")[:2] for text in outcome.skipped] == [["step-00000004:", name]]
    assert f"skipped damaged checkpoint step-00000004: {name}" in capsys.readouterr().err
    assert sessions(interrupted.out) == [0, 2]
    assert curve(interrupted.out) == expected


def test_all_damaged_is_an_error_and_nothing_starts_again(interrupted: Run) -> None:
    for path in (interrupted.out / "checkpoints").iterdir():
        cut_last_byte(path / "optimizer.safetensors")
    before = contents(interrupted.out)
    with pytest.raises(UserError, match=r"no usable checkpoint; step-00000004: optimizer"):
        train(interrupted)
    assert contents(interrupted.out) == before


def contents(out: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(out)): path.read_bytes()
        for path in sorted(out.rglob("*"))
        if path.is_file()
    }


def optim(run: Run, **changes) -> Run:
    return replace(run, optim=replace(run.optim, **changes))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda r: optim(r, lr=0.5), "optim.lr: got 0.5; allowed: 0.003, as in "),
        (lambda r: replace(r, seed=3), "seed: got 3; allowed: 0, as in "),
        (lambda r: replace(r, rows=8), "rows: got 8; allowed: 4, as in "),
        (lambda r: replace(r, steps=50), "steps: got 50; allowed: 6, as in "),
        (
            lambda r: replace(r, model=replace(r.model, stream={"name": "preln"})),
            "model.stream.name: got 'preln'; allowed: 'ldm', as in ",
        ),
    ],
)
def test_another_configuration_is_refused_and_nothing_overwritten(
    interrupted: Run, change: Callable[[Run], Run], message: str
) -> None:
    before = contents(interrupted.out)
    with pytest.raises(UserError) as error:
        train(change(interrupted))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)
    assert contents(interrupted.out) == before


def test_a_checkpoint_of_another_configuration_is_refused(interrupted: Run, tmp_path: Path) -> None:
    other = optim(replace(interrupted, out=tmp_path / "other"), lr=0.5)
    finish(other)
    for path in (interrupted.out / "checkpoints").iterdir():
        shutil.rmtree(path)
    shutil.copytree(
        checkpoints.listed(other.out / "checkpoints")[0],
        interrupted.out / "checkpoints" / "step-00000006",
    )
    with pytest.raises(UserError, match=r"optim.lr: got 0.003; allowed: 0.5, as in .*step-0000000"):
        train(interrupted)


def test_data_of_another_tokenizer_or_content_is_refused(interrupted: Run, tmp_path: Path) -> None:
    other = write_corpus(tmp_path / "other", seed=1)
    run = replace(interrupted, data=replace(interrupted.data, directory=other))
    with pytest.raises(UserError, match=r"^data\.tokens: got \d+; allowed: \d+, as in "):
        train(run)
    saved = directory.read_description(run.out)
    saved["data"]["tokenizer_sha256"] = "0" * 64
    (run.out / "run.json").write_text(json.dumps(saved))
    with pytest.raises(UserError, match=r"^data\.tokenizer_sha256: got '.*'; allowed: '0000"):
        train(interrupted)


def test_what_changes_no_weight_may_change(interrupted: Run, tmp_path: Path) -> None:
    moved = tmp_path / "moved"
    interrupted.out.rename(moved)
    changes = {"out": moved, "save_every": 1, "keep": 5, "eval_every": 0, "eval_windows": 1}
    train(replace(interrupted, **changes), show=False)
    assert sessions(moved) == [0, 4]
    assert checkpoints.listed(moved / "checkpoints")[0].name == "step-00000006"


def test_wsd_may_go_on_longer_as_long_as_it_has_not_begun_to_fall(
    corpus: Path, tmp_path: Path
) -> None:
    wsd = ScheduleSpec(kind="wsd", warmup=1, decay=0.25)
    run = short(corpus, tmp_path / "run", steps=8, save_every=3, keep=9, schedule=wsd)
    finish(run)
    longer = replace(run, steps=12)
    with pytest.raises(UserError, match=r"^steps: got 12; allowed: 8, as in "):
        train(longer)
    shutil.rmtree(run.out / "checkpoints" / "step-00000008")
    finish(longer)
    finish(replace(longer, out=tmp_path / "direct"))
    assert sessions(run.out) == [0, 6]
    assert weights(run.out) == weights(tmp_path / "direct")


def test_a_directory_with_something_else_is_left_alone(corpus: Path, tmp_path: Path) -> None:
    run = short(corpus, tmp_path / "run")
    run.out.mkdir()
    (run.out / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"^out: got '.*'; allowed: a new directory, or one with"):
        train(run)
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^out: got '.*'; allowed: a directory that can be"):
        train(replace(run, out=tmp_path / "file"))
    assert (run.out / "thesis.tex").read_text() == "years of work"


def test_resume_never_and_always(corpus: Path, tmp_path: Path) -> None:
    run = short(corpus, tmp_path / "run", steps=2, schedule=ScheduleSpec(warmup=1))
    with pytest.raises(UserError, match=r"with a checkpoint \(resume is always\)"):
        train(run, resume="always")
    train(run, resume="never", show=False)
    train(run, resume="always", show=False)
    with pytest.raises(UserError, match=r"a new directory \(resume is never\)"):
        train(run, resume="never")


def test_two_processes_cannot_share_a_directory(corpus: Path, tmp_path: Path) -> None:
    run = short(corpus, tmp_path / "run")
    with (
        directory.lock(run.out),
        pytest.raises(UserError, match=r"a directory that no other process uses"),
    ):
        train(run)


def test_the_optimiser_is_saved_without_pickle(interrupted: Run) -> None:
    path = checkpoints.listed(interrupted.out / "checkpoints")[0]
    with safe_open(path / "optimizer.safetensors", framework="pt") as file:
        kinds = {name.rpartition(".")[2] for name in file.keys()}  # noqa: SIM118
        assert kinds == {"exp_avg", "exp_avg_sq", "step"}
        assert file.get_tensor("model.embed_tokens.weight.step").item() == 4
    assert {p.suffix for p in interrupted.out.rglob("*") if p.is_file()} <= {
        ".json", ".jsonl", ".safetensors", ".py", ""
    }  # fmt: skip


def test_a_child_that_fails_is_reported() -> None:
    with pytest.raises(AssertionError, match="ZeroDivisionError"):
        result(*start(divmod, 1, 0))
