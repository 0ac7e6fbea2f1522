"""The two recipes of the literature, and the vocabulary that their counts assume.

Both are those of the language models in DepthBench (arXiv 2609.32534), which Depth Memory keeps:
AdamW with betas 0.9 and 0.95, eps 1e-8 and a weight decay of 0.1 on every parameter, gradients
clipped at norm 1, 10% of linear warmup, a cosine to a tenth of the peak, 512 sequences of 2048
tokens per step. Two things are ours: the optimiser's weights are float32 beside a bfloat16 network
where theirs are bfloat16 alone, and first weights are normal where theirs are cut at three sigma.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from depth_memory import streams
from depth_memory.train.config import DataSpec, ModelSpec, OptimSpec, Run, ScheduleSpec

VOCAB_SIZE = 50_280
"""Of `allenai/gpt-neox-olmo-dolma-v1_5`. The vocabulary of a run comes with its data; this is what
the parameters of these presets are counted with."""

DATA = Path("data/fineweb-edu")
"""Where `depth-memory data prepare` is expected to have put FineWeb-Edu."""

LDM = ("ldm", "ldm_delta", "ldm_outer")


def peak_rate(stream: str) -> float:
    """The best learning rate that is known for a stream at 400M parameters.

    1e-3 for LDM and 2e-3 for mHC and block AttnRes are the selected ones of Depth Memory's
    sweeps (its released checkpoints); 2e-3 for the others is what DepthBench's scripts use.
    """
    return 1e-3 if stream in LDM else 2e-3


def recipe(
    name: str,
    model: ModelSpec,
    *,
    lr: float,
    steps: int,
    rows: int = 512,
    length: int = 2048,
    accumulate: int = 64,
    save_every: int = 500,
) -> Run:
    """A run of the recipe above.

    Args:
        name: Of its directory under `runs`.
        model: What is trained.
        lr: Peak learning rate.
        steps: Optimiser steps; a tenth of them warms up.
        rows: Sequences per step.
        length: Tokens per sequence.
        accumulate: Micro-batches per step on one GPU; on N, a run wants `accumulate / N`.
        save_every: Steps between checkpoints.
    """
    return Run(
        model=model,
        data=DataSpec(directory=DATA),
        optim=OptimSpec(lr=lr, decay="all"),
        schedule=ScheduleSpec(kind="cosine", warmup=steps // 10, floor=0.1),
        steps=steps,
        rows=rows,
        length=length,
        accumulate=accumulate,
        precision="bfloat16",
        compile=True,
        eval_every=2 * save_every,
        eval_windows=2048,
        save_every=save_every,
        log_every=10,
        out=Path("runs") / name,
    )


def llama(width: int, depth: int, ffn: int, stream: Any, **changes: Any) -> ModelSpec:
    """A Llama as DepthBench shapes it: 16 heads, untied embeddings, 2048 positions."""
    fields = {"heads": 16, "kv_heads": 16, "tie_embeddings": False, "max_length": 2048, **changes}
    return ModelSpec(
        family="llama",
        width=width,
        depth=depth,
        ffn=ffn,
        stream=streams.resolve(stream),
        **fields,
    )
