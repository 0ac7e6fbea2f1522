"""When a run writes its checkpoints: while the steps wait, or beside them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import Any

from depth_memory.tensors import Part
from depth_memory.train.parallel import World

Write = Callable[[Sequence[Part]], None]
"""Writes a checkpoint of these tensors, each loaded once and in this order."""


class Saver:
    """Writes one checkpoint at a time; a context manager that leaves none half written. Final.

    Every process gathers the tensors, and the main one writes them: one after the other, or
    `beside` the steps from copies in its memory. What fails there is raised by the next `settle`.
    """

    def __init__(self, world: World, *, beside: bool):
        self._world, self._beside = world, beside
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None

    def __enter__(self) -> Saver:
        return self

    def __exit__(self, *error: Any) -> None:
        if self._thread is not None:
            self._thread.join()

    @property
    def failed(self) -> bool:
        """Whether what is being written in this process has failed."""
        return self._error is not None

    def save(self, parts: Sequence[Part], write: Write) -> None:
        """Write a checkpoint, or begin to; every process must call it.

        Raises:
            UserError: It could not be written, or the one before.
        """
        self.settle()
        if not self._beside:
            self._world.together(parts, write)
            return
        copies = [_copied(part, self._world) for part in parts]
        if self._world.main:
            self._thread = threading.Thread(target=self._work, args=(write, copies))
            self._thread.start()

    def settle(self) -> None:
        """Wait until what was begun is written; every process must call it.

        Raises:
            UserError: It could not be written.
        """
        self._world.do(self._join)

    def _join(self) -> None:
        if self._thread is not None:
            self._thread.join()
            self._thread = None
        error, self._error = self._error, None
        if error is not None:
            raise error

    def _work(self, write: Write, parts: Sequence[Part]) -> None:
        try:
            write(parts)
        except Exception as error:  # of another thread, which has to raise it
            self._error = error


def _copied(part: Part, world: World) -> Part:
    """The tensor as it is now: what is on the CPU already will change with the next step."""
    tensor = part.load()
    if not world.main:
        return part
    copy = tensor.clone() if tensor.device.type == "cpu" else tensor.cpu()
    return part._replace(load=lambda: copy)
