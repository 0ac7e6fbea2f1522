"""SIGTERM and Ctrl-C: the step ends, a checkpoint is written, and going on is exact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from depth_memory import presets
from depth_memory.errors import Stopped
from depth_memory.train import DataSpec, Evaluation, Run, loop, step, train
from depth_memory.train import checkpoint as checkpoints
from depth_memory.train.progress import Progress
from depth_memory.train.stop import listening
from tests.train.processes import call_ranks
from tests.train.runs import curve, finish, sessions, short, weights


@pytest.fixture(autouse=True)
def _default_handlers() -> Iterator[None]:
    """A test run in the background of a shell is started with Ctrl-C ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler
    assert signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    signal.signal(signal.SIGINT, before)


def ask_at(step: int, *numbers: int, said: list[str] | None = None) -> Progress:
    """A progress that sends signals to this process once a step is done."""

    def update(record: dict) -> None:
        if record["step"] == step:
            for number in numbers:
                signal.raise_signal(number)

    return Progress(update, (said if said is not None else []).append, lambda: None)


@pytest.mark.parametrize(
    ("numbers", "name"),
    [((signal.SIGTERM, signal.SIGTERM), "SIGTERM"), ((signal.SIGINT,), "SIGINT")],
)
@pytest.mark.parametrize("beside", [False, True])
def test_asked_to_stop_a_run_saves_and_goes_on_to_the_bit(
    corpus: Path, tmp_path: Path, numbers: tuple[int, ...], name: str, beside: bool
) -> None:
    whole = short(corpus, tmp_path / "whole", save_every=0)
    run = replace(whole, out=tmp_path / "run", async_save=beside)
    finish(whole)
    said: list[str] = []
    with pytest.raises(Stopped) as stopped:
        train(run, show=ask_at(3, *numbers, said=said))
    assert stopped.value.code == 128 + numbers[0]
    saved = run.out / "checkpoints" / "step-00000004"
    assert said == [
        f"stopped by {name} after step 4, saved as {saved}; go on with the same command"
    ]
    found = checkpoints.newest(run.out / "checkpoints")
    assert found is not None
    assert found.path == saved
    assert not (run.out / "model").exists()
    finish(run)
    assert sessions(run.out) == [0, 4]
    assert weights(run.out) == weights(whole.out)
    assert curve(run.out) == curve(whole.out)


def test_asked_in_an_evaluation_no_further_step_is_taken(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def asked(session: step.Session) -> Evaluation:
        signal.raise_signal(signal.SIGTERM)
        return evaluate(session)

    evaluate = loop._evaluate
    monkeypatch.setattr(loop, "_evaluate", asked)
    run = short(corpus, tmp_path / "run", save_every=0, eval_every=3)
    with pytest.raises(Stopped):
        train(run, show=False)
    assert [path.name for path in checkpoints.listed(run.out / "checkpoints")] == ["step-00000003"]
    assert curve(run.out)[-1][0] == 3


@pytest.mark.parametrize("late", [1, 0])
def test_asked_in_the_last_step_or_after_it_nothing_is_lost(
    corpus: Path, tmp_path: Path, late: int
) -> None:
    run = short(corpus, tmp_path / "run")
    with pytest.raises(Stopped):
        train(run, show=ask_at(run.steps - late, signal.SIGTERM))
    assert checkpoints.listed(run.out / "checkpoints")[0].name == f"step-{run.steps:08d}"
    assert not (run.out / "model").exists()
    finish(run)
    assert (run.out / "model").exists()


def test_a_second_interrupt_does_not_wait(corpus: Path, tmp_path: Path) -> None:
    run = short(corpus, tmp_path / "run", save_every=0)
    with pytest.raises(KeyboardInterrupt):
        train(run, show=ask_at(2, signal.SIGINT, signal.SIGINT))
    assert checkpoints.listed(run.out / "checkpoints") == []


def test_whoever_handles_signals_already_goes_on_doing_so() -> None:
    heard = []
    signal.signal(signal.SIGTERM, lambda number, frame: heard.append(number))
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with listening() as request:
            signal.raise_signal(signal.SIGTERM)
            signal.raise_signal(signal.SIGINT)
        assert (heard, request.number) == ([signal.SIGTERM], 0)
    finally:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        signal.signal(signal.SIGINT, signal.default_int_handler)


def stopped_alone(run: Run) -> str:
    """Train; the second rank alone is asked to stop, in the third step."""
    draw = step._rows

    def rows(session: step.Session, number: int):
        if number == 2 and not session.world.main:
            signal.raise_signal(signal.SIGTERM)
        return draw(session, number)

    step._rows = rows
    with pytest.raises(Stopped) as error:
        finish(run)
    return str(error.value.code)


def test_one_of_two_ranks_is_asked_and_both_stop(corpus: Path, tmp_path: Path) -> None:
    run = short(corpus, tmp_path / "run", save_every=0)
    assert call_ranks(2, stopped_alone, run) == ["143", "143"]
    assert [path.name for path in checkpoints.listed(run.out / "checkpoints")] == ["step-00000003"]


def torchrun(run: Run, log: Path) -> subprocess.Popen:
    """The command on two ranks, with the fields in which `run` differs from its preset."""
    fields = {
        "--data.directory": run.data.directory, "--out": run.out, "--steps": run.steps,
        "--save-every": run.save_every, "--eval-every": run.eval_every, "--device": "cpu",
    }  # fmt: skip
    given = [str(part) for pair in fields.items() for part in pair]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
    with log.open("w") as file:
        return subprocess.Popen(
            [sys.executable, *command, "-m", "depth_memory", "train", "debug", *given],
            stdout=file, stderr=file, env={**os.environ, "OMP_NUM_THREADS": "1"},
        )  # fmt: skip


def test_torchrun_hands_it_on_and_two_ranks_stop_together(corpus: Path, tmp_path: Path) -> None:
    base = replace(presets.debug(), data=DataSpec(directory=corpus), device="cpu")
    run = replace(base, steps=10**6, save_every=0, eval_every=0, out=tmp_path / "run")
    log = tmp_path / "log"
    process = torchrun(run, log)
    deadline = time.monotonic() + 60
    metrics = run.out / "metrics.jsonl"
    while not (metrics.exists() and metrics.read_bytes().count(b"\n")):
        assert process.poll() is None, log.read_text()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.terminate()
    assert process.wait(60) != 0
    (saved,) = checkpoints.listed(run.out / "checkpoints")
    said = f"stopped by SIGTERM after step {checkpoints.step_of(saved)}, saved as {saved}; "
    assert log.read_text().count(said) == 1
    assert checkpoints.step_of(saved) == len(curve(run.out))
