"""A process that is gone or hangs ends the others with a reason; without this they would wait."""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Generator
from contextlib import contextmanager

from depth_memory.errors import Failure
from depth_memory.train.parallel import World

GONE = ("closed by peer", "reset by peer", "Broken pipe", "Timed out", "timeout", "NCCL", "gloo")
"""What torch's messages about other processes contain."""
GO_ON = "go on from the last checkpoint with the same command"
PERIOD = 0.2
"""Seconds between two looks at the clock."""


class Watch:
    """Looks after one process among several, from the time they are connected on. Final.

    An exchange that fails raises an error, which becomes one line. In a step, one that never
    returns, because another process hangs, cannot be interrupted: a thread then says so and ends
    the process. Between steps exchanges have a time limit of their own, that of the connection.
    """

    def __init__(self, world: World, seconds: float):
        self._world, self._seconds = world, seconds
        self._step, self._deadline = 0, None
        self._over = threading.Event()

    def __enter__(self) -> Watch:
        if self._world.size > 1:
            threading.Thread(target=self._look, daemon=True).start()
        return self

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        """End the watch.

        Raises:
            Failure: Another process is gone, which is what `error` says.
        """
        self._over.set()
        if self._world.size > 1 and _is_loss(error):
            reason = str(error).strip().partition("\n")[0]
            what = f"another process is gone ({reason})"
            raise Failure(f"{self._where()}: {what}; {GO_ON}") from error

    @contextmanager
    def step(self, number: int) -> Generator[None]:
        """A step, or what belongs to it, which must end in time."""
        self._step, self._deadline = number, time.monotonic() + self._seconds
        try:
            yield
        finally:
            self._deadline = None

    def _where(self) -> str:
        step = f"step {self._step}" if self._step else "before the first step"
        return f"{step}, rank {self._world.rank} of {self._world.size}"

    def _look(self) -> None:
        while not self._over.wait(PERIOD):
            deadline = self._deadline
            if deadline is not None and time.monotonic() > deadline:
                waited = f"not done after timeout = {self._seconds:g} s: another process hangs"
                print(f"error: {self._where()}: {waited}; {GO_ON}", file=sys.stderr, flush=True)
                os._exit(1)


def _is_loss(error: BaseException | None) -> bool:
    """Whether an error is torch's, about another process."""
    told = isinstance(error, RuntimeError) and not isinstance(error, Failure)
    return told and any(text in str(error) for text in GONE)
