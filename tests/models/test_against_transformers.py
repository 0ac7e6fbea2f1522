"""With `preln` the models are transformers' own, to the last bit."""

from __future__ import annotations

import pytest
import torch

from depth_memory import models

PRELN = {"name": "preln"}


@pytest.fixture(params=["sdpa", "eager"])
def pair(request, family, original, tmp_path):
    """The original and ours, loaded from the original's own checkpoint."""
    theirs = original(family, attn_implementation=request.param)
    theirs.save_pretrained(tmp_path)
    config = models.config_for(family).from_backbone(theirs.config, PRELN)
    ours, info = models.class_for(family).from_pretrained(
        tmp_path, config=config, output_loading_info=True
    )
    assert not info["missing_keys"]
    assert not info["unexpected_keys"]
    assert ours.config._attn_implementation == request.param
    return theirs, ours


def test_names_are_the_same(pair):
    theirs, ours = pair
    assert list(ours.state_dict()) == list(theirs.state_dict())


@torch.no_grad()
def test_logits(pair, ids, padded):
    theirs, ours = pair
    for inputs in ({"input_ids": ids}, padded):
        for use_cache in (True, False):
            a = theirs(**inputs, use_cache=use_cache).logits
            assert torch.equal(ours(**inputs, use_cache=use_cache).logits, a)


@torch.no_grad()
def test_generation(pair, ids, padded):
    theirs, ours = pair
    for inputs in ({"input_ids": ids}, padded):
        for use_cache in (True, False):
            options = {"max_new_tokens": 12, "do_sample": False, "use_cache": use_cache}
            options |= {"output_logits": True, "return_dict_in_generate": True}
            a, b = theirs.generate(**inputs, **options), ours.generate(**inputs, **options)
            assert torch.equal(a.sequences, b.sequences)
            assert all(map(torch.equal, a.logits, b.logits))


@torch.no_grad()
def test_hidden_states_and_attentions(pair, padded):
    theirs, ours = pair
    eager = ours.config._attn_implementation == "eager"
    wanted = {"output_hidden_states": True, "output_attentions": eager}
    a, b = theirs(**padded, **wanted), ours(**padded, **wanted)
    assert len(b.hidden_states) == ours.config.num_hidden_layers + 1
    assert all(map(torch.equal, a.hidden_states, b.hidden_states))
    if eager:
        assert len(b.attentions) == ours.config.num_hidden_layers
        assert all(map(torch.equal, a.attentions, b.attentions))


def test_gradients_and_loss(pair, ids):
    theirs, ours = pair
    a, b = (m.train()(ids, labels=ids, use_cache=False) for m in pair)
    assert torch.equal(a.loss, b.loss)
    a.loss.backward()
    b.loss.backward()
    grads = dict(theirs.named_parameters())
    for name, parameter in ours.named_parameters():
        assert torch.equal(parameter.grad, grads[name].grad), name


@torch.no_grad()
def test_sliding_window_layers(original, tmp_path, ids):
    changes = {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    theirs = original("qwen3", **changes)
    assert theirs.config.layer_types == ["full_attention", "sliding_attention"]
    ours = models.graft(theirs, PRELN)
    assert torch.equal(ours(ids).logits, theirs(ids).logits)
    for extra in ({}, {"cache_implementation": "static"}):
        options = {"max_new_tokens": 12, "do_sample": False} | extra
        assert torch.equal(ours.generate(ids, **options), theirs.generate(ids, **options))
    theirs.config.layer_types = ["full_attention"] * 2
    assert not torch.equal(ours(ids).logits, models.graft(theirs, PRELN)(ids).logits)
