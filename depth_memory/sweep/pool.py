"""Runs over devices: hand them out, note what becomes of them, stop when asked to.

The parent computes nothing. Each device has one worker, forked from a server that has imported
everything and touched no device, so that even a worker that replaces a dead one starts at once.
"""

from __future__ import annotations

import json
import multiprocessing
import signal
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from multiprocessing.connection import Connection, wait
from multiprocessing.reduction import DupFd
from pathlib import Path
from typing import Any, TextIO

from depth_memory import data
from depth_memory.sweep import devices, state, worker
from depth_memory.sweep.description import Sweep
from depth_memory.train.corpus import default_directory
from depth_memory.train.progress import clock

SECONDS_BETWEEN_LINES = 30.0
GRACE = 120.0
"""Seconds that a worker has to save and leave once it was asked to."""

Note = Callable[[str], None]


@dataclass(frozen=True, kw_only=True)
class Outcome:
    """What a sweep left."""

    results: dict[str, state.Result]
    """Name -> result, in order, of the runs that are over."""
    signal: int | None
    """The signal that stopped it; None if every run is over."""


@dataclass(kw_only=True)
class _Worker:
    slot: devices.Slot
    process: Any
    connection: Connection
    job: str | None = None
    last: str = "starting"


@dataclass(kw_only=True)
class _Pool:
    """What the loop knows. Final."""

    sweep: Sweep
    pending: deque[str]
    lock: TextIO
    threads: int
    note: Note
    workers: list[_Worker] = field(default_factory=list)
    over: int = 0


class _Held:
    """An open file that a process takes along. Final."""

    def __init__(self, file: int):
        self.file = file

    def __reduce__(self) -> tuple[Any, ...]:
        return _detached, (DupFd(self.file),)


def _detached(duplicate: Any) -> _Held:
    return _Held(duplicate.detach())


def run_sweep(
    sweep: Sweep,
    slots: Sequence[devices.Slot],
    *,
    names: Iterable[str] | None = None,
    note: Note = print,
) -> Outcome:
    """Run what is not finished, one run per slot at a time; failed runs are tried again.

    Args:
        sweep: The runs.
        slots: Where they run.
        names: Which of them; all if not given.
        note: Takes lines about the progress.

    Raises:
        UserError: The directory or the data is not usable; nothing has begun.
    """
    chosen = list(sweep.runs) if names is None else list(names)
    with state.hold(sweep.out, note) as lock:
        state.claim(sweep)
        results = state.read_results(sweep.out, chosen)
        pending = [n for n in chosen if results.get(n, {}).get("status") != state.FINISHED]
        note(f"{sweep.out}: {len(chosen) - len(pending)} of {len(chosen)} runs are finished")
        _check_data(sweep, pending, note)
        pool = _Pool(
            sweep=sweep,
            pending=deque(pending),
            lock=lock,
            threads=devices.threads(len(slots)),
            note=note,
        )
        stopped = _work(pool, slots)
        state.write_lines(sweep.out, sweep.runs)
    return Outcome(results=state.read_results(sweep.out, chosen), signal=stopped)


def _check_data(sweep: Sweep, names: Iterable[str], note: Note) -> None:
    """Verify each corpus once for all runs, and make the embedded one before they race for it."""
    specs = {sweep.runs[name].data for name in names}
    for folder in sorted({str(spec.directory) for spec in specs if spec.directory and spec.verify}):
        note(f"verifying {folder}")
        data.verify(Path(folder))
    if any(spec.directory is None for spec in specs):
        data.ensure_default(default_directory())


def _work(pool: _Pool, slots: Sequence[devices.Slot]) -> int | None:
    """Until every run is over, or a signal comes; returns it."""
    last = time.monotonic()
    with _signals() as caught:
        try:
            for slot in slots[: len(pool.pending)]:
                _start(pool, slot)
            while pool.workers and not caught:
                for connection in wait([w.connection for w in pool.workers], timeout=0.5):
                    _hear(pool, next(w for w in pool.workers if w.connection is connection))
                if time.monotonic() - last > SECONDS_BETWEEN_LINES:
                    last = time.monotonic()
                    _tell_progress(pool)
        finally:
            _stop(pool, caught)
    return caught[0] if caught else None


