"""Benchmarks: language models under lm-evaluation-harness, with its own definitions of the tasks.

`load_tasks` gets the data of tasks, from local files or from the hub, and `evaluate` scores a model
of this package or of transformers on them. The harness comes with the extra `eval`, and is imported
by these two only.
"""

from depth_memory.evals.harness import LoadedTask, TaskResult, evaluate, load_tasks
from depth_memory.evals.scores import Score
from depth_memory.evals.tasks import TASKS, Task, find_task
from depth_memory.loading.tokenizer import load_tokenizer

__all__ = [
    "TASKS",
    "LoadedTask",
    "Score",
    "Task",
    "TaskResult",
    "evaluate",
    "find_task",
    "load_tasks",
    "load_tokenizer",
]
