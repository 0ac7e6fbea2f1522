"""However often a sweep is killed or stopped, it ends as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from depth_memory.train.directory import lock
from tests.sweep.conftest import STEPS
from tests.sweep.processes import finish, steps, sweep, wait_for
from tests.train.runs import curve, weights

# what depends on the clock, the place, or how often the run was begun
TRANSIENT = ("tokens_per_second", "seconds_to_first_step", "runs_before_in_process", "sessions")
EXPECTED = ("preln-lr0.001", "preln-lr0.003", "ldm-lr0.001", "ldm-lr0.003")
RUNS = len(EXPECTED)


def results(out: Path) -> list[dict]:
    """The lines of a sweep, without what may differ."""
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    for line in lines:
        for name in TRANSIENT:
            del line[name]
        del line["config"]["out"]
    return lines


def everything(out: Path) -> dict[str, tuple]:
    return {path.name: (weights(path), curve(path)) for path in (out / "runs").iterdir()}


def finished(out: Path) -> dict[str, bytes]:
    """Finished runs, with all that a repetition would change."""
    return {
        path.stem: path.read_bytes() + (out / "runs" / path.stem / "run.json").read_bytes()
        for path in (out / "results").glob("*.json")
    }


@pytest.fixture(scope="module")
def source(description: dict, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("sweep") / "tiny.json"
    path.write_text(json.dumps(description))
    return path


@pytest.fixture(scope="module")
def whole(source: Path) -> Path:
    """A sweep that nothing interrupted."""
    out = source.with_name("whole")
    assert finish(source, out, source.with_name("said.txt")) == 0
    assert len(results(out)) == RUNS
    return out


def interrupt(source: Path, out: Path, draw: random.Random, act: Callable) -> None:
    """Begin or go on, and act on the process after some further steps of its runs."""
    before, said = steps(out), out.with_name("said.txt")
    target = draw.randint(before + 1, max(before + 1, min(before + 9, RUNS * STEPS)))
    process = sweep(source, out, said)
    wait_for(process, lambda: steps(out) >= target)
    time.sleep(draw.uniform(0.0, 0.05))
    act(process)
    process.join(60)
    assert process.exitcode is not None


def test_killed_at_random_moments_a_sweep_ends_bit_equal(
    source: Path, whole: Path, tmp_path: Path
) -> None:
    draw, out = random.Random(0), tmp_path / "out"
    for _ in range(4):
        interrupt(source, out, draw, lambda process: process.kill())
    wait_until_free(out)
    kept = finished(out)
    assert finish(source, out, tmp_path / "said.txt") == 0
    assert results(out) == results(whole)
    assert everything(out) == everything(whole)
    after = finished(out)
    assert {name: after[name] for name in kept} == kept


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_says_how_to_go_on(source: Path, tmp_path: Path, number: int) -> None:
    out, codes = tmp_path / "out", []

    def stop(process) -> None:
        os.kill(process.pid, number)
        process.join(60)
        codes.append(process.exitcode)

    interrupt(source, out, random.Random(7), stop)
    said = (tmp_path / "said.txt").read_text()
    assert codes == [128 + number], said
    assert "go on with the same command" in said
    assert "failed" not in said
    # nothing is left that could hold the directory, and what was saved is there
    with lock(out):
        pass
    assert {path.name for path in (out / "runs").iterdir()} <= set(EXPECTED)


def wait_until_free(out: Path) -> None:
    """Until the workers of a killed sweep have noticed."""
    deadline = time.monotonic() + 20
    while True:
        try:
            with lock(out):
                return
        except ValueError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
