"""Tasks with their data, and models scored on them, by lm-evaluation-harness."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from collections.abc import Callable, Generator, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory import data
from depth_memory.errors import UserError, invalid
from depth_memory.evals.scores import Score, score
from depth_memory.evals.tasks import Row, Task, find_task
from depth_memory.files import reason, sha256_of

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase

    from depth_memory.evals.adapter import Adapter

SUFFIXES = (".jsonl", ".jsonl.gz", ".jsonl.xz", ".parquet")
EXTRA = "pip install 'depth-memory[eval]'"
LOCAL_SPLIT = "test"

Step = Callable[[Task, int], None]
"""Told of a task and how many more sequences went through the model."""


@dataclass(frozen=True, kw_only=True)
class LoadedTask:
    """A task with its data."""

    task: Task
    definition: Any
    """The harness's object."""
    source: str
    """The local file, or the data set on the hub."""
    sha256: str | None
    """Of the local file, in hexadecimal."""
    documents: int
    """How many there are."""


@dataclass(frozen=True, kw_only=True)
class TaskResult:
    """What a model scored on a task."""

    scores: dict[str, Score]
    """The harness's name of a metric -> its value and standard error."""
    documents: int
    """How many were scored."""
    truncated: int
    """How many requests lost the start of their context, as it was too long for the model."""
    version: float
    """Of the harness's definition of the task."""


def load_tasks(
    names: Iterable[str], directory: Path | None = None, *, limit: int | None = None
) -> list[LoadedTask]:
    """Tasks with their data, all of it read and checked.

    Args:
        names: Of tasks, see `TASKS`.
        directory: Where to look for local files first, `piqa.jsonl` or `piqa.parquet` for example;
            see `Task.files` for their names. What is not there comes from the hub.
        limit: How many rows of a local file are read; all if not given.

    Raises:
        UserError: The harness is not installed, no such task, a row that is not the task's, or no
            data for a task; the message names the task, or the file and line.
    """
    tasks = list(dict.fromkeys(map(find_task, names)))
    if directory is not None and not directory.is_dir():
        raise invalid("task data", str(directory), "a directory")
    manager = _manager(tasks)
    files = [(task, _local_file(task, directory)) for task in tasks]
    return [
        _from_hub(manager, task, directory)
        if file is None
        else _from_file(manager, task, file, limit)
        for task, file in files
    ]


def evaluate(
    model: PreTrainedModel,
    tokenizer: PreTrainedTokenizerBase,
    tasks: Sequence[LoadedTask],
    *,
    batch: int = 1,
    length: int | None = None,
    limit: int | None = None,
    step: Step | None = None,
) -> dict[str, TaskResult]:
    """Score a model on tasks, zero-shot, without a chat template.

    Args:
        model: A causal language model of transformers or of this package; its mode is kept.
        tokenizer: Its tokenizer.
        tasks: What `load_tasks` returned; they can be used again.
        batch: Sequences per forward pass. It changes the scores by no more than rounding.
        length: Longest context in tokens; by default what the model knows. A longer text is cut
            into windows (WikiText), or loses its start (all other tasks).
        limit: Only the first documents of each task.
        step: Called with a task and the number of sequences, after each forward pass.

    Returns:
        Name of the task -> result, in the order of `tasks`.

    Raises:
        UserError: The tokenizer does not fit the model, an answer does not fit the context, or the
            model computes NaN.
    """
    check_fits(model, tokenizer, length)
    results: dict[str, TaskResult] = {}
    training = model.training
    try:
        for loaded in tasks:
            adapter = _adapter(model, tokenizer, batch, length, _step_of(loaded.task, step))
            results[loaded.task.name] = _scored(adapter, loaded, limit)
    finally:
        model.train(training)
    return results


def check_fits(model: Any, tokenizer: Any, length: int | None) -> None:
    """Refuse a tokenizer or a context that the model cannot read.

    Raises:
        UserError: More tokens than the model knows, more positions, or no end-of-text token.
    """
    known = model.get_input_embeddings().num_embeddings
    largest = max(tokenizer.get_vocab().values())
    if largest >= known:
        raise invalid("tokenizer: largest id", largest, f"below the model's {known}")
    if tokenizer.eos_token_id is None:
        raise invalid("tokenizer: eos_token", None, "a tokenizer with an end-of-text token")
    limit = getattr(model.config, "max_position_embeddings", None)
    if length is not None and limit is not None and not 1 <= length <= limit:
        raise invalid("length", length, f"1 to the model's position limit {limit}")


