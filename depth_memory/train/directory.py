"""The directory of a run: who may write there, and from which step to go on.

    out/run.json            configuration, data, origin, and one entry for each start of the run
    out/metrics.jsonl       one record for each logged step
    out/checkpoints/        see `checkpoint`
    out/model/              at the end: for `from_pretrained`, with `tokenizer.json`

A directory belongs to one configuration. It is never used for another, and never by two processes
at once.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator, Iterable, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, TextIO

from depth_memory.errors import UserError, choose, invalid, within
from depth_memory.files import misfit, read_json, reason
from depth_memory.train import checkpoint, files, schedule, serial
from depth_memory.train.config import MAY_CHANGE, Run
from depth_memory.train.metrics import Record, check_complete, read_metrics

FORMAT = 1
RUN = "run.json"
METRICS = "metrics.jsonl"
LOCK = ".lock"
MODES = ("auto", "never", "always")

Resume = Literal["auto", "never", "always"]


@contextmanager
def lock(out: Path) -> Generator[None]:
    """Hold the directory of a run, made if it is not there; a kill releases it.

    Where no run has begun in the end, what this made is removed again.

    Raises:
        UserError: Another process holds it, or it cannot be written.
    """
    # unlike that of a path, this `exists` leaves it to what follows to say what cannot be
    made = [path for path in (out, *out.parents) if not os.path.exists(path)]
    with open_lock(out):
        try:
            yield
        finally:
            if not (out / RUN).exists():
                with suppress(OSError):
                    (out / LOCK).unlink()
                    for path in made:
                        path.rmdir()


def open_lock(out: Path) -> TextIO:
    """A file that holds a directory, made if it is not there, as long as any process has it open.

    Raises:
        UserError: Another process holds it, or it cannot be written.
    """
    while True:
        try:
            out.mkdir(parents=True, exist_ok=True)
            file = (out / LOCK).open("a")
        except OSError as error:
            allowed = f"a directory that can be written ({reason(error)})"
            raise invalid("out", str(out), allowed) from error
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            file.close()
            raise invalid("out", str(out), "a directory that no other process uses") from error
        if _is_at(file, out / LOCK):
            return file
        file.close()  # who held it before has removed it


def _is_at(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


@dataclass(frozen=True, kw_only=True)
class Start:
    """From where a run goes on."""

    step: int = 0
    checkpoint: str | None = None
    """The checkpoint's directory; None for a run that begins."""
    skipped: Sequence[str] = ()
    """Newer checkpoints that are damaged, and why."""


def find_start(run: Run, identity: dict[str, Any], resume: Resume) -> Start:
    """Decide where to go on from. Writes nothing.

    Args:
        run: The run.
        identity: Of its data, as `run.json` holds it.
        resume: `auto` goes on if there is something to go on from; `never` wants an unused
            directory; `always` wants a checkpoint.

    Raises:
        UserError: The directory holds something else, something damaged, or checkpoints none of
            which is usable; or it has had some, and they are gone.
    """
    choose("resume", resume, MODES)
    used = [path for path in run.out.iterdir() if path.name != LOCK and ".partial" not in path.name]
    if used and not (run.out / RUN).exists():
        raise invalid("out", str(run.out), f"a new directory, or one with a {RUN} of this run")
    if used and resume == "never":
        raise invalid("out", str(run.out), "a new directory (resume is never)")
    found = checkpoint.newest(run.out / "checkpoints")
    if found is None and resume == "always":
        raise invalid("out", str(run.out), "a directory with a checkpoint (resume is always)")
    step = found.manifest["step"] if found else 0
    if used:
        saved = read_description(run.out)
        check_same(run, identity, saved, run.out / RUN, step)
        records = read_metrics(run.out / METRICS)
        if found is None:
            _check_nothing_lost(run.out, saved, records)
        else:
            check_complete(run.out / METRICS, records, step, found.manifest.get("records"))
    if found is None:
        return Start()
    check_same(run, identity, found.manifest, found.path, step)
    return Start(step=step, checkpoint=str(found.path), skipped=found.skipped)


def _check_nothing_lost(out: Path, saved: dict[str, Any], records: list[Record]) -> None:
    """Refuse to begin again where there have been checkpoints, which are gone.

    A run that was killed before its first checkpoint has lost nothing: its records come again.

    Raises:
        UserError: Says by what one can see it.
    """
    theirs = _run_of(saved, out / RUN)
    first = min(theirs.save_every or theirs.steps, theirs.steps)
    last = max((record["step"] for record in records), default=0)
    if (out / "model").exists():
        sign = "a model"
    elif last > (first if (out / "checkpoints").exists() else 0):
        sign = f"records up to step {last} in {METRICS}"
    elif any(session.get("from_step") for session in saved["sessions"]):
        sign = "starts from checkpoints"
    else:
        return
    advice = f"bring {out / 'checkpoints'} back, or begin again in a new directory"
    raise UserError(f"out: {out} has {sign}, but no checkpoint to go on from; {advice}")


