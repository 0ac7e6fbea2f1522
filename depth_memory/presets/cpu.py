"""Runs that a laptop finishes while one waits."""

from __future__ import annotations

from pathlib import Path

from depth_memory.streams.ldm_config import LDMConfig
from depth_memory.train.config import ModelSpec, OptimSpec, Run, ScheduleSpec


def debug() -> Run:
    """Ten steps of a tiny model: seconds on a CPU, to see that everything works."""
    return Run(
        model=ModelSpec(
            family="llama",
            width=32,
            depth=2,
            heads=2,
            kv_heads=1,
            ffn=96,
            max_length=128,
            stream=LDMConfig(key_dim=4, groups=2, read_rank=8, write_rank=8),
        ),
        optim=OptimSpec(lr=3e-3),
        schedule=ScheduleSpec(warmup=1),
        steps=10,
        rows=4,
        length=32,
        eval_every=5,
        eval_windows=8,
        save_every=5,
        out=Path("runs/debug"),
    )


def demo() -> Run:
    """A small Llama on the embedded prose: two minutes on two CPU cores, and the loss falls."""
    return Run(
        model=ModelSpec(
            family="llama",
            width=128,
            depth=6,
            heads=4,
            kv_heads=4,
            ffn=352,
            max_length=512,
            stream=LDMConfig(),
        ),
        optim=OptimSpec(lr=3e-3),
        schedule=ScheduleSpec(warmup=40),
        steps=400,
        rows=8,
        length=128,
        eval_every=100,
        eval_windows=64,
        save_every=100,
        keep=1,
        out=Path("runs/demo"),
    )
