"""Being asked to stop: a run saves at the end of the step, and says how to go on."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Generator
from contextlib import contextmanager
from types import FrameType

HINT = b"stopping after this step; once more to stop at once\n"


class Request:
    """Whether this process was asked to stop, and by which signal. Final."""

    def __init__(self) -> None:
        self.number = 0
        """Of the signal; 0 if none has come."""


@contextmanager
def listening() -> Generator[Request]:
    """Note SIGTERM, however often it comes, and the first Ctrl-C; the next one acts as before.

    Only where the system, or Python, would end the process: whoever handles SIGTERM, or ignores
    Ctrl-C, goes on doing so. Outside the main thread nothing is noted.
    """
    request, before = Request(), {}

    def note(number: int, frame: FrameType | None) -> None:
        if number == signal.SIGINT:
            if request.number:
                before[number](number, frame)
            os.write(2, HINT)
        request.number = number

    if threading.current_thread() is threading.main_thread():
        if signal.getsignal(signal.SIGTERM) is signal.SIG_DFL:
            before[signal.SIGTERM] = signal.signal(signal.SIGTERM, note)
        if callable(signal.getsignal(signal.SIGINT)):
            before[signal.SIGINT] = signal.signal(signal.SIGINT, note)
    try:
        yield request
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
