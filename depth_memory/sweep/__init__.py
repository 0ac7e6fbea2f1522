"""Sweeps: many runs over the devices at hand, restartable at any point.

`load` reads a description, `run_sweep` runs what is not finished. Read `description.py` first,
then `pool.py` and `worker.py`.
"""

from depth_memory.sweep.description import Sweep, describe, load, resolve
from depth_memory.sweep.devices import Slot, slots
from depth_memory.sweep.pool import Outcome, run_sweep
from depth_memory.sweep.state import read_results, statuses

__all__ = [
    "Outcome",
    "Slot",
    "Sweep",
    "describe",
    "load",
    "read_results",
    "resolve",
    "run_sweep",
    "slots",
    "statuses",
]
