"""Activation checkpointing wraps what lies between a read and a write, and changes no gradient."""

from __future__ import annotations

import warnings

import pytest
import torch
from torch.utils.checkpoint import checkpoint

from depth_memory import streams
from depth_memory.models import layer


def enable(model, **options) -> None:
    """By the name that this version of transformers prefers."""
    if hasattr(model, "activation_checkpointing_enable"):
        model.activation_checkpointing_enable(options or None)
    else:
        model.gradient_checkpointing_enable(options or None)


def gradients(model, ids, **options) -> dict[str, torch.Tensor]:
    model.zero_grad()
    model(ids, labels=ids, **options).loss.backward()
    return {name: p.grad.clone() for name, p in model.named_parameters()}


def count_calls(model) -> list[int]:
    calls = [0]

    def count(*_):
        calls[0] += 1

    model.model.layers[0].mlp.register_forward_pre_hook(count)
    return calls


def test_gradients_are_bit_equal(make, family, stream, ids):
    model = make(family, stream, attention_dropout=0.1).train()
    torch.manual_seed(5)
    plain = gradients(model, ids)
    enable(model)
    calls = count_calls(model)
    torch.manual_seed(5)
    kept = gradients(model, ids, use_cache=True)
    assert calls == [2], "the body must run again in the backward pass"
    for name, grad in plain.items():
        assert torch.equal(grad, kept[name]), name


def test_reentrant_form(make, ids):
    model = make("llama", {"name": "ldm"}).train()
    plain = gradients(model, ids)
    enable(model, use_reentrant=True)
    kept = gradients(model, ids)
    assert all(torch.equal(grad, kept[name]) for name, grad in plain.items())


def test_both_names_and_disabling(make, ids):
    model = make("llama", {"name": "ldm"}).train()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # the older name is on its way out
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        assert model.is_gradient_checkpointing
        calls = count_calls(model)
        gradients(model, ids)
        assert calls == [2]
        model.gradient_checkpointing_disable()
        assert not model.is_gradient_checkpointing
    gradients(model, ids)
    assert calls == [3]


def test_every_second_layer(make, ids):
    model = make("llama", {"name": "ldm"}, num_hidden_layers=3).train()
    model._set_gradient_checkpointing(True, checkpoint, every_n_layers=2)
    assert [block.gradient_checkpointing for block in model.model.layers] == [True, False, True]


@pytest.mark.parametrize("name", list(streams.STREAMS))
def test_only_the_sublayer_input_is_kept(make, name, ids):
    """No state of a stream is an argument of a checkpointed function, nor hidden in a closure."""
    model = make("llama", {"name": name}).train()
    kept = []

    def spy(function, *inputs):
        assert function in (layer.attend, layer.feed)
        assert function.__closure__ is None
        kept.append([x.shape for x in inputs if isinstance(x, torch.Tensor)])
        assert not any(hasattr(x, "_fields") for x in inputs)
        return checkpoint(function, *inputs, use_reentrant=False)

    model._set_gradient_checkpointing(True, spy)
    gradients(model, ids)
    assert kept == [[(2, 11, 32)]] * 4


@torch.no_grad()
def test_generation_in_training_mode_keeps_its_cache(make, ids):
    model = make("llama", {"name": "ldm"}).train()
    enable(model)
    options = {"max_new_tokens": 5, "do_sample": False}
    cached = model.generate(ids, **options, use_cache=True, return_dict_in_generate=True)
    assert torch.equal(cached.sequences, model.eval().generate(ids, **options))


def test_no_cache_is_kept_while_checkpointing(make, ids):
    model = make("llama", {"name": "ldm"}).train()
    enable(model)
    assert len(model(ids, use_cache=True).to_tuple()) == 1  # the logits alone
