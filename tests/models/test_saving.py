"""What is saved comes back, from our own checkpoints and from plain ones, and nothing is random."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoConfig, AutoModel, AutoModelForCausalLM

from depth_memory import models, streams
from depth_memory.errors import UserError

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"


def own_names(model) -> set[str]:
    """The parameters that the plain backbone does not have."""
    return {
        f"{prefix}.{name}"
        for prefix, module in model.named_modules()
        for name, _ in module.named_parameters(recurse=False)
        if "_port" in prefix or prefix.startswith("model.stream")
    }


def fixed_names(model) -> set[str]:
    """Those of them whose start is not drawn at random."""
    other = type(model)(model.config)
    same = (n for n in own_names(model) if model.get_parameter(n).equal(other.get_parameter(n)))
    return set(same)


def kept_float32(name: str) -> bool:
    return any(part in streams.FLOAT32_MODULES for part in name.split("."))


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_round_trip(make, family, stream, ids, tmp_path, dtype):
    model = make(family, stream)
    for name, parameter in model.named_parameters():
        if not kept_float32(name):
            parameter.data = parameter.data.to(dtype)  # `to` would round the rotary buffer too
        if name in own_names(model):
            # bfloat16 would make 0.999 a 1, which is what a forgetting factor must not become
            parameter.fill_(0.999 if kept_float32(name) else 0.5)
    model.save_pretrained(tmp_path)
    expected = model(ids).logits
    for kind in (models.class_for(family), AutoModelForCausalLM):
        again, info = kind.from_pretrained(tmp_path, dtype=dtype, output_loading_info=True)
        assert type(again) is models.class_for(family)
        assert not info["missing_keys"]
        assert not info["unexpected_keys"]
        assert again.config.stream == model.config.stream
        assert torch.equal(again(ids).logits, expected)
        for name, parameter in again.named_parameters():
            assert parameter.dtype == (torch.float32 if kept_float32(name) else dtype), name
            assert torch.equal(parameter, model.get_parameter(name)), name
    trunk = AutoModel.from_pretrained(tmp_path, dtype=dtype)
    assert torch.equal(trunk(ids)[0], model.model(ids)[0])


@torch.no_grad()
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_plain_checkpoint_gets_the_documented_start(original, family, stream, ids, tmp_path, dtype):
    plain = original(family)
    plain.save_pretrained(tmp_path)
    config = models.config_for(family).from_backbone(plain.config, stream)
    model, info = models.class_for(family).from_pretrained(
        tmp_path, config=config, dtype=dtype, output_loading_info=True
    )
    assert set(info["missing_keys"]) == own_names(model)
    fresh = models.class_for(family)(config)
    fixed = fixed_names(fresh)
    for name in own_names(model):
        value, start = model.get_parameter(name), fresh.get_parameter(name)
        assert value.dtype == (torch.float32 if kept_float32(name) else dtype)
        assert value.isfinite().all(), name
        if name in fixed:
            assert torch.equal(value, start.to(value.dtype)), name
        elif start.numel() > 64:
            assert value.float().std() / start.std() == pytest.approx(1, rel=0.3), name
    assert model(ids).logits.isfinite().all()


@torch.no_grad()
def test_one_missing_parameter(make, stream, ids, tmp_path):
    model = make("llama", stream)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    fresh = models.DepthLlamaForCausalLM(model.config)
    for lost in sorted(fixed_names(fresh))[:2]:
        save_file({k: v for k, v in state.items() if k != lost}, tmp_path / "model.safetensors")
        again, info = models.DepthLlamaForCausalLM.from_pretrained(
            tmp_path, output_loading_info=True
        )
        assert set(info["missing_keys"]) == {lost}
        for name, parameter in again.named_parameters():
            source = fresh if name == lost else model
            assert torch.equal(parameter, source.get_parameter(name)), name


@pytest.fixture
def tied(make, tmp_path):
    """A model with tied weights, and a function that loads it from a file with other entries."""
    model = make("llama", {"name": "ldm"}, tie_word_embeddings=True)
    model.save_pretrained(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    matrix = state.pop(EMBEDDING)
    assert HEAD not in state

    def load(entries, **options):
        found = {name: function(matrix) for name, function in entries.items()}
        save_file(state | found, tmp_path / "model.safetensors")
        return models.DepthLlamaForCausalLM.from_pretrained(tmp_path, **options)

    return model, load


@torch.no_grad()
@pytest.mark.parametrize("names", [(EMBEDDING,), (HEAD,), (EMBEDDING, HEAD)])
def test_tied_weights(tied, ids, names):
    model, load = tied
    again = load(dict.fromkeys(names, torch.clone))
    assert again.lm_head.weight is again.model.embed_tokens.weight
    assert torch.equal(again(ids).logits, model(ids).logits)


def test_weights_that_cannot_be_tied(tied):
    _, load = tied
    different = {EMBEDDING: torch.clone, HEAD: lambda matrix: matrix + 1}
    with pytest.raises(UserError, match=r"^lm_head\.weight: got 'other values than model\.embed"):
        load(different)
    with pytest.raises(UserError, match=r"^model\.embed_tokens\.weight: got 'nothing'"):
        load({})
    apart = load(different, tie_word_embeddings=False)
    assert torch.equal(apart.lm_head.weight, apart.model.embed_tokens.weight + 1)


def test_missing_head_is_not_random(tied):
    _, load = tied
    with pytest.raises(UserError, match=r"^lm_head\.weight: got 'nothing'.*tie_word_embeddings"):
        load({EMBEDDING: torch.clone}, tie_word_embeddings=False)


def test_loads_in_a_program_that_does_not_import_the_package(make, ids, tmp_path):
    model = make("qwen3", {"name": "mhc"})
    model.save_pretrained(tmp_path)
    config = AutoConfig.from_pretrained(tmp_path)
    assert set(config.auto_map) == {"AutoConfig", "AutoModel", "AutoModelForCausalLM"}
    program = f"""
