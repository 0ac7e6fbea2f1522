"""Time and memory of steps, and the ratio to the step that is measured around each."""

from __future__ import annotations

import gc
import itertools
import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import torch

from depth_memory.bench.steps import Step
from depth_memory.errors import UserError

GIB = 2**30
HOST_REPEATS = 3
LONGEST_ERROR = 300
FLUSHED = 256 * 2**20
"""Bytes to write until a cache holds nothing else. What is then still to be written to memory makes
up for what a run leaves in the cache."""
CYCLES_PER_MS = 2_000_000
"""Of a fast GPU; a slower one waits longer, which does no harm."""


@dataclass(frozen=True, kw_only=True)
class Plan:
    """How every row of a file is measured."""

    rounds: int = 7
    """How often a step is timed, each time between two timings of PreLN."""
    seconds: float = 0.5
    """How long a timing lasts at least."""
    warm_up: int = 3
    """Steps before the first timing; they compile."""
    compile: bool = True
    seed: int = 0
    repeats: int = 20
    """Runs of a single pass of which a timing is the median."""


@dataclass(frozen=True, kw_only=True)
class Prepared:
    """A step that is warm, and how long it takes roughly."""

    step: Step
    plain: Step
    """The same step, launched kernel by kernel: where memory shows."""
    seconds: float
    cuda_graph: bool


def prepare(step: Step, plan: Plan, device: torch.device, *, capture: bool) -> Prepared:
    """Warm a step up, and capture it as a CUDA graph if that is asked for and works."""
    for _ in range(plan.warm_up):
        step()
    captured = _captured(step) if capture and device.type == "cuda" else None
    best = captured or step
    best()
    seconds = timed(best, 1, device) / 1e3
    return Prepared(step=best, plain=step, seconds=seconds, cuda_graph=captured is not None)


def compare(this: Prepared, base: Prepared | None, plan: Plan, device: torch.device) -> dict:
    """The numbers of a row.

    Returns:
        `ms`, the median; `ratio_to_preln`, the median over rounds of the speed relative to PreLN
        just before and after; `spread`, the range of that ratio over its median (of the time where
        there is no base); `host_ms` and `peak_gib`.
    """
    times, bases = _rounds(this, base, plan, device)
    ms = statistics.median(times)
    around = [(a + b) / 2 for a, b in itertools.pairwise(bases)]
    ratios = [b / t for b, t in zip(around, times, strict=True)] if base else []
    return {
        "ms": ms,
        "ratio_to_preln": statistics.median(ratios) if base else None,
        "spread": spread(ratios or times),
        "host_ms": _host_ms(this.step, device),
        "peak_gib": _peak_gib(this.plain, device),
        "cuda_graph": this.cuda_graph,
    }


def spread(values: Sequence[float]) -> float:
    """The range of values relative to their median."""
    return (max(values) - min(values)) / statistics.median(values)


def timed(step: Step, steps: int, device: torch.device) -> float:
    """Milliseconds of a step, on the GPU's clock or, without one, on the wall's."""
    if device.type != "cuda":
        began = time.perf_counter()
        for _ in range(steps):
            step()
        return (time.perf_counter() - began) * 1e3 / steps
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
    step()  # as in a long run: the host is ahead when the first timed step begins, if it can be
    begin.record()
    for _ in range(steps):
        step()
    end.record()
    end.synchronize()
    return begin.elapsed_time(end) / steps


def timed_apart(run: Callable[[], Any], repeats: int, device: torch.device) -> list[float]:
    """Milliseconds of each of some runs, none of which finds in the cache what it needs.

    Work that is queued before them hides how long the host takes to launch each.
    """
    run()
    if device.type != "cuda":
        return [timed(run, 1, device) for _ in range(repeats)]
    flush = torch.empty(FLUSHED, dtype=torch.uint8, device=device)
    host = _host_ms(lambda: (flush.zero_(), run()), device) * repeats
    events = [[torch.cuda.Event(enable_timing=True) for _ in range(2)] for _ in range(repeats)]
    torch.cuda._sleep(int(2 * host * CYCLES_PER_MS))
    for begin, end in events:
        flush.zero_()
        begin.record()
        run()
        end.record()
    torch.cuda.synchronize(device)
    return [begin.elapsed_time(end) for begin, end in events]


def attempted(work: Callable[[], None]) -> str | None:
    """What went wrong, in one line, or None; whatever it is, the next row can still be measured."""
    try:
        work()
        message = None
    except Exception as error:
        name = "" if isinstance(error, UserError) else f"{type(error).__name__}: "
        message = " ".join(f"{name}{error}".split())[:LONGEST_ERROR]
    # outside the handler, where the traceback holds no tensors any more
    release()
    return message


def release() -> None:
    """Give back the memory of what is not used any more."""
    gc.collect()
    if torch.cuda.is_available():
        # a device that is beyond use says so again when it is checked
        with suppress(RuntimeError):
            torch.cuda.empty_cache()


def synchronize(device: torch.device) -> None:
    """Wait for the GPU, if there is one."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _rounds(
    this: Prepared, base: Prepared | None, plan: Plan, device: torch.device
) -> tuple[list[float], list[float]]:
    """Times of a step, and of the base's before the first and after each."""
    steps = max(1, round(plan.seconds / this.seconds))
    base_steps = max(1, round(plan.seconds / base.seconds)) if base else 0
    times, bases = [], [timed(base.step, base_steps, device)] if base else []
    for _ in range(plan.rounds):
        times.append(timed(this.step, steps, device))
        if base:
            bases.append(timed(base.step, base_steps, device))
    return times, bases


def _host_ms(step: Step, device: torch.device) -> float:
    """Milliseconds until a step has been issued to an idle device."""
    found = []
    for _ in range(HOST_REPEATS):
        synchronize(device)
        began = time.perf_counter()
        step()
        found.append((time.perf_counter() - began) * 1e3)
    synchronize(device)
    return statistics.median(found)


def _peak_gib(step: Step, device: torch.device) -> float | None:
    """The most memory that tensors take during a step, what is always there included."""
    if device.type != "cuda":
        return None
    torch.cuda.reset_peak_memory_stats(device)
    step()
    synchronize(device)
    return torch.cuda.max_memory_allocated(device) / GIB


def _captured(step: Step) -> Any | None:
    """The replay of a step's CUDA graph, or None where it cannot be captured."""
    try:
        graph, side = torch.cuda.CUDAGraph(), torch.cuda.Stream()
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            step()
        torch.cuda.current_stream().wait_stream(side)
        with torch.cuda.graph(graph):
            kept = step()
        graph.replay()
        torch.cuda.synchronize()
    except RuntimeError:
        return None

    def replay() -> Any:
        graph.replay()
        return kept

    return replay
