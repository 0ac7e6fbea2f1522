"""Presets do not change unnoticed, and each is a network that can be built."""

import json
from pathlib import Path

import pytest
import torch

from depth_memory import presets, streams
from depth_memory.data.corpus import VOCAB_SIZE
from depth_memory.errors import UserError
from depth_memory.presets import counts
from depth_memory.train.build import build_model
from depth_memory.train.config import Run

FROZEN = Path(__file__).parent / "frozen.json"

# name -> parameters without the stream, and of the stream, with the embedded corpus
PARAMETERS = {
    "debug": (155_808, 3_380),
    "demo": (1_730_176, 128024),
    "small": (40_646_656, 860_600),
}


def test_presets_are_as_frozen():
    """To change one on purpose: write `{name: preset().as_dict()}` into frozen.json."""
    assert {name: presets.get(name).as_dict() for name in presets.PRESETS} == json.loads(
        FROZEN.read_text()
    )


@pytest.mark.parametrize("name", presets.PRESETS)
def test_parameters(name):
    run = presets.get(name)
    run.validate()
    with torch.device("meta"):
        model = build_model(run.model, VOCAB_SIZE)
    total = sum(p.numel() for p in model.parameters())
    backbone = counts.count_backbone(run.model, vocab_size=VOCAB_SIZE, length=run.length)
    stream = counts.count_stream(run.model.stream, width=run.model.width, sites=2 * run.model.depth)
    assert (backbone.parameters, stream.parameters) == PARAMETERS[name]
    assert backbone.parameters + stream.parameters == total


def test_backbone_flops_are_six_per_weight_and_attention():
    run = presets.debug()
    m = run.model
    qkvo = 2 * m.width * m.heads * m.head_size + 2 * m.width * m.kv_heads * m.head_size
    linear = m.depth * (qkvo + 3 * m.width * m.ffn) + VOCAB_SIZE * m.width
    attention = 12 * m.depth * m.heads * m.head_size * run.length
    counted = counts.count_backbone(m, vocab_size=VOCAB_SIZE, length=run.length)
    assert counted.training_flops == 6 * linear + attention


@pytest.mark.parametrize("name", presets.PRESETS)
@pytest.mark.parametrize("stream", streams.STREAMS)
def test_every_stream_fits_every_preset(name, stream):
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
    with pytest.raises(UserError, match="preset: got 'nope'; allowed: debug, demo, small"):
        presets.get("nope")
    with pytest.raises(UserError, match="stream: got 'nope'; allowed: attnres, "):
        presets.with_stream(presets.debug(), "nope")
