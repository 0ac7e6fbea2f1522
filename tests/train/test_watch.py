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
from depth_memory.train import Run, loop
from depth_memory.train import checkpoint as checkpoints
from depth_memory.train import step as step_module
from depth_memory.train.parallel import World
from depth_memory.train.watch import Watch
from tests.train.processes import result, start
from tests.train.runs import finish, short
from tests.train.test_loss import ALONE

FATAL = 4
MOMENTS = {
    "step": (step_module, "_rows"),
    "evaluation": (loop, "_evaluate"),
    "start": (loop, "_begin"),
}


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Run:
    return short(corpus, tmp_path / "run", timeout=3.0)


def lose(run: Run, number: int, log: Path, when: str) -> str:
    """Train; the second rank sends itself a signal at the start, in an evaluation or a step."""
    os.dup2(os.open(log, os.O_WRONLY | os.O_CREAT), 2)
    sys.stderr = os.fdopen(2, "w")
    owner, name = MOMENTS[when]
    real = getattr(owner, name)

    def losing(*args):
        if os.environ["RANK"] == "1" and (when != "step" or args[1] + 1 == FATAL):
            os.kill(os.getpid(), number)
        return real(*args)

    setattr(owner, name, losing)
    try:
        finish(run)
    except Failure as error:
        return str(error)
    return "finished"


def two_ranks(run: Run, number: int, log: Path, when: str = "step") -> list:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    shared = {"WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return [
        start(lose, run, number, log.with_name(f"{rank}"), when, env={**shared, "RANK": str(rank)})
        for rank in range(2)
    ]


GO_ON = "go on from the last checkpoint with the same command"


@pytest.mark.parametrize(
    ("when", "where"),
    [
        ("start", "before the first step"),
        ("step", f"step {FATAL}"),
        ("evaluation", f"step {FATAL - 1}"),
    ],
)
def test_a_rank_that_is_killed_ends_the_other_with_one_line(
    run: Run, tmp_path: Path, when: str, where: str
) -> None:
    (survivor, answer), (lost, _) = two_ranks(
        replace(run, timeout=600.0), signal.SIGKILL, tmp_path / "log", when
    )
    lost.join(60)
    began = time.monotonic()
    message = result(survivor, answer)
    assert time.monotonic() - began < 60  # not the ten minutes of the timeout
    assert lost.exitcode == -signal.SIGKILL
    assert message.startswith(f"{where}, rank 0 of 2: another process is gone (")
    assert message.endswith(f"; {GO_ON}")
    assert "\n" not in message
    saved = [path.name for path in checkpoints.listed(run.out / "checkpoints")]
    assert saved == ([] if when == "start" else ["step-00000002"])


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
        pytest.raises(RuntimeError, match=r"^Timed out$"),
        Watch(ALONE, 1.0) as watch,
        watch.step(1),
    ):
        raise RuntimeError("Timed out")


def test_what_has_nothing_to_do_with_others_stays_what_it_is() -> None:
    world = World(rank=0, size=2, device=ALONE.device)
    with pytest.raises(RuntimeError, match=r"^shapes$"), Watch(world, 9.0) as watch, watch.step(1):
        raise RuntimeError("shapes")
