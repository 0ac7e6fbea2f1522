"""Kills by SIGKILL, at a chosen moment of the disk, or from outside at any."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

CALLS = (
    (os, "fsync"),
    (os, "replace"),
    (Path, "rename"),
    (Path, "unlink"),
    (shutil, "rmtree"),
)


def die_at(fatal: int, action: Callable, *args: Any, **kwargs: Any) -> int:
    """Do something, and be killed just before the `fatal`-th thing that the disk is asked to do.

    What was to be made durable then is left half written. For a process of its own. Returns how
    many things there were, if that is fewer.
    """
    count = 0

    def guard(owner: object, name: str) -> None:
        real = getattr(owner, name)

        def guarded(*args, **kwargs):
            nonlocal count
            count += 1
            if count == fatal:
                _cut(*args[:1])
                os.kill(os.getpid(), signal.SIGKILL)
            return real(*args, **kwargs)

        setattr(owner, name, guarded)

    for owner, name in CALLS:
        guard(owner, name)
    action(*args, **kwargs)
    return count


def _cut(target: object) -> None:
    """Halve an open file that can be written to."""
    if isinstance(target, int) and os.get_blocking(target):
        try:
            os.ftruncate(target, os.fstat(target).st_size // 2)
        except OSError:
            return  # a folder
