"""Checkpoints beside the steps: the same bytes, no waiting, no error lost, no kill that hurts."""

from __future__ import annotations

import errno
import os
import signal
import threading
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from depth_memory.errors import UserError
from depth_memory.tensors import Part
from depth_memory.train import Run, read_metrics, train
from depth_memory.train import checkpoint as checkpoints
from tests.train.processes import call_ranks, start
from tests.train.runs import finish, sessions, short, weights

SAVE_FILE = checkpoints.save_file


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Run:
    return short(corpus, tmp_path / "run", async_save=True, keep=9)


def tensors(run: Run) -> dict[str, bytes]:
    paths = sorted((run.out / "checkpoints").glob("*/*.safetensors"))
    return {str(path.relative_to(run.out)): path.read_bytes() for path in paths}


def test_the_files_are_those_of_waiting(run: Run) -> None:
    run = replace(run, steps=3, save_every=1)
    waiting = replace(run, out=run.out.with_name("waiting"), async_save=False)
    for each in (run, waiting):
        call_ranks(2, finish, each)
    assert len(tensors(run)) == 6
    assert tensors(run) == tensors(waiting)
    assert weights(run.out) == weights(waiting.out)


def test_steps_go_on_while_it_is_written(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    logged, seen = run.out / "metrics.jsonl", []

    def slow(parts: Sequence[Part], path: Path) -> None:
        if path.name == checkpoints.MODEL and path.parent.name.startswith(".step-00000002"):
            deadline = threading.Event()
            while len(read_metrics(logged)) < 4 and not deadline.wait(0.01):
                pass  # step 4 is over, and its save waits for this one
            seen.append(len(read_metrics(logged)))
        SAVE_FILE(parts, path)

    monkeypatch.setattr(checkpoints, "save_file", slow)
    train(run, show=False)
    assert seen == [4]
    assert len(checkpoints.listed(run.out / "checkpoints")) == 3


def full(parts: Sequence[Part], path: Path) -> None:
    """A disk that has no room for the second checkpoint's moments, after half of them."""
    if ".step-00000004" in path.parent.name and path.name == checkpoints.OPTIMIZER:
        SAVE_FILE(parts[: len(parts) // 2], path)
        raise OSError(errno.ENOSPC, "No space left on device")
    SAVE_FILE(parts, path)


def refused(run: Run) -> str:
    checkpoints.save_file = full
    with pytest.raises(UserError) as error:
        train(run, show=False)
    return str(error.value)


@pytest.mark.parametrize("beside", [True, False])
def test_a_full_disk_ends_all_ranks_with_one_line_and_loses_nothing(run: Run, beside: bool) -> None:
    run = replace(run, async_save=beside)
    said = call_ranks(2, refused, run)
    good = run.out / "checkpoints" / "step-00000002"
    why = "checkpoint of step 4 not written (out: cannot write"
    assert said[0].startswith(why)
    assert said[0].endswith(f": No space left on device); last good checkpoint: {good}")
    assert said[1] == said[0]
    assert list((run.out / "checkpoints").iterdir()) == [good]
    # beside the steps it is heard of at the end of one of the next, or by the next save
    last = read_metrics(run.out / "metrics.jsonl")[-1]["step"]
    assert last in ((4, 5, 6) if beside else (4,))


def die_in_the_second_save(run: Run) -> None:
    def dying(parts: Sequence[Part], path: Path) -> None:
        SAVE_FILE(parts, path)
        if ".step-00000004" in path.parent.name:
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
            os.kill(os.getpid(), signal.SIGKILL)

    checkpoints.save_file = dying
    finish(run)


def test_killed_while_it_is_written_the_one_before_counts(run: Run) -> None:
    process, _ = start(die_in_the_second_save, run)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL
    found = checkpoints.newest(run.out / "checkpoints")
    assert found is not None
    assert found.manifest["step"] == 2
    whole = replace(run, out=run.out.with_name("whole"))
    for each in (run, whole):
        finish(each)
    assert sessions(run.out) == [0, 2]
    assert weights(run.out) == weights(whole.out)


def gathered(fails: bool) -> list[str]:
    """In which order two ranks load, when the main one stops after the first part."""
    from depth_memory.train.parallel import connect

    with connect("cpu") as world:
        loaded: list[str] = []

        def load(name: str) -> Callable:
            return lambda: loaded.append(f"{name}{world.most(len(loaded))}")

        def write(parts: Sequence[Part]) -> None:
            for part in parts[: 1 if fails else None]:
                part.load()
            if fails:
                raise UserError("full")

        parts = [Part(name, None, (), load(name)) for name in "abc"]
        try:
            world.together(parts, write)
        except UserError as error:
            loaded.append(str(error))
        return loaded


@pytest.mark.parametrize("fails", [True, False])
def test_a_writer_that_fails_still_gathers_for_the_others(fails: bool) -> None:
    expected = ["a0", "b1", "c2", *(["full"] if fails else [])]
    assert call_ranks(2, gathered, fails) == [expected] * 2