def _start(pool: _Pool, slot: devices.Slot) -> None:
    """A new worker with its first run."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([worker.__name__])
    setup = worker.Setup(
        out=pool.sweep.out.resolve(),
        log=pool.sweep.out.resolve() / "logs" / f"{slot.name}.txt",
        environment=slot.environment,
        threads=pool.threads,
        started=time.time(),
    )
    ours, theirs = context.Pipe()
    held = _Held(pool.lock.fileno())
    process = context.Process(target=worker.main, args=(theirs, setup, held), name=slot.name)
    process.start()
    theirs.close()
    started = _Worker(slot=slot, process=process, connection=ours)
    pool.workers.append(started)
    _next(pool, started)


def _next(pool: _Pool, at: _Worker) -> None:
    """Give a worker its next run, or let it go."""
    if not pool.pending:
        _leave(pool, at)
        return
    at.job, at.last = pool.pending.popleft(), "starting"
    run = pool.sweep.runs[at.job]
    # the data was verified for all of them
    run = replace(run, data=replace(run.data, verify=False))
    pool.note(f"{at.slot.name}: {at.job} begins")
    # if it is dead, that is heard of next
    with suppress(OSError):
        worker.tell(at.connection, {"run": at.job, "config": run.as_dict()})


def _hear(pool: _Pool, at: _Worker) -> None:
    """Take one message of a worker, or its death."""
    try:
        message = json.loads(at.connection.recv_bytes())
    except (EOFError, OSError):
        _leave(pool, at)
        _failed(pool, at, f"its process died ({_death(at.process.exitcode)})")
        _replace(pool, at)
        return
    if message["event"] == "step":
        at.last = f"step {message['step']}, loss {message['loss']:.4f}"
        return
    if message["event"] == "finished":
        result = message["result"]
        pool.over += 1
        pool.note(f"{at.slot.name}: {at.job} is finished: {_summary(result)}")
    else:
        _failed(pool, at, message["error"])
    state.write_lines(pool.sweep.out, pool.sweep.runs)
    at.job = None
    if message.get("leave"):
        _leave(pool, at)
        _replace(pool, at)
    else:
        _next(pool, at)


def _failed(pool: _Pool, at: _Worker, error: str) -> None:
    """Keep the reason, and go on with the others."""
    if at.job is None:
        return
    log = pool.sweep.out / "logs" / f"{at.slot.name}.txt"
    pool.over += 1
    pool.note(f"{at.slot.name}: {at.job} failed: {error} (more in {log})")
    state.write_result(pool.sweep.out, state.failure(at.job, pool.sweep.runs[at.job], error))
    state.write_lines(pool.sweep.out, pool.sweep.runs)


def _replace(pool: _Pool, at: _Worker) -> None:
    if pool.pending:
        _start(pool, at.slot)


def _leave(pool: _Pool, at: _Worker) -> None:
    at.connection.close()
    at.process.join()
    pool.workers.remove(at)


def _tell_progress(pool: _Pool) -> None:
    waiting = f"{len(pool.pending)} runs wait" if pool.pending else "no run waits"
    parts = [f"{at.slot.name}: {at.job} {at.last}" for at in pool.workers]
    pool.note("; ".join([*parts, waiting]))


def _summary(result: state.Result) -> str:
    first = result["seconds_to_first_step"]
    parts = [f"validation {result['validation_loss']:.4f}"]
    parts += [f"{result['tokens_per_second']:.0f} tokens/s"]
    return ", ".join([*parts, *([] if first is None else [f"first step after {clock(first)}"])])


def _stop(pool: _Pool, caught: list[int]) -> None:
    """End every worker: it may save first, unless a second signal comes or its time is up."""
    for at in pool.workers:
        at.process.terminate()
    deadline = time.monotonic() + GRACE
    for at in list(pool.workers):
        while at.process.exitcode is None and len(caught) < 2 and time.monotonic() < deadline:
            at.process.join(0.1)
        at.process.kill()
        _leave(pool, at)


def _death(exitcode: int) -> str:
    if exitcode >= 0:
        return f"exit code {exitcode}"
    return signal.Signals(-exitcode).name


@contextmanager
def _signals() -> Generator[list[int]]:
    """The signals that ask to stop, as they come. Only the main thread can hear them."""
    caught: list[int] = []
    if threading.current_thread() is not threading.main_thread():
        yield caught
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, lambda n, _: caught.append(n)) for number in numbers]
    try:
        yield caught
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


__all__ = ["Outcome", "run_sweep"]
