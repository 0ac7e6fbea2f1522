"""A run survives a kill at any moment, to the bit."""

from __future__ import annotations

import os
import random
import shutil
import signal
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from depth_memory.train import Run
from depth_memory.train import checkpoint as checkpoints
from depth_memory.train.metrics import MetricsFile
from tests.train.processes import call, start
from tests.train.runs import STEPS, curve, finish, sessions, short, weights


def die_at(run: Run, fatal: int) -> int:
    """Train, and be killed just before the `fatal`-th thing that the disk is asked to do.

    Files of tensors are asked for twice: the second kill leaves half a file. Returns how many
    things there were, if that is fewer.
    """
    count = 0

    def tick(half: Callable[[], None] | None = None) -> None:
        nonlocal count
        count += 1
        if count == fatal:
            if half is not None:
                half()
            os.kill(os.getpid(), signal.SIGKILL)

    def guard(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def guarded(*args, **kwargs):
            tick()
            return real(*args, **kwargs)

        setattr(owner, name, guarded)

    for owner, name in [
        (os, "fsync"),
        (os, "replace"),
        (Path, "rename"),
        (Path, "write_text"),
        (shutil, "rmtree"),
        (MetricsFile, "write"),
    ]:
        guard(owner, name)
    save_file = checkpoints.save_file

    def guarded_save(tensors, path, **options):
        tick()
        save_file(tensors, path, **options)
        tick(lambda: path.write_bytes(path.read_bytes()[: path.stat().st_size // 2]))

    checkpoints.save_file = guarded_save
    finish(run)
    return count


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that nothing interrupted."""
    out = tmp_path_factory.mktemp("whole") / "run"
    call(finish, short(corpus, out))
    return out


@pytest.fixture(scope="module")
def moments(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> int:
    """How many moments there are to be killed at."""
    return call(die_at, short(corpus, tmp_path_factory.mktemp("count") / "run"), -1)


def kill(run: Run, fatal: int) -> None:
    process, _ = start(die_at, run, fatal)
    process.join(60)
    assert process.exitcode == -signal.SIGKILL


def test_metrics_have_every_step_once(whole: Path) -> None:
    assert [record[0] for record in curve(whole)] == list(range(1, STEPS + 1))


@pytest.mark.parametrize("chain", range(4))
def test_killed_again_and_again_a_run_ends_bit_equal(
    corpus: Path, tmp_path: Path, whole: Path, moments: int, chain: int
) -> None:
    run, draw = short(corpus, tmp_path / "run"), random.Random(chain)
    for part in (0.35, 0.3, 0.25):
        kill(run, draw.randint(1, int(part * moments)))
    call(finish, run)
    assert weights(run.out) == weights(whole)
    assert curve(run.out) == curve(whole)
    left = [path.name for path in (run.out / "checkpoints").iterdir()]
    assert left == [f"step-{STEPS:08d}"]


def test_killed_at_every_moment_of_a_save_nothing_is_lost(
    corpus: Path, tmp_path: Path, whole: Path, moments: int
) -> None:
    base = short(corpus, tmp_path / "base")
    kill(base, moments // 2)
    saved = checkpoints.newest(base.out / "checkpoints")
    assert saved is not None
    period = 2 * moments // STEPS  # two steps and a save
    for fatal in range(moments // 2, moments // 2 + period, max(period // 6, 1)):
        run = short(corpus, tmp_path / f"run{fatal}")
        kill(run, fatal)
        found = checkpoints.newest(run.out / "checkpoints")
        assert found is not None
        assert found.manifest["step"] >= saved.manifest["step"]
        call(finish, run)
        assert sessions(run.out) == [0, found.manifest["step"]]
        assert weights(run.out) == weights(whole)


def test_killed_from_outside_a_run_ends_bit_equal(corpus: Path, tmp_path: Path) -> None:
    draw = random.Random(0)
    run = short(corpus, tmp_path / "run", steps=16)
    for _ in range(3):
        before = records(run.out)
        process, _ = start(finish, run)
        while process.is_alive() and records(run.out) in (0, before):
            time.sleep(0.005)
        time.sleep(draw.uniform(0.0, 0.05))
        process.kill()
        process.join(60)
    call(finish, run)
    other = replace(run, out=tmp_path / "other")
    call(finish, other)
    assert weights(run.out) == weights(other.out)
    assert curve(run.out) == curve(other.out)


def records(out: Path) -> int:
    path = out / "metrics.jsonl"
    return path.read_bytes().count(b"\n") if path.exists() else 0
