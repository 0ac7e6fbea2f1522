"""Families of runs: named descriptions for `depth-memory sweep`, as one would write in a file.

The format is that of `depth_memory.sweep.description`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from depth_memory.presets.depthbench import DEPTHBENCH_400M, DEPTHBENCH_1600M
from depth_memory.presets.hour import HOUR
from depth_memory.presets.paper import LLAMA_400M, QWEN_1500M
from depth_memory.presets.recipes import peak_rate
from depth_memory.presets.study import STUDY_FAMILIES
from depth_memory.train.config import Run

Description = dict[str, Any]
Preset = Callable[[], Run]

METHODS = ("preln", "hc", "mhc", "block_attnres", "attnres", "ldm")


def rates_debug() -> Description:
    """PreLN, mHC and LDM at three learning rates, ten steps each: a minute on a CPU."""
    axes = {"stream": ["preln", "mhc", "ldm"], "optim.lr": [1.5e-3, 3e-3, 6e-3]}
    return {"preset": "debug", "set": {"keep": 1}, "axes": axes}


def rates_hour() -> Description:
    """Every method at three learning rates, on one GPU an hour each."""
    return _rates(HOUR)


def rates_400m() -> Description:
    """Every method of Depth Memory at 400M, at the three learning rates of its source."""
    return _rates(LLAMA_400M)


def rates_1500m() -> Description:
    """Every method of Depth Memory at 1.5B, at the three learning rates of its source."""
    return _rates(QWEN_1500M)


def depthbench_400m() -> Description:
    """Six methods at every aspect ratio of DepthBench's 400M, at their best known rates."""
    methods = {stream: {"stream": stream, "optim.lr": peak_rate(stream)} for stream in METHODS}
    axes = {"preset": [name_of(preset) for preset in DEPTHBENCH_400M], "method": methods}
    return {"set": {"keep": 1}, "axes": axes}


def depthbench_1600m() -> Description:
    """Six methods at every aspect ratio of DepthBench's 1.6B, at three learning rates."""
    axes = {
        "preset": [name_of(preset) for preset in DEPTHBENCH_1600M],
        "stream": list(METHODS),
        "optim.lr": [5e-4, 1e-3, 2e-3],
    }
    return {"set": {"keep": 1}, "axes": axes}


FAMILY_FUNCTIONS = (
    rates_debug,
    rates_hour,
    rates_400m,
    rates_1500m,
    depthbench_400m,
    depthbench_1600m,
    *STUDY_FAMILIES,
)


def name_of(function: Any) -> str:
    """How a preset or a family is called on the command line."""
    return function.__name__.replace("_", "-")


def three_rates(run: Run) -> tuple[float, float, float]:
    """The preset's learning rate between half and double of it.

    That is the grid of Depth Memory's sweeps (its cards) for LDM and block AttnRes; its grid for
    mHC at 400M ends at the best rate.
    """
    lr = run.optim.lr
    mhc = run.model.stream.name == "mhc" and lr == 2e-3
    return (lr / 4, lr / 2, lr) if mhc else (lr / 2, lr, lr * 2)


def _rates(presets: Iterable[Preset]) -> Description:
    points = {
        f"{name_of(preset)}-lr{lr:g}": {"preset": name_of(preset), "optim.lr": lr}
        for preset in presets
        for lr in three_rates(preset())
    }
    return {"set": {"keep": 1}, "axes": {"point": points}}
