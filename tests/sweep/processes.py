"""A sweep in a process of its own, to be killed."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

from depth_memory import cli
from tests.train.processes import CONTEXT

LIMIT = 60


def sweep(source: Path, out: Path, said: Path) -> Any:
    """Start `depth-memory sweep`; what it says goes to the file `said`."""
    # not a daemon: it has workers of its own
    process = CONTEXT.Process(target=_main, args=(str(source), str(out), str(said)))
    process.start()
    return process


def finish(source: Path, out: Path, said: Path) -> int:
    """Run the sweep to its end; its exit code."""
    process = sweep(source, out, said)
    process.join(LIMIT)
    assert process.exitcode is not None, said.read_text()
    return process.exitcode


def wait_for(process: Any, done: Any) -> None:
    """Until `done()`, or the process is over."""
    deadline = time.monotonic() + LIMIT
    while process.exitcode is None and not done():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def steps(out: Path) -> int:
    """Steps that all runs together have noted."""
    return sum(path.read_bytes().count(b"\n") for path in out.glob("runs/*/metrics.jsonl"))


def _main(source: str, out: str, said: str) -> None:
    with open(said, "a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
    sys.exit(cli.main(["sweep", source, "--out", out, "--jobs", "2", "--device", "cpu"]))
