"""A process that trains one run after the other on one device.

It lives as long as there are runs for it: the interpreter, the libraries and the device are set up
once. It takes runs from its parent and tells it what becomes of them, as JSON both ways, and dies
with its parent.
"""

from __future__ import annotations

import gc
import itertools
import json
import os
import queue
import statistics
import threading
import time
import traceback
from dataclasses import dataclass
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import torch

import depth_memory.models  # noqa: F401 - loaded before the first run asks for it
from depth_memory.errors import UserError
from depth_memory.files import reason
from depth_memory.sweep import state
from depth_memory.train import Run, read_metrics, train
from depth_memory.train.directory import METRICS, read_description
from depth_memory.train.loop import Result
from depth_memory.train.progress import Progress

SECONDS_BETWEEN_STEPS = 1.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What a process needs to know at its start."""

    out: Path
    """Directory of the sweep."""
    log: Path
    """What the process and its libraries print goes there."""
    environment: dict[str, str]
    """Added to its own: the device that it may see."""
    threads: int
    """Of torch, on the CPU."""
    started: float
    """Time at which the parent asked for it."""


def main(connection: Connection, setup: Setup, lock: Any) -> None:
    """Train what the parent sends, until it closes the connection.

    Args:
        connection: To the parent.
        setup: Of this process.
        lock: Keeps the directory of the sweep held while this process lives.
    """
    del lock  # an open descriptor, which the system closes when this process ends
    # Ctrl-C is for the parent, which then stops its workers
    os.setsid()
    _print_to(setup.log)
    os.environ.update(setup.environment)
    torch.set_num_threads(setup.threads)
    jobs: queue.Queue[dict[str, Any]] = queue.Queue()
    threading.Thread(target=_listen, args=(connection, jobs), daemon=True).start()
    for place in itertools.count():
        job = jobs.get()
        # the first run pays for the start of the process
        began = time.time() if place else setup.started
        if place:
            _forget(job["config"]["compile"])
        tell(connection, _do(job, setup.out, Teller(connection, began), place))


class Teller:
    """Tells the parent of the first step, and then of a step every second. Final."""

    def __init__(self, connection: Connection, began: float):
        self._connection, self._began, self._last = connection, began, 0.0
        self.first: float | None = None
        """Seconds from the start to the end of the first step; None before that."""

    def update(self, record: dict[str, Any]) -> None:
        """Take the record of a step."""
        now = time.monotonic()
        if self.first is None:
            self.first = time.time() - self._began
        elif now - self._last < SECONDS_BETWEEN_STEPS:
            return
        self._last = now
        told = {key: record[key] for key in ("step", "loss", "tokens_per_second")}
        tell(self._connection, {"event": "step", **told})


def tell(connection: Connection, message: dict[str, Any]) -> None:
    """Send JSON to the parent, or to a worker."""
    connection.send_bytes(json.dumps(message).encode())


def _listen(connection: Connection, jobs: queue.Queue[dict[str, Any]]) -> None:
    try:
        while True:
            jobs.put(json.loads(connection.recv_bytes()))
    except (EOFError, OSError):
        # the parent has no more runs, or is dead: what is not saved would be done twice
        os._exit(0)


def _do(job: dict[str, Any], out: Path, teller: Teller, place: int) -> dict[str, Any]:
    """Train a run and keep its result; what to tell the parent."""
    run = Run.from_dict(job["config"])
    progress = Progress(teller.update, lambda text: print(text, flush=True), lambda: None)
    try:
        outcome = train(run, show=progress)
        result = _result(job["run"], run, outcome)
        result["seconds_to_first_step"] = None if teller.first is None else round(teller.first, 3)
        result["runs_before_in_process"] = place
        state.write_result(out, result)
    except UserError as error:
        return {"event": "failed", "error": str(error), "leave": False}
    except Exception as error:
        traceback.print_exc()
        # who knows what is left of the device: a new process takes over
        return {
            "event": "failed",
            "error": f"{type(error).__name__}: {reason(error)}",
            "leave": True,
        }
    return {"event": "finished", "result": result}


def _result(name: str, run: Run, outcome: Result) -> state.Result:
    """What a finished run gave: its configuration, its losses, and what they must carry."""
    records = read_metrics(run.out / METRICS)
    sessions = read_description(run.out)["sessions"]
    last = sessions[-1]
    return {
        "run": name,
        "status": state.FINISHED,
        "validation_loss": outcome.evaluation.loss,
        "bits_per_byte": outcome.evaluation.bits_per_byte,
        "validation_tokens": outcome.evaluation.tokens,
        "train_loss": records[-1]["loss"],
        "parameters": last["parameters"],
        "tokens": run.steps * run.rows * run.length,
        "tokens_per_second": statistics.median(r["tokens_per_second"] for r in records),
        "sessions": len(sessions),
        "device": last["device"],
        "commit": last["commit"],
        "versions": last["versions"],
        "config": run.as_dict(),
    }


def _forget(compiles: bool) -> None:
    """Leave nothing of the run before: its memory, or compiled code that would count as a variant.

    Compiled kernels stay on the disk, where torch finds them again.
    """
    if compiles:
        torch.compiler.reset()
    gc.collect()
    if torch.cuda.is_initialized():
        torch.cuda.empty_cache()


def _print_to(log: Path) -> None:
    log.parent.mkdir(exist_ok=True)
    with log.open("a") as file:
        os.dup2(file.fileno(), 1)
        os.dup2(file.fileno(), 2)
