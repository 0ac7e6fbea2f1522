"""Two processes are one process, to 1e-6: losses, checkpoints, errors."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from depth_memory.errors import UserError
from depth_memory.train import Run, read_metrics, train
from depth_memory.train.parallel import choose_device, connect
from tests.train.processes import call, call_ranks
from tests.train.tiny import tiny_run

STEPS = 6


def losses(run: Run) -> list[float]:
    return [record["loss"] for record in read_metrics(run.out / "metrics.jsonl")]


def finish(run: Run) -> float:
    return train(run, show=False).evaluation.loss


def message(run: Run) -> str:
    try:
        finish(run)
    except UserError as error:
        return str(error)
    return "no error"


@pytest.fixture(scope="module")
def one(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    out = tmp_path_factory.mktemp("one") / "run"
    run = tiny_run(corpus, out, steps=STEPS, save_every=3, eval_every=3, accumulate=2)
    call(finish, run)
    return run


@pytest.fixture(scope="module")
def two(one: Run) -> Run:
    run = replace(one, out=one.out.with_name("two"))
    evaluations = call_ranks(2, finish, run)
    assert evaluations[0] == evaluations[1]
    return run


def forget_the_end(run: Run, out: Path) -> Run:
    """A copy of the run as it was at step 3."""
    shutil.copytree(run.out, out)
    shutil.rmtree(out / "model")
    shutil.rmtree(out / "checkpoints" / "step-00000006")
    return replace(run, out=out)


def assert_same_model(a: Run, b: Run) -> None:
    ours, theirs = (load_file(run.out / "model" / "model.safetensors") for run in (a, b))
    assert ours.keys() == theirs.keys()
    for name, weight in ours.items():
        torch.testing.assert_close(weight, theirs[name], atol=1e-5, rtol=0, msg=name)


def test_two_processes_train_as_one(one: Run, two: Run) -> None:
    assert losses(two) == pytest.approx(losses(one), abs=1e-6)
    assert_same_model(one, two)


def test_a_checkpoint_of_two_goes_on_as_one(one: Run, two: Run, tmp_path: Path) -> None:
    run = forget_the_end(two, tmp_path / "run")
    call(finish, run)
    assert losses(run)[:3] == losses(two)[:3]
    assert losses(run) == pytest.approx(losses(one), abs=1e-6)
    assert_same_model(run, two)


def test_a_checkpoint_of_one_goes_on_as_two(one: Run, two: Run, tmp_path: Path) -> None:
    run = forget_the_end(one, tmp_path / "run")
    call_ranks(2, finish, run)
    assert losses(run)[:3] == losses(one)[:3]
    assert losses(run) == pytest.approx(losses(one), abs=1e-6)
    assert_same_model(run, one)


def test_two_processes_resume_to_the_bit(two: Run, tmp_path: Path) -> None:
    run = forget_the_end(two, tmp_path / "run")
    call_ranks(2, finish, run)
    assert losses(run) == losses(two)
    names = [run.out / "model" / "model.safetensors" for run in (run, two)]
    assert names[0].read_bytes() == names[1].read_bytes()


def test_an_error_of_one_is_the_error_of_all(two: Run) -> None:
    assert (
        call_ranks(2, message, replace(two, seed=9))
        == [f"seed: got 9; allowed: 0, as in {two.out / 'run.json'}"] * 2
    )
    assert (
        call_ranks(2, message, replace(two, rows=3, accumulate=1))
        == ["rows: got 3; allowed: a multiple of 2 processes x accumulate = 1"] * 2
    )


def test_a_gpu_that_is_not_there_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    assert choose_device("auto") == torch.device("cpu")
    with pytest.raises(UserError, match=r"device: got 'cuda'; allowed: auto or cpu"):
        choose_device("cuda")


def test_alone_nothing_is_set_up() -> None:
    with connect("cpu") as world:
        assert (world.rank, world.size, world.main) == (0, 1, True)
        assert not torch.distributed.is_initialized()
        assert world.gather(7) == [7]
        assert world.do(lambda: "said") == "said"


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"WORLD_SIZE": "abc"}, "WORLD_SIZE: got 'abc'; allowed: a whole number of at least 1"),
        ({"WORLD_SIZE": "0"}, "WORLD_SIZE: got '0'; allowed: a whole number of at least 1"),
        ({"WORLD_SIZE": "2"}, "WORLD_SIZE: got 2, but no RANK; allowed: what torchrun sets"),
        ({"WORLD_SIZE": "2", "RANK": "2", "MASTER_ADDR": "a", "MASTER_PORT": "1"},
         "RANK: got 2; allowed: 0 to WORLD_SIZE - 1 = 1"),
        ({"WORLD_SIZE": "2", "RANK": "0", "MASTER_ADDR": "a", "MASTER_PORT": "x"},
         "MASTER_PORT: got 'x'; allowed: a whole number of at least 0"),
    ],
)  # fmt: skip
def test_an_environment_that_torchrun_does_not_set_is_refused(
    monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], message: str
) -> None:
    for name in ("WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(UserError) as error, connect("cpu"):
        pass
    assert str(error.value).startswith(message)
