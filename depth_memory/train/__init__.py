"""Training: a configuration in, a model out, exact to the bit whatever happens in between.

`Run` says what to do, `train` does it, `evaluate` measures a model. Read `loop.py` first, then
`loss.py`, `checkpoint.py` and `directory.py`.
"""

from depth_memory.train.config import DataSpec, ModelSpec, OptimSpec, Run, ScheduleSpec
from depth_memory.train.directory import load_run
from depth_memory.train.evaluate import Evaluation, NonFiniteError, evaluate
from depth_memory.train.loop import Result, train
from depth_memory.train.metrics import read_metrics
from depth_memory.train.origin import continued

__all__ = [
    "DataSpec",
    "Evaluation",
    "ModelSpec",
    "NonFiniteError",
    "OptimSpec",
    "Result",
    "Run",
    "ScheduleSpec",
    "continued",
    "evaluate",
    "load_run",
    "read_metrics",
    "train",
]
