"""The devices at hand, one process for each."""

from __future__ import annotations

import os
from typing import NamedTuple

import torch

from depth_memory.errors import choose, invalid
from depth_memory.train.parallel import choose_device

MOST = 16
"""Processes that may share a GPU."""


class Slot(NamedTuple):
    """A place for one process."""

    name: str
    environment: dict[str, str]
    """What makes the process see its device alone."""


def slots(device: str = "auto", jobs: int | None = None) -> list[Slot]:
    """One slot per visible GPU, or `jobs` on the CPU.

    Args:
        device: `auto`, `cpu` or `cuda`.
        jobs: How many processes at once; one for every GPU, or one on the CPU, if not given. More
            than there are GPUs share them evenly.

    Raises:
        UserError: There is no such device, or too many would share one.
    """
    chosen = choose_device(choose("--device", device, ("auto", "cpu", "cuda")))
    if chosen.type == "cpu":
        hidden = {"CUDA_VISIBLE_DEVICES": ""}
        return [Slot(f"cpu-{i}", hidden) for i in range(1 if jobs is None else jobs)]
    gpus = _gpus()
    count = len(gpus) if jobs is None else jobs
    if count > MOST * len(gpus):
        raise invalid("--jobs", jobs, f"at most {MOST} for each of {len(gpus)} GPUs")
    return [_on_gpu(gpus[i % len(gpus)], i // len(gpus)) for i in range(count)]


def _on_gpu(gpu: str, share: int) -> Slot:
    """The first process on a GPU has its name, the others are numbered."""
    name = f"cuda-{gpu}" if share == 0 else f"cuda-{gpu}-{share + 1}"
    return Slot(name, {"CUDA_VISIBLE_DEVICES": gpu})


def threads(count: int) -> int:
    """Threads on the CPU for each of `count` processes; OMP_NUM_THREADS decides if it is set."""
    given = os.environ.get("OMP_NUM_THREADS", "")
    if given.isdecimal() and int(given):
        return int(given)
    return max(1, len(os.sched_getaffinity(0)) // count)


def _gpus() -> list[str]:
    """As CUDA_VISIBLE_DEVICES names them."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        return [str(i) for i in range(torch.cuda.device_count())]
    return [gpu.strip() for gpu in visible.split(",") if gpu.strip()]
