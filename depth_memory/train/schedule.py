"""The learning rate of a step, as a factor of its peak."""

from __future__ import annotations

import math

from depth_memory.train.config import ScheduleSpec


def factor(spec: ScheduleSpec, step: int, steps: int) -> float:
    """What the peak learning rate is multiplied by.

    Args:
        spec: The schedule.
        step: Number of the update, from 0.
        steps: Number of updates in the run.

    Returns:
        `(step + 1) / warmup` in the warmup, `floor` at the last update, and in between the half
        cosine, or for `wsd` 1 until `decay * steps` updates from the end and then a straight line.
    """
    done = step + 1
    if done <= spec.warmup:
        return done / spec.warmup
    return spec.floor + (1 - spec.floor) * _above_floor(spec, done, steps)


def _above_floor(spec: ScheduleSpec, done: int, steps: int) -> float:
    if spec.kind == "cosine":
        return 0.5 + 0.5 * math.cos(math.pi * (done - spec.warmup) / (steps - spec.warmup))
    falling = round(spec.decay * steps)
    return min(1.0, (steps - done) / falling) if falling else 1.0