import sys, torch
from transformers import AutoModelForCausalLM
model = AutoModelForCausalLM.from_pretrained({str(tmp_path)!r}, trust_remote_code=True)
assert type(model).__module__ == "depth_memory.models.causal_lm", type(model)
model.register_for_auto_class("AutoModelForCausalLM")
model.save_pretrained({str(tmp_path / "again")!r})
torch.set_printoptions(precision=10)
print(model(torch.tensor({ids.tolist()})).logits.double().sum().item())
"""
    environment = os.environ | {"HF_HOME": str(tmp_path / "home"), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=environment
    )
    assert done.returncode == 0, done.stderr
    expected = model(ids).logits.double().sum().item()
    assert float(done.stdout) == pytest.approx(expected, rel=1e-5)
    names = sorted(p.name for p in (tmp_path / "again").iterdir() if p.suffix == ".py")
    assert names == ["modeling_depth_memory.py"]


def test_a_plain_directory_read_with_our_class(original, family, tmp_path):
    original(family).save_pretrained(tmp_path)
    kind = models.class_for(family)
    model = kind.from_pretrained(tmp_path, stream={"name": "preln"})
    assert model.config.model_type == f"depth_{family}"
    assert model.config.stream == {"name": "preln"}
    assert kind.from_pretrained(tmp_path).config.stream["name"] == "ldm"


def test_the_window_that_auto_stood_for_is_saved(make, tmp_path, monkeypatch):
    model = make("llama", {"name": "ldm", "state_dtype": "bfloat16", "window": "auto"})
    window = model.model.stream.config.window
    assert model.config.stream["window"] == window
    model.save_pretrained(tmp_path)
    monkeypatch.setattr("depth_memory.streams.ldm.auto_window", lambda *_: window + 1)
    again = models.DepthLlamaForCausalLM.from_pretrained(tmp_path)
    assert again.model.stream.config.window == window
