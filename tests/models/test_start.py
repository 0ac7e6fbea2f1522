"""How a fresh model starts, by whichever route it is made."""

from __future__ import annotations

import pytest
import torch
from transformers import initialization

from depth_memory import models, streams
from depth_memory.models.causal_lm import DepthForCausalLM
from tests.models.conftest import SHAPE


@torch.no_grad()
def test_preln_starts_as_transformers_does(family, original):
    theirs = original(family)
    torch.manual_seed(0)
    ours = models.build_model(family, {"name": "preln"}, **SHAPE)
    for name, parameter in theirs.named_parameters():
        assert torch.equal(parameter, ours.get_parameter(name)), name


def test_output_projections_follow_the_stream(family, stream):
    model = models.build_model(family, stream, **(SHAPE | {"hidden_size": 64}))
    scale = model.model.stream.output_init_scale
    for layer in model.model.layers:
        for projection in (layer.self_attn.o_proj, layer.mlp.down_proj):
            assert projection.weight.std().item() == pytest.approx(0.2 * scale, rel=0.1)
        assert layer.self_attn.q_proj.weight.std().item() == pytest.approx(0.2, rel=0.1)
        assert layer.mlp.up_proj.weight.std().item() == pytest.approx(0.2, rel=0.1)


def test_some_stream_scales_its_outputs():
    scales = {streams.build({"name": name}, 32, 4).output_init_scale for name in streams.STREAMS}
    assert len(scales) > 1, "or the test above cannot fail"


@torch.no_grad()
def test_meta_then_init_weights(family, stream, ids):
    """The route of sharded training: structure first, memory and values afterwards."""
    config = models.config_for(family)(stream=stream, **SHAPE)
    with torch.device("meta"), initialization.no_init_weights():
        model = models.class_for(family)(config)
    assert all(p.is_meta for p in model.parameters())
    model.to_empty(device="cpu")
    model.tie_weights()
    torch.manual_seed(0)
    model.init_weights()
    torch.manual_seed(0)
    direct = models.class_for(family)(config)
    for name, parameter in direct.named_parameters():
        made = model.get_parameter(name)
        assert made.dtype == parameter.dtype
        assert made.isfinite().all(), name
        torch.testing.assert_close(made.std(correction=0), parameter.std(correction=0), rtol=0.5,
                                   atol=1e-3, msg=name)  # fmt: skip
    assert torch.equal(model.model.rotary_emb.inv_freq, direct.model.rotary_emb.inv_freq)
    assert model(ids).logits.isfinite().all()


def test_lower_precision_start(stream):
    kind = models.DepthLlamaForCausalLM
    model = kind._from_config(models.DepthLlamaConfig(stream=stream, **SHAPE), dtype=torch.bfloat16)
    for name, parameter in model.named_parameters():
        keeps = any(part in streams.FLOAT32_MODULES for part in name.split("."))
        assert parameter.dtype == (torch.float32 if keeps else torch.bfloat16), name


def test_classes_and_capabilities(make, family):
    model = make(family, {"name": "ldm"})
    assert isinstance(model, DepthForCausalLM)
    assert model.base_model is model.model
    assert model.can_generate()
    assert model._can_compile_fullgraph
    assert model._no_split_modules in (["DepthLayer"], {"DepthLayer"})
    assert model.get_output_embeddings() is model.lm_head
    assert model.resize_token_embeddings(101).weight.shape == (101, 32)
