"""A model whose stream runs by kernels is the model whose stream runs by reference operations."""

from __future__ import annotations

from typing import Any

import accelerate
import pytest
import torch

from depth_memory import inspect, models
from depth_memory.errors import UserError
from depth_memory.ops import _impl
from tests.models.test_checkpointing import enable, gradients

SMALL = {"hidden_size": 12, "intermediate_size": 8, "num_attention_heads": 2, "head_dim": 4}
SMALL |= {"num_key_value_heads": 1}
STREAM: dict[str, Any] = {"name": "ldm", "key_dim": 2, "groups": 2, "read_rank": 3, "window": 2}
BLOCK = {**STREAM, "sites": "block", "write_rank": 3}


@pytest.fixture
def tiny(make):
    def build(family="llama", stream=STREAM, impl="triton"):
        return make(family, {**stream, "impl": impl}, **SMALL)

    return build


@pytest.fixture
def few(ids):
    return ids[:1, :4]


@pytest.mark.parametrize(("kind", "form"), [("llama", STREAM), ("qwen3", BLOCK)])
def test_logits_and_gradients_equal_the_reference(tiny, few, kind, form):
    reference, kernels = (tiny(kind, form, impl).double() for impl in ("reference", "triton"))
    outputs = [model(few, output_hidden_states=True) for model in (kernels, reference)]
    pairs = zip(*([o.logits, *o.hidden_states] for o in outputs), strict=True)
    found, right = (gradients(model, few) for model in (kernels, reference))
    for actual, expected in (*pairs, *((found[name], grad) for name, grad in right.items())):
        # transformers' norms compute in float32, also in a model of float64
        atol = 64 * torch.finfo(torch.float32).eps * max(expected.abs().max().item(), 1.0)
        torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@torch.no_grad()
def test_a_cache_changes_no_token(tiny, few):
    model = tiny(stream=BLOCK)
    greedy = {"max_new_tokens": 3, "min_new_tokens": 3, "do_sample": False}
    plain = model.generate(few, **greedy, use_cache=False)
    assert torch.equal(model.generate(few, **greedy), plain)
    assert torch.equal(tiny(stream=BLOCK, impl="reference").generate(few, **greedy), plain)


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointing_is_bit_equal(tiny, few, reentrant):
    model = tiny().train()
    plain = gradients(model, few)
    enable(model, use_reentrant=reentrant)
    kept = gradients(model, few)
    assert all(torch.equal(grad, kept[name]) for name, grad in plain.items())


@torch.no_grad()
def test_saved_and_loaded_is_equal(tiny, few, tmp_path):
    model = tiny(stream=BLOCK)
    model.save_pretrained(tmp_path)
    other = models.DepthLlamaForCausalLM.from_pretrained(tmp_path).eval()
    assert other.config.stream == model.config.stream
    assert other.model.stream.config.impl == "triton"
    assert torch.equal(other(few).logits, model(few).logits)


@torch.no_grad()
def test_weights_that_another_library_moves_take_the_plain_path(tiny, few, monkeypatch):
    monkeypatch.setattr(_impl, "_reason", lambda op, device: None)
    model = tiny(impl="auto")
    plain = model(few).logits
    accelerate.cpu_offload(model, torch.device("cpu"))
    torch.testing.assert_close(model(few).logits, plain)
    model.model.stream.config = tiny().model.stream.config
    with pytest.raises(UserError, match=r"^stream\.impl: got 'triton'; .*another library"):
        model(few)


def test_what_is_inspected_is_what_runs(tiny, few, monkeypatch):
    """The map of retrievals holds coefficients fixed, for which it leaves the kernels."""
    monkeypatch.setattr(_impl, "_reason", lambda op, device: None)
    maps = [inspect.retrieval_map(tiny(impl=impl), few) for impl in ("auto", "reference")]
    torch.testing.assert_close(maps[0].weights, maps[1].weights)
    assert maps[0].weights.any()
