"""The study compares networks of equal size, and says so of each of them."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from depth_memory import presets, streams, sweep
from depth_memory.presets import counts
from depth_memory.train.build import build_model

study = importlib.import_module("depth_memory.presets.study")


@pytest.mark.parametrize("shape", study.SHAPES)
@pytest.mark.parametrize("method", study.METHODS)
def test_all_have_the_same_weights(shape: str, method: str) -> None:
    """Counted of the network itself: everything but the embedding and the norms, to 0.5%."""
    import torch

    spec = study.matched(study.SHAPES[shape], study.METHODS[method])
    assert spec.ffn % 8 == 0
    with torch.device("meta"):
        model = build_model(spec, study.VOCAB_SIZE)
    size = sum(
        p.numel()
        for name, p in model.named_parameters()
        if "layernorm" not in name
        and name not in ("model.embed_tokens.weight", "model.norm.weight")
    )
    assert size == pytest.approx(study.BUDGET, rel=0.005)


def test_the_wide_control_has_the_arithmetic_of_ldm() -> None:
    ldm, wide = (
        study.matched(study.WORKHORSE, {"name": "ldm"}),
        study.widened(study.WORKHORSE, {"name": "ldm"}),
    )
    costs = counts.count_stream({"name": "ldm"}, width=512, sites=24).training_flops
    ours, theirs = (6 * 12 * 3 * 512 * spec.ffn for spec in (ldm, wide))
    assert theirs == pytest.approx(ours + costs, rel=0.01)
    assert wide.stream.name == "preln"


def test_a_family_runs_what_it_counts() -> None:
    runs = sweep.resolve(presets.FAMILIES["study-methods"](), Path("x"))
    assert len(runs) == 15 * 3
    for name, stream in study.METHODS.items():
        model = runs[f"{name}-lr0.002"].model
        assert model == study.matched(study.WORKHORSE, stream)
        assert model.stream == streams.resolve(stream)
    assert runs["preln-qk-lr0.002"].model.family == "qwen3"
    deep = sweep.resolve(presets.FAMILIES["study-depth"](), Path("x"))["48x256-ldm-lr0.001"].model
    assert (deep.depth, deep.width, deep.heads) == (48, 256, 4)


def test_rules_meet_every_gain() -> None:
    runs = sweep.resolve(presets.FAMILIES["study-rules"](), Path("x"))
    found = {(r.model.stream.name, r.model.stream.gain_init, r.optim.lr) for r in runs.values()}
    assert len(found) == len(runs) == 3 * 4 * 3
