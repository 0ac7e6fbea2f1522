"""A stream added to a loaded model changes nothing until it is trained."""

from __future__ import annotations

import pytest
import torch
from transformers import GPT2Config, GPT2LMHeadModel, LlamaModel

from depth_memory import models
from depth_memory.errors import UserError

EXACT = ("preln", "preln_adapter", "ldm", "ldm_delta", "ldm_outer", "denseformer")


@torch.no_grad()
@pytest.mark.parametrize("name", EXACT)
@pytest.mark.parametrize("tied", [True, False])
def test_same_function_exactly(original, family, ids, padded, name, tied):
    plain = original(family, tie_word_embeddings=tied)
    grafted = models.graft(plain, {"name": name})
    assert type(grafted) is models.class_for(family)
    assert grafted.config.stream["name"] == name
    assert not grafted.training
    assert (grafted.lm_head.weight is grafted.model.embed_tokens.weight) == tied
    for inputs in ({"input_ids": ids}, padded):
        assert torch.equal(grafted(**inputs).logits, plain(**inputs).logits)
    options = {"max_new_tokens": 6, "do_sample": False}
    assert torch.equal(grafted.generate(ids, **options), plain.generate(ids, **options))


@torch.no_grad()
@pytest.mark.parametrize(("name", "bound"), [("hc", 1e-5), ("mhc", 2e-2)])
def test_same_function_nearly(original, family, ids, name, bound):
    """HC up to rounding: a sum of lanes is the stream times n, and the norm undoes that but for its
    epsilon, here 0. mHC up to its gap: sigmoid(8) and a mixing matrix that is nearly the identity.
    """
    plain = original(family, rms_norm_eps=0.0)
    error = models.graft(plain, {"name": name})(ids).logits - plain(ids).logits
    assert error.norm() / plain(ids).logits.norm() < bound


@pytest.mark.parametrize("name", ["attnres", "block_attnres"])
def test_streams_that_cannot(original, name):
    with pytest.raises(UserError, match="ordinary residual"):
        models.graft(original("llama"), {"name": name})


def test_without_the_residual_it_cannot(original):
    with pytest.raises(UserError, match=r"stream\.residual"):
        models.graft(original("llama"), {"name": "ldm", "residual": False})


def test_other_architectures(original):
    other = GPT2LMHeadModel(GPT2Config(n_embd=8, n_layer=1, n_head=1, vocab_size=7))
    allowed = "allowed: LlamaForCausalLM, Qwen3ForCausalLM"
    trunk = LlamaModel(original("llama").config)
    ours = models.graft(original("llama"), {"name": "ldm"})
    for model in (other, trunk, ours):
        with pytest.raises(UserError, match=f"model: got '{type(model).__name__}'; {allowed}"):
            models.graft(model, {"name": "ldm"})


def test_weights_are_shared_and_the_source_is_left_alone(original, ids, tmp_path):
    plain = original("llama").train()
    before = plain(ids, use_cache=False).logits
    grafted = models.graft(plain, {"name": "ldm"})
    assert grafted.training
    assert plain.config.model_type == "llama"
    for name, parameter in plain.named_parameters():
        assert grafted.get_parameter(name).data_ptr() == parameter.data_ptr()
    assert torch.equal(plain(ids, use_cache=False).logits, before)
    grafted.save_pretrained(tmp_path)
    again = models.DepthLlamaForCausalLM.from_pretrained(tmp_path)
    assert torch.equal(again(ids).logits, before)


def test_every_parameter_can_leave_the_start(original, ids):
    """A gain of 0 passes no gradient to what it multiplies, but gets one; then all move."""
    model = models.graft(original("llama"), {"name": "ldm"}).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(2):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    still = [name for name, p in model.named_parameters() if not p.grad.any()]
    assert not still


@torch.no_grad()
def test_precision_of_a_bfloat16_model(original, ids):
    plain = original("llama").to(torch.bfloat16)
    grafted = models.graft(plain, {"name": "ldm"})
    assert torch.equal(grafted(ids).logits, plain(ids).logits)
    kept = {p.dtype for name, p in grafted.named_parameters() if "forgetting" in name}
    rest = {p.dtype for name, p in grafted.named_parameters() if "forgetting" not in name}
    assert kept == {torch.float32}
    assert rest == {torch.bfloat16}
