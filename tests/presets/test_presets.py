"""Presets do not change unnoticed, and each is a network that can be built."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from depth_memory import presets, streams
from depth_memory.data.corpus import VOCAB_SIZE
from depth_memory.errors import UserError
from depth_memory.presets import counts
from depth_memory.train.build import build_model
from depth_memory.train.config import ModelSpec, OptimSpec, Run

FROZEN = Path(__file__).parent / "frozen.json"

# name -> parameters without the stream, and of the stream, at the vocabulary it is meant for
PARAMETERS = {
    "debug": (155_808, 3_380),
    "demo": (1_730_176, 128024),
    "small": (40_646_656, 860_600),
    "study-preln": (46_346_752, 0),
    "hour-preln": (89_444_864, 0),
    "hour-mhc": (89_444_864, 1_180_296),
    "hour-block-attnres": (89_444_864, 24_576),
    "hour-attnres": (89_444_864, 24_576),
    "hour-ldm": (89_444_864, 860_600),
    "llama-400m-preln": (405_406_720, 0),
    "llama-400m-mhc": (405_406_720, 4_719_888),
    "llama-400m-block-attnres": (405_406_720, 98_304),
    "llama-400m-attnres": (405_406_720, 98_304),
    "llama-400m-ldm": (405_406_720, 3_292_408),
    "llama-400m-ldm-dk4": (405_406_720, 3_260_068),
    "llama-400m-ldm-delta": (405_406_720, 3_292_404),
    "llama-400m-ldm-outer": (405_406_720, 3_292_404),
    "qwen-1500m-preln": (1_512_383_488, 0),
    "qwen-1500m-mhc": (1_512_383_488, 11_011_560),
    "qwen-1500m-block-attnres": (1_512_383_488, 229_376),
    "qwen-1500m-attnres": (1_512_383_488, 229_376),
    "qwen-1500m-ldm": (1_512_383_488, 7_565_496),
    "qwen-1500m-ldm-dk4": (1_512_383_488, 7_527_876),
    "qwen-1500m-ldm-delta": (1_512_383_488, 7_565_492),
    "qwen-1500m-ldm-outer": (1_512_383_488, 7_565_492),
    "depthbench-400m-l16": (406_534_336, 0),
    "depthbench-400m-l20": (414_087_520, 0),
    "depthbench-400m-l24": (405_406_720, 0),
    "depthbench-400m-l28": (406_249_920, 0),
    "depthbench-400m-l32": (399_358_848, 0),
    "depthbench-400m-l42": (404_151_200, 0),
    "depthbench-400m-l70": (409_229_440, 0),
    "depthbench-1600m-l28": (1_615_349_760, 0),
    "depthbench-1600m-l40": (1_607_179_968, 0),
    "depthbench-1600m-l54": (1_617_192_544, 0),
}
# the same in millions, as the sources state them
PUBLISHED = {
    "llama-400m-preln": 405.4,
    "qwen-1500m-preln": 1512.4,
    "depthbench-400m-l16": 406.5,
    "depthbench-400m-l20": 414.1,
    "depthbench-400m-l24": 405.4,
    "depthbench-400m-l28": 406.2,
    "depthbench-400m-l32": 399.4,
    "depthbench-400m-l42": 404.2,
    "depthbench-400m-l70": 409.2,
    "depthbench-1600m-l28": 1615.3,
    "depthbench-1600m-l40": 1607.2,
    "depthbench-1600m-l54": 1617.2,
}
HEAD_SIZES = (128, 108, 94, 76, 70, 60, 56, 50, 40)


def test_presets_are_as_frozen():
    """To change one on purpose: write `{name: preset().as_dict()}` into frozen.json."""
    assert {name: presets.get(name).as_dict() for name in presets.PRESETS} == json.loads(
        FROZEN.read_text()
    )


@pytest.mark.parametrize("name", presets.PRESETS)
def test_parameters(name):
    run, vocab_size = presets.get(name), presets.vocab_size(name)
    run.validate()
    with torch.device("meta"):
        model = build_model(run.model, vocab_size)
    total = sum(p.numel() for p in model.parameters())
    backbone = counts.count_backbone(run.model, vocab_size=vocab_size, length=run.length)
    stream = counts.count_parameters(
        run.model.stream, width=run.model.width, sites=2 * run.model.depth
    )
    assert (backbone.parameters, stream) == PARAMETERS[name]
    assert backbone.parameters + stream == total


def test_parameters_are_those_of_the_sources():
    assert {name: round(PARAMETERS[name][0] / 1e6, 1) for name in PUBLISHED} == PUBLISHED


@pytest.mark.parametrize("head_size", HEAD_SIZES)
def test_a_head_of_any_even_size_trains(head_size):
    assert head_size in {presets.get(name).model.head_size for name in presets.PRESETS}
    spec = ModelSpec(
        family="llama",
        width=2 * head_size,
        depth=1,
        heads=2,
        kv_heads=1,
        ffn=16,
        stream={"name": "ldm"},
    )
    model = build_model(spec, 32)
    tokens = torch.randint(32, (2, 16))
    logits = model(tokens).logits
    logits.logsumexp(-1).sum().backward()
    assert torch.isfinite(logits).all()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_the_recipe_of_the_papers():
    for name in presets.PRESETS:
        run = presets.get(name)
        if name in presets.GROUPS["start"].names:
            continue
        assert run.optim == OptimSpec(
            lr=run.optim.lr, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.1, decay="all", clip=1.0
        )
        assert (run.schedule.kind, run.schedule.floor) == ("cosine", 0.1)
        assert run.schedule.warmup == run.steps // 10
        if not name.startswith(("hour", "study")):
            assert run.rows * run.length == 2**20
            # one GPU, eight, or sixty-four, with the same micro-batch
            for gpus in (1, 8, 64):
                replace(run, accumulate=run.accumulate // gpus).rows_per_process(gpus)


def test_tokens_are_those_of_the_sources():
    tokens = {name: presets.get(name).steps * 2**20 for name in ("llama-400m-ldm",)}
    assert tokens["llama-400m-ldm"] == pytest.approx(50e9, rel=1e-3)
    assert presets.get("qwen-1500m-ldm").steps == 94_972
    assert presets.get("depthbench-400m-l16").steps * 2**20 == pytest.approx(8e9, rel=0.01)
    assert presets.get("depthbench-1600m-l28").steps * 2**20 == pytest.approx(32e9, rel=0.01)


def test_learning_rates_are_the_best_that_are_known():
    rates = {"preln": 2e-3, "mhc": 2e-3, "block-attnres": 2e-3, "ldm": 1e-3, "ldm-dk4": 1e-3}
    assert {name: presets.get(f"llama-400m-{name}").optim.lr for name in rates} == rates
    assert presets.get("qwen-1500m-ldm").optim.lr == 1e-3


def test_the_groups_hold_every_preset_once():
    names = [name for group in presets.GROUPS.values() for name in group.names]
    assert names == list(presets.PRESETS)
    assert len(names) == len(set(names))
    assert presets.vocab_size("debug") == VOCAB_SIZE
    assert presets.vocab_size("llama-400m-ldm") == 50_280


def test_backbone_flops_are_six_per_weight_and_causal_attention():
    run = presets.debug()
    m = run.model
    qkvo = 2 * m.width * m.heads * m.head_size + 2 * m.width * m.kv_heads * m.head_size
    linear = m.depth * (qkvo + 3 * m.width * m.ffn) + VOCAB_SIZE * m.width
    attention = 6 * m.depth * m.heads * m.head_size * run.length
    counted = counts.count_backbone(m, vocab_size=VOCAB_SIZE, length=run.length)
    assert counted.training_flops == 6 * linear + attention


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_stream_fits_every_preset(name):
    for stream in streams.STREAMS:
        run = presets.with_stream(presets.get(name), stream)
        assert run.model.stream.name == stream
        run.validate()


def test_a_preset_is_a_value_that_can_be_saved():
    run = presets.demo()
    assert Run.from_dict(json.loads(json.dumps(run.as_dict()))) == run


def test_another_stream_gets_a_directory_of_its_own():
    run = presets.debug()
    assert presets.with_stream(run, "ldm") == run
    other = presets.with_stream(run, "preln")
    assert other.out != run.out
    assert other.optim == run.optim


def test_an_ablation_keeps_every_field_of_the_stream():
    run = presets.debug()
    ours, theirs = run.model.stream, presets.with_stream(run, "ldm_outer").model.stream
    assert streams.as_dict(theirs) == {**streams.as_dict(ours), "name": "ldm_outer"}


@pytest.mark.parametrize("name", presets.PRESETS)
def test_every_preset_says_what_it_is_for(name):
    assert presets.summary(name).endswith(".")


def test_unknown_names_list_what_there_is():
    with pytest.raises(UserError, match="preset: got 'nope'; allowed: debug, demo, depth"):
        presets.get("nope")
    with pytest.raises(UserError, match="stream: got 'nope'; allowed: attnres, "):
        presets.with_stream(presets.debug(), "nope")


def test_debug_can_be_a_single_step():
    replace(presets.get("debug"), steps=1).validate()
