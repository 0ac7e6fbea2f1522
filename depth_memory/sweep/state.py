"""The directory of a sweep: what is to be run, what is finished, and who works there.

    out/sweep.json          name -> configuration, of all runs ever asked for
    out/runs/NAME/          see `train.directory`
    out/results/NAME.json   what the run gave, or why it failed; written once it is over
    out/results.jsonl       all of these in order, one line a run
    out/logs/DEVICE.txt     what the processes said

A run is finished when its result is there. Delete that and `runs/NAME` to run it again.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, TextIO

from depth_memory.errors import UserError, invalid
from depth_memory.files import misfit, read_json
from depth_memory.sweep.description import Sweep
from depth_memory.train import Run, checkpoint, directory, files, serial
from depth_memory.train.config import MAY_CHANGE

FORMAT = 1
SWEEP = "sweep.json"
RESULTS = "results"
LINES = "results.jsonl"
FINISHED, FAILED = "finished", "failed"
PATIENCE = 10.0
"""Seconds in which the processes of a killed sweep must have let go of its directory."""

Result = dict[str, Any]


@contextmanager
def hold(out: Path, note: Callable[[str], None]) -> Generator[TextIO]:
    """Hold the directory of a sweep, alone, as long as any process has the file that this yields.

    Raises:
        UserError: Another sweep holds it, or it cannot be written.
    """
    deadline = time.monotonic() + PATIENCE
    with ExitStack() as stack:
        file, said = None, False
        while file is None:
            try:
                file = stack.enter_context(directory.open_lock(out))
            except UserError as error:
                if not isinstance(error.__cause__, BlockingIOError) or time.monotonic() > deadline:
                    raise
                if not said:
                    note(f"waiting for {out}, which another process uses")
                said = True
                time.sleep(0.1)
        yield file


def claim(sweep: Sweep) -> None:
    """Make the directory this sweep's: new, or one whose runs it has and may add to.

    Raises:
        UserError: It holds something else, a run that the sweep lacks, or one with another
            configuration; names run and field.
    """
    path = sweep.out / SWEEP
    for name, theirs in _recorded(sweep.out).items():
        if name not in sweep.runs:
            raise invalid("runs", list(sweep.runs), f"those of {path} and more; it has {name}")
        _check_same(name, sweep.runs[name], theirs, path)
    runs = {name: run.as_dict() for name, run in sweep.runs.items()}
    files.write_text(path, files.dumps({"format": FORMAT, "runs": runs}))
    for folder in (sweep.out, sweep.out / RESULTS):
        folder.mkdir(exist_ok=True)
        files.sweep(folder)


def _recorded(out: Path) -> dict[str, Any]:
    """Name -> configuration of the runs that the directory was made for."""
    path = out / SWEEP
    if not path.exists():
        used = [p for p in out.iterdir() if p.name != directory.LOCK and ".partial" not in p.name]
        if used:
            raise invalid("out", str(out), f"a new directory, or one with the {SWEEP} of a sweep")
        return {}
    content = read_json(path, "the description of a sweep")
    _check_kinds(path, content, {"format": int, "runs": dict})
    _check_version(path, content)
    return content["runs"]


def _check_kinds(path: Path, content: dict[str, Any], kinds: Mapping[str, type]) -> None:
    broken = misfit(content, kinds)
    if broken is not None:
        raise UserError(f"{path}: damaged ({broken} is missing or of another kind)")


def _check_version(path: Path, content: dict[str, Any]) -> None:
    if content["format"] > FORMAT:
        allowed = f"up to {FORMAT} (written by a newer depth-memory)"
        raise invalid(f"{path}: format", content["format"], allowed)


def _check_same(name: str, run: Run, saved: Any, path: Path) -> None:
    """Refuse other values, but for the fields that a resume may change."""
    runs = (run, Run.from_dict(saved))
    ours, theirs = (directory.without(each, MAY_CHANGE) for each in runs)
    field = serial.first_difference(ours, theirs)
    if field is not None:
        allowed = f"{serial.lookup(theirs, field)!r}, as in {path}, or another --out"
        raise invalid(f"run {name}: {field}", serial.lookup(ours, field), allowed)


def write_result(out: Path, result: Result) -> None:
    """Keep the result of a run, durably."""
    folder = out / RESULTS
    folder.mkdir(exist_ok=True)
    files.write_text(folder / f"{result['run']}.json", files.dumps({"format": FORMAT, **result}))


def read_results(out: Path, names: Iterable[str]) -> dict[str, Result]:
    """Name -> result, of the runs that have one; `status` says whether it finished or failed."""
    found = {}
    for name in names:
        path = out / RESULTS / f"{name}.json"
        if path.exists():
            found[name] = _read(path)
    return found


def write_lines(out: Path, names: Iterable[str]) -> None:
    """Write `results.jsonl` anew: the results there are, in the order of `names`."""
    results = read_results(out, names).values()
    files.write_text(out / LINES, "".join(json.dumps(r, allow_nan=False) + "\n" for r in results))


def failure(name: str, run: Run, error: str) -> Result:
    """The result of a run that failed."""
    return {"run": name, "status": FAILED, "error": error, "config": run.as_dict()}


def statuses(sweep: Sweep) -> dict[str, str]:
    """Name -> `new`, `finished`, `failed`, or the step that is saved. Writes nothing."""
    results = read_results(sweep.out, sweep.runs)
    return {
        name: results[name]["status"] if name in results else _progress(run)
        for name, run in sweep.runs.items()
    }


def _progress(run: Run) -> str:
    saved = checkpoint.listed(run.out / "checkpoints")
    if not saved:
        return "new"
    return f"step {int(saved[0].name.removeprefix('step-'))}"


def _read(path: Path) -> Result:
    try:
        result = read_json(path, "the result of a run")
        _check_kinds(path, result, {"format": int, "run": str, "status": str, "config": dict})
    except UserError as error:
        raise UserError(f"{error}; delete it to go on") from error
    _check_version(path, result)
    del result["format"]
    return result