def check_same(
    run: Run, identity: dict[str, Any], saved: dict[str, Any], where: Path, step: int
) -> None:
    """Refuse to continue what another configuration or other data began.

    Args:
        run: What is asked for.
        identity: Of its data.
        saved: `config` and `data` of what is there.
        where: Its place, for the error.
        step: Updates already done.

    Raises:
        UserError: Names the first field that differs, and both values.
    """
    theirs = located(_run_of(saved, where))
    dropped = [*MAY_CHANGE, *(("steps", "schedule") if _same_past(run, theirs, step) else ())]
    ours = {**without(run, dropped), "data": identity}
    others = {**without(theirs, dropped), "data": saved["data"]}
    name = serial.first_difference(ours, others)
    if name is not None:
        allowed = f"{serial.lookup(others, name)!r}, as in {where}"
        raise invalid(name, serial.lookup(ours, name), allowed)


def claim(
    run: Run,
    identity: dict[str, Any],
    session: dict[str, Any],
    start: Start,
    origin: dict[str, Any] | None = None,
) -> None:
    """Make the directory this run's, from `start` on.

    Writes `run.json` with the configuration as it is now and one more session, removes what a kill
    left half done, and renames the damaged checkpoints that `start` passed over.
    """
    path, root = run.out / RUN, run.out / "checkpoints"
    sessions = read_description(run.out)["sessions"] if path.exists() else []
    head = {"format": FORMAT, "config": run.as_dict(), "data": identity}
    head |= {} if origin is None else {"origin": origin}
    files.write_text(path, files.dumps({**head, "sessions": [*sessions, session]}))
    root.mkdir(exist_ok=True)
    for folder in (run.out, root):
        files.sweep(folder)
    if start.checkpoint is not None:
        checkpoint.set_aside(root, Path(start.checkpoint))


def read_description(out: Path) -> dict[str, Any]:
    """The content of a run's `run.json`.

    Raises:
        UserError: It is not there, is damaged, or was written by a newer version.
    """
    path = out / RUN
    content = read_json(path, "the description of a run")
    version = content.get("format")
    if isinstance(version, int) and version > FORMAT:
        allowed = f"up to {FORMAT} (written by a newer depth-memory)"
        raise invalid(f"{path}: format", version, allowed)
    broken = _broken(content)
    if broken is not None:
        raise UserError(f"{path}: not the description of a run ({broken} is missing or damaged)")
    return content


def _broken(content: dict[str, Any]) -> str | None:
    """The first part of `run.json` that is not as a run wrote it."""
    kinds = {"format": int, "sessions": list, "config": dict, "data": dict, "origin": dict}
    broken = misfit({"origin": {}, **content}, kinds)
    if broken is not None or content["format"] != FORMAT:
        return broken or "format"
    for entry in content["sessions"]:
        if not isinstance(entry, dict) or misfit(entry, {"from_step": int}):
            return "sessions"
    return None


def load_run(out: Path) -> Run:
    """The configuration with which the run in `out` was last started.

    Raises:
        UserError: As `read_description`; or it has a field that this version does not know.
    """
    return _run_of(read_description(out), out / RUN)


def located(run: Run) -> Run:
    """`run` with the places that it reads from as they are called from any working directory."""
    folder, origin = run.data.directory, run.origin
    return replace(
        run,
        data=replace(run.data, directory=None if folder is None else folder.absolute()),
        origin=None if origin is None else origin.absolute(),
    )


def _run_of(saved: dict[str, Any], where: Path) -> Run:
    with within(where):
        return Run.from_dict(saved["config"])


def without(run: Run, names: Iterable[str]) -> dict[str, Any]:
    """The fields of a run but for those named; not every stream has every field."""
    fields = run.as_dict()
    for name in names:
        group, _, field = name.rpartition(".")
        (serial.lookup(fields, group) if group else fields).pop(field, None)
    return fields


def _same_past(run: Run, saved: Run, step: int) -> bool:
    """Whether the learning rates of the first `step` updates are the same."""

    def factors(of: Run) -> list[float]:
        return [schedule.factor(of.schedule, i, of.steps) for i in range(step)]

    return min(run.steps, saved.steps) >= step and factors(run) == factors(saved)
