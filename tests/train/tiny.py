"""A corpus and a model that train in a blink, for every test of this folder."""

from __future__ import annotations

import random
from dataclasses import replace
from pathlib import Path

from depth_memory import data
from depth_memory.train import DataSpec, ModelSpec, OptimSpec, Run, ScheduleSpec

TEXT = "the sea was calm and old men sat on the wall to tell of storms that none had seen"
WORDS = tuple(TEXT.split())


def write_corpus(directory: Path, *, words: int = 4000, seed: int = 0) -> Path:
    """A prepared corpus of a few thousand tokens, 257 byte ids; returns its directory."""
    draw = random.Random(seed)
    documents = [" ".join(draw.choices(WORDS, k=100)) for _ in range(words // 100)]
    source = directory / "text"
    source.mkdir(parents=True)
    for i, document in enumerate(documents):
        (source / f"{i:03d}.txt").write_text(document)
    tokenizer = data.train_tokenizer(WORDS, 257)
    data.prepare([source], directory / "data", tokenizer=tokenizer, validation=4)
    return directory / "data"


MODEL = ModelSpec(
    family="qwen3",
    width=32,
    depth=2,
    heads=2,
    kv_heads=1,
    ffn=48,
    max_length=64,
    stream={"name": "ldm", "groups": 2, "key_dim": 4, "read_rank": 8, "write_rank": 8},
)

RUN = Run(
    model=MODEL,
    optim=OptimSpec(lr=3e-3),
    schedule=ScheduleSpec(warmup=2),
    steps=12,
    rows=4,
    length=32,
    eval_every=6,
    eval_windows=4,
    save_every=3,
    keep=2,
    device="cpu",
)


def tiny_run(corpus: Path, out: Path, **changes) -> Run:
    """`RUN` on a corpus, with changes."""
    return replace(RUN, data=DataSpec(directory=corpus), out=out, **changes)
