"""What one call of a model accepts and returns."""

from __future__ import annotations

import pytest
import torch

from depth_memory import models, streams
from depth_memory.errors import UserError

CLOSE = {"rtol": 1e-10, "atol": 1e-10}  # in float64


@torch.no_grad()
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("use_cache", [True, False])
def test_packed_documents_are_isolated(make, family, stream, ids, attention, use_cache):
    model = make(family, stream, attn_implementation=attention).double()
    positions = torch.cat([torch.arange(4), torch.arange(7)])[None].expand(2, -1)
    packed = model(ids, position_ids=positions, use_cache=use_cache).logits
    apart = torch.cat([model(ids[:, :4]).logits, model(ids[:, 4:]).logits], 1)
    torch.testing.assert_close(packed, apart, **CLOSE)
    assert not torch.allclose(model(ids).logits, apart, atol=1e-3)


@torch.no_grad()
def test_hidden_states_are_what_the_input_norms_see(make, family, stream, ids):
    model = make(family, stream)
    seen = []
    for layer in model.model.layers:
        layer.input_layernorm.register_forward_pre_hook(lambda _, args: seen.append(args[0]))
    plain = model(ids)
    assert plain.hidden_states is None
    expected, seen[:] = list(seen), []
    output = model(ids, output_hidden_states=True)
    assert torch.equal(output.logits, plain.logits)
    assert all(map(torch.equal, output.hidden_states[:-1], expected))
    assert torch.equal(model.lm_head(output.hidden_states[-1]), output.logits)


@torch.no_grad()
def test_outputs_by_configuration_and_as_tuple(make, ids):
    model = make("llama", {"name": "ldm"}, attn_implementation="eager")
    model.config.output_hidden_states = True
    model.config.output_attentions = True
    output = model(ids)
    assert len(output.hidden_states) == 3
    assert [a.shape for a in output.attentions] == [(2, 4, 11, 11)] * 2
    logits, cache, hidden, attentions = model(ids, return_dict=False)
    assert torch.equal(logits, output.logits)
    assert cache.get_seq_length() == 11
    assert torch.equal(model.model(ids, return_dict=False)[0], hidden[-1])
    assert len(attentions) == 2


@torch.no_grad()
def test_inputs_embeds(make, family, stream, ids):
    model = make(family, stream)
    embeds = model.get_input_embeddings()(ids)
    assert torch.equal(model(inputs_embeds=embeds).logits, model(ids).logits)
    with pytest.raises(ValueError, match="exactly one"):
        model(ids, inputs_embeds=embeds)
    with pytest.raises(ValueError, match="exactly one"):
        model()


@torch.no_grad()
def test_logits_to_keep(make, ids):
    model = make("llama", {"name": "ldm"}).double()
    whole = model(ids).logits
    torch.testing.assert_close(model(ids, logits_to_keep=3).logits, whole[:, -3:], **CLOSE)
    kept = model(ids, logits_to_keep=torch.tensor([0, 5])).logits
    torch.testing.assert_close(kept, whole[:, [0, 5]], **CLOSE)


def test_loss_is_the_mean_over_targets(make, family, stream, ids):
    model = make(family, stream)
    labels = ids.clone()
    labels[0, :6] = -100
    output = model(ids, labels=labels)
    targets = labels[:, 1:].reshape(-1)
    logits = output.logits[:, :-1].reshape(-1, 97)
    expected = torch.nn.functional.cross_entropy(logits, targets)
    torch.testing.assert_close(output.loss, expected)
    count = int((targets != -100).sum())
    halves = [
        model(ids[i : i + 1], labels=labels[i : i + 1], num_items_in_batch=count).loss
        for i in range(2)
    ]
    torch.testing.assert_close(sum(halves), expected)


def test_every_parameter_gets_a_gradient(make, family, stream, ids):
    model = make(family, stream).train()
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name


def test_training_makes_no_cache_unless_asked(make, ids):
    model = make("llama", {"name": "ldm"}).train()
    assert len(model(ids, return_dict=False)) == 1
    assert len(model(ids, use_cache=True, return_dict=False)) == 2
    assert len(model.eval()(ids, use_cache=False, return_dict=False)) == 1


@torch.no_grad()
def test_position_limit(make):
    model = make("llama", {"name": "ldm"}, max_position_embeddings=16)
    row = torch.full((1, 17), 5)
    message = r"sequence length: got 17; allowed: at most 16 \(max_position_embeddings\)"
    with pytest.raises(UserError, match=message):
        model(row)
    first = model(row[:, :16], use_cache=True)
    with pytest.raises(UserError, match=message):
        model(row[:, 16:], None, None, first[1])
    for way in ({}, {"use_cache": False}, {"cache_implementation": "static"}):
        with pytest.raises(UserError, match=message):
            model.generate(row[:, :12], max_new_tokens=8, min_new_tokens=8, **way)
    packed = torch.cat([torch.arange(9), torch.arange(8)])[None]
    assert model(row, position_ids=packed).logits.isfinite().all()


@torch.no_grad()
def test_scaled_positions_have_no_limit_when_dynamic(make):
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 10000.0}
    model = make("llama", {"name": "preln"}, max_position_embeddings=16, rope_parameters=rope)
    assert model(torch.full((1, 17), 5)).logits.isfinite().all()


@torch.no_grad()
def test_lower_precision(make, family, stream, ids):
    model = make(family, stream, initializer_range=0.05)
    exact = model(ids).logits
    rounded = model.to(torch.bfloat16)(ids).logits
    assert rounded.dtype == torch.bfloat16
    error = (rounded.float() - exact).norm() / exact.norm()
    assert error < 20 * torch.finfo(torch.bfloat16).eps


@torch.no_grad()
def test_configuration_errors_name_the_field():
    with pytest.raises(UserError, match=r"stream\.name: got 'nope'; allowed: attnres, "):
        models.DepthLlamaConfig(stream={"name": "nope"})
    with pytest.raises(UserError, match=r"stream\.width"):
        models.DepthLlamaConfig(stream={"name": "ldm", "width": 3})
    with pytest.raises(UserError, match=r"stream\.groups: got 5; allowed: a divisor of the width"):
        models.build_model("llama", {"name": "ldm", "groups": 5}, hidden_size=32)
    with pytest.raises(UserError, match="family: got 'gpt2'; allowed: llama, qwen3"):
        models.build_model("gpt2", {"name": "preln"})


def test_configuration_is_complete(family):
    kind = models.config_for(family)
    config = kind()
    assert config.stream == streams.as_dict(streams.resolve({"name": "ldm"}))
    assert "key_dim" in config.to_diff_dict()["stream"]
    config.stream = {"name": "hc", "lanes": 2}
    assert config.stream == streams.as_dict(streams.resolve({"name": "hc", "lanes": 2}))
    again = kind.from_dict(config.to_dict())
    assert again.stream == config.stream
    assert again.model_type == f"depth_{family}"
