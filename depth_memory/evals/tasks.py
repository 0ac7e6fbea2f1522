"""The benchmarks we know: what the harness calls them, and what their local files are called."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from depth_memory.errors import invalid
from depth_memory.evals import rows

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class Task:
    """A benchmark of lm-evaluation-harness. What it asks and how it is scored is defined there."""

    name: str
    """As on the command line."""
    harness: str
    """The harness's name of it."""
    folder: str
    """Where the harness defines it: a folder beside its other tasks."""
    files: tuple[str, ...]
    """What a local file may be called, without its suffix."""
    convert: Callable[[Row, str], Row]
    """From a local row, and where it stands, to a row as the hub's data set has it."""

    @property
    def names(self) -> tuple[str, ...]:
        """Every name that finds it."""
        return (self.name, self.harness, *self.files)


_ALL = (
    Task(
        name="wikitext",
        harness="wikitext",
        folder="wikitext",
        files=("wikitext2_test", "wikitext"),
        convert=rows.wikitext,
    ),
    Task(
        name="lambada",
        harness="lambada_openai",
        folder="lambada",
        files=("lambada_openai", "lambada"),
        convert=rows.lambada,
    ),
    Task(name="piqa", harness="piqa", folder="piqa", files=("piqa",), convert=rows.piqa),
    Task(name="arc_easy", harness="arc_easy", folder="arc", files=("arc_easy",), convert=rows.arc),
    Task(
        name="arc_challenge",
        harness="arc_challenge",
        folder="arc",
        files=("arc_challenge",),
        convert=rows.arc,
    ),
    Task(
        name="hellaswag",
        harness="hellaswag",
        folder="hellaswag",
        files=("hellaswag",),
        convert=rows.hellaswag,
    ),
    Task(
        name="winogrande",
        harness="winogrande",
        folder="winogrande",
        files=("winogrande",),
        convert=rows.winogrande,
    ),
    Task(
        name="openbookqa",
        harness="openbookqa",
        folder="openbookqa",
        files=("openbook_qa", "openbookqa"),
        convert=rows.openbookqa,
    ),
    Task(
        name="siqa",
        harness="social_iqa",
        folder="siqa",
        files=("social_iqa", "siqa"),
        convert=rows.siqa,
    ),
)

TASKS: dict[str, Task] = {task.name: task for task in _ALL}
"""Name -> benchmark, in the order of a table of results."""


def find_task(name: str) -> Task:
    """The task that goes by `name`: ours, the harness's, or that of its local file.

    Raises:
        UserError: No such task; names those there are.
    """
    found = next((task for task in _ALL if name in task.names), None)
    if found is None:
        raise invalid("task", name, ", ".join(TASKS))
    return found
