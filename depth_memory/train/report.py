"""Everything a run tells, in one place: file, loggers, progress. Silent but on the main process."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any

from depth_memory.train.config import Run
from depth_memory.train.directory import METRICS
from depth_memory.train.loggers import open_sink
from depth_memory.train.metrics import MetricsFile, Record
from depth_memory.train.parallel import World
from depth_memory.train.progress import Progress, progress, silent


class Report:
    """The outlets of a run that goes on after `step`; a context manager. Final."""

    def __init__(self, run: Run, step: int, world: World, *, show: bool | Progress):
        self._open = ExitStack()
        self._progress = _progress(run, step, show) if world.main else silent()
        self._open.callback(self._progress.close)
        self._file = None
        self._sinks = []
        if world.main:
            self._file = MetricsFile(run.out / METRICS, step)
            self._open.callback(self._file.close)
            for name in run.loggers:
                sink = open_sink(name, out=run.out, config=run.as_dict(), step=step)
                self._open.callback(sink.close)
                self._sinks.append(sink)

    def __enter__(self) -> Report:
        return self

    def __exit__(self, *error: Any) -> None:
        self._open.close()

    def show(self, record: Record) -> None:
        """Let the progress line know about a step."""
        self._progress.update(record)

    def write(self, record: Record) -> None:
        """Write the record of a step to the file and to every logger."""
        if self._file is not None:
            self._file.write(record)
        values = {k: v for k, v in record.items() if k != "step" and v is not None}
        for sink in self._sinks:
            sink.log(record["step"], values)

    def note(self, text: str) -> None:
        """Say something once."""
        self._progress.note(text)

    def sync(self) -> int:
        """Make the records durable.

        Returns:
            How many the file has, in the main process.
        """
        if self._file is None:
            return 0
        self._file.sync()
        return self._file.count


def _progress(run: Run, step: int, show: bool | Progress) -> Progress:
    if isinstance(show, Progress):
        return show
    return progress(run.steps, step) if show else silent()