def _scored(adapter: Adapter, loaded: LoadedTask, limit: int | None) -> TaskResult:
    import lm_eval

    name = loaded.task.harness
    task: Any = {"tasks": {name: loaded.definition}}
    # no bootstrap: see scores
    options: Any = {"limit": limit, "bootstrap_iters": 0, "log_samples": True}
    try:
        with _silent():
            found: Any = lm_eval.evaluate(adapter, task, **options)
    except OverflowError as error:
        field = f"perplexity of {loaded.task.name}"
        raise UserError(f"{field}: got more than a float can hold; allowed: less") from error
    samples = found["samples"][name]
    scores = {
        metric: score(
            metric, found["results"][name][f"{metric},none"], [s[metric] for s in samples]
        )
        for metric in samples[0]["metrics"]
    }
    return TaskResult(
        scores=scores,
        documents=len(samples),
        truncated=adapter.truncated,
        version=float(found["versions"][name]),
    )


def _adapter(model: Any, tokenizer: Any, batch: int, length: int | None, step: Any) -> Adapter:
    with _silent():
        from depth_memory.evals.adapter import Adapter

        return Adapter(model, tokenizer, batch=batch, length=length, step=step)


def _step_of(task: Task, step: Step | None) -> Callable[[int], None]:
    """`step` for one task; it speaks where the harness around it may not."""
    out, err = sys.stdout, sys.stderr

    def aloud(rows: int) -> None:
        if step is not None:
            with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
                step(task, rows)

    return aloud


def _manager(tasks: Iterable[Task]) -> Any:
    """The harness's index of the definitions of `tasks`; of all tasks it would take seconds."""
    try:
        from lm_eval import tasks as definitions
    except ImportError as error:
        raise invalid("tasks", f"no lm_eval ({reason(error)})", f"it after {EXTRA}") from error
    root = Path(definitions.__file__).parent
    folders = dict.fromkeys(root / task.folder for task in tasks)
    with _silent():
        return definitions.TaskManager(include_path=list(folders), include_defaults=False)


def _local_file(task: Task, directory: Path | None) -> Path | None:
    """The task's file in `directory`, if it is there."""
    if directory is None:
        return None
    candidates = [directory / f"{name}{suffix}" for name in task.files for suffix in SUFFIXES]
    found = [path for path in dict.fromkeys(candidates) if path.is_file()]
    if len(found) > 1:
        names = " and ".join(path.name for path in found)
        raise invalid(f"task {task.name}: files in {directory}", names, "one of them")
    return found[0] if found else None


def _from_file(manager: Any, task: Task, path: Path, limit: int | None) -> LoadedTask:
    from datasets import Dataset

    rows: list[Row] = []
    for row, where in data.read_rows(path):
        if limit is not None and len(rows) == limit:
            break
        rows.append(task.convert(row, where))
    if not rows:
        raise invalid(f"{path}: rows", 0, "at least 1")
    local = {
        "task": task.harness,
        "custom_dataset": lambda **_: {LOCAL_SPLIT: Dataset.from_list(rows)},
        "training_split": None,
        "validation_split": None,
        "test_split": LOCAL_SPLIT,
    }
    with _silent():
        # a member of a group is the harness's way to change some fields of a definition
        tasks = manager.load([{"group": "local", "task": [local]}])["tasks"]
    return LoadedTask(
        task=task,
        definition=tasks[task.harness],
        source=str(path),
        sha256=sha256_of(path),
        documents=len(rows),
    )


def _from_hub(manager: Any, task: Task, directory: Path | None) -> LoadedTask:
    try:
        with _silent():
            definition = manager.load([task.harness])["tasks"][task.harness]
    # what datasets raises when the hub cannot be reached, or has no such data set
    except (OSError, ValueError, RuntimeError) as error:
        names = " or ".join(f"{task.files[0]}{suffix}" for suffix in (".jsonl", ".parquet"))
        place = "a directory of task data" if directory is None else str(directory)
        raise UserError(
            f"task {task.name}: no data: not from the hub ({reason(error)}); "
            f"allowed: {names} in {place}"
        ) from error
    config = definition.config
    name = "/".join(filter(None, (config.dataset_path, config.dataset_name)))
    documents = len(definition.eval_docs)
    return LoadedTask(
        task=task, definition=definition, source=f"hub:{name}", sha256=None, documents=documents
    )


@contextlib.contextmanager
def _silent() -> Generator[None]:
    """Keep the harness's prints, bars and log lines from our output; errors still raise."""
    logger, sink = logging.getLogger("lm_eval"), io.StringIO()
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        with contextlib.redirect_stdout(sink), contextlib.redirect_stderr(sink):
            yield
    finally:
        logger.setLevel(level)
