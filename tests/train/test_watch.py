"""A rank that is killed or hangs ends the other one soon, with a reason."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest

from depth_memory.errors import Failure
from depth_memory.train import Run
from depth_memory.train import checkpoint as checkpoints
from depth_memory.train import step as step_module
from depth_memory.train.parallel import World
from depth_memory.train.watch import Watch
from tests.train.processes import result, start
from tests.train.runs import finish, short
from tests.train.test_loss import ALONE

FATAL = 4


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Run:
    return short(corpus, tmp_path / "run", timeout=3.0)


def lose(run: Run, number: int, log: Path) -> str:
    """Train; the second rank sends itself a signal when its fourth step begins."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    sys.stderr = os.fdopen(2, "w")
    rows = step_module._rows

    def losing(session: step_module.Session, step: int):
        if step + 1 == FATAL and not session.world.main:
            os.kill(os.getpid(), number)
        return rows(session, step)

    step_module._rows = losing
    try:
        finish(run)
    except Failure as error:
        return str(error)
    return "finished"


def two_ranks(run: Run, number: int, log: Path) -> list:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        start(lose, run, number, log.with_name(f"{rank}"), env={**shared, "RANK": str(rank)})
        for rank in range(2)
    ]


GO_ON = "go on from the last checkpoint with the same command"


def test_a_rank_that_is_killed_ends_the_other_with_one_line(run: Run, tmp_path: Path) -> None:
    (survivor, answer), (lost, _) = two_ranks(
        replace(run, timeout=600.0), signal.SIGKILL, tmp_path / "log"
    )
    lost.join(60)
    began = time.monotonic()
    message = result(survivor, answer)
    assert time.monotonic() - began < 60  # not the ten minutes of the timeout
    assert lost.exitcode == -signal.SIGKILL
    assert message.startswith(f"step {FATAL}, rank 0 of 2: another process is gone (")
    assert message.endswith(f"; {GO_ON}")
    assert "\n" not in message
    assert checkpoints.listed(run.out / "checkpoints")[0].name == "step-00000002"


def test_a_rank_that_hangs_ends_the_other_after_the_timeout(run: Run, tmp_path: Path) -> None:
    (survivor, _answer), (stopped, _) = two_ranks(run, signal.SIGSTOP, tmp_path / "log")
    try:
        survivor.join(60)
        assert survivor.exitcode == 1
    finally:
        stopped.kill()
        survivor.kill()
    said = (tmp_path / "0").read_text()
    late = "not done after timeout = 3 s: another process hangs"
    assert said == f"error: step {FATAL}, rank 0 of 2: {late}; {GO_ON}\n"


def test_alone_an_error_stays_what_it_is() -> None:
    with (
        Watch(ALONE, 1.0) as watch,
        pytest.raises(RuntimeError, match=r"^Timed out$"),
        watch.step(1),
    ):
        raise RuntimeError("Timed out")


def test_what_has_nothing_to_do_with_others_stays_what_it_is() -> None:
    world = World(rank=0, size=2, device=ALONE.device)
    with Watch(world, 9.0) as watch, pytest.raises(RuntimeError, match=r"^shapes$"), watch.step(1):
        raise RuntimeError("shapes")
