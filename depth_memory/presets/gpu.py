"""Runs for one GPU."""

from __future__ import annotations

from pathlib import Path

from depth_memory.streams.ldm_config import LDMConfig
from depth_memory.train.config import ModelSpec, OptimSpec, Run, ScheduleSpec


def small() -> Run:
    """12 layers of width 512 in bfloat16, for one GPU and a corpus of your own."""
    return Run(
        model=ModelSpec(
            family="qwen3",
            width=512,
            depth=12,
            heads=8,
            kv_heads=8,
            ffn=1408,
            max_length=2048,
            stream=LDMConfig(),
        ),
        optim=OptimSpec(lr=2e-3),
        schedule=ScheduleSpec(warmup=200),
        steps=4000,
        rows=64,
        length=1024,
        precision="bfloat16",
        compile=True,
        eval_every=500,
        eval_windows=256,
        save_every=500,
        out=Path("runs/small"),
    )
