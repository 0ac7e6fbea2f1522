"""A converted model computes what its source computed, and is a model like any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from depth_memory import data, models, streams
from depth_memory.convert import convert, to_transformers
from depth_memory.convert.plan import obstacle
from depth_memory.errors import UserError
from depth_memory.weights import open_weights, read_manifest, verify

EXACT = ("preln", "preln_adapter", "ldm", "ldm_delta", "ldm_outer", "denseformer")
HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
IDS = torch.randint(3, 97, (2, 11), generator=torch.Generator().manual_seed(1))


def tensors(folder: Path) -> dict[str, torch.Tensor]:
    opened = open_weights(folder)
    return {name: opened.read(name) for name in opened.entries}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.reshape(-1).view(torch.uint8)


@torch.no_grad()
@pytest.mark.parametrize("name", EXACT)
def test_not_one_logit_changes(saved, family, tmp_path, name):
    source, out = saved(family), tmp_path / "out"
    done = convert(source, out, stream={"name": name})
    assert done.comparison.difference == 0.0
    assert done.comparison.largest > 1
    before = AutoModelForCausalLM.from_pretrained(source)
    after = AutoModelForCausalLM.from_pretrained(out)
    assert type(after) is models.class_for(family)
    assert after.config.stream["name"] == name
    assert torch.equal(after(IDS).logits, before(IDS).logits)
    added = sum(p.numel() for p in after.parameters()) - sum(p.numel() for p in before.parameters())
    assert (done.new_parameters, added > 0) == (added, name != "preln")


@pytest.mark.parametrize(("name", "bound"), [("hc", 1e-5), ("mhc", 2e-2)])
def test_the_logits_nearly_stay(saved, family, tmp_path, name, bound):
    """HC up to rounding and the epsilon of the final norm, mHC up to its gap."""
    comparison = convert(saved(family), tmp_path / "out", stream={"name": name}).comparison
    assert 0 <= comparison.difference < bound * comparison.largest


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("shard", ["5GB", "8KB"])
def test_weights_are_copied_to_the_bit(saved, tmp_path, dtype, tied, shard):
    source = saved(dtype=dtype, tie_word_embeddings=tied, shard=shard)
    assert (len(open_weights(source).files) > 1) == (shard == "8KB")
    convert(source, tmp_path / "out", stream={"name": "ldm"}, check=False, shard_bytes=20_000)
    before, after = tensors(source), tensors(tmp_path / "out")
    assert len(open_weights(tmp_path / "out").files) > 2
    for name, tensor in before.items():
        assert after[name].dtype == tensor.dtype
        assert torch.equal(bits(after[name]), bits(tensor)), name
    for name in after.keys() - before.keys():
        kept = streams.stays_float32(name)
        assert after[name].dtype == (torch.float32 if kept else dtype), name
    assert (HEAD in after) == (not tied)


def test_a_tied_head_may_stand_for_the_embedding(saved, tmp_path):
    from safetensors.torch import save_file

    source = saved(tie_word_embeddings=True)
    state = load_file(source / "model.safetensors")
    state[HEAD] = state.pop(EMBEDDING)
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    assert convert(source, tmp_path / "a", stream={"name": "ldm"}).comparison.difference == 0.0
    assert torch.equal(tensors(tmp_path / "a")[EMBEDDING], state[HEAD])
    save_file(state | {EMBEDDING: state[HEAD] + 1}, source / "model.safetensors")
    with pytest.raises(UserError, match=r"^lm_head\.weight: got 'other values than model\.embed"):
        convert(source, tmp_path / "b", stream={"name": "ldm"})


@torch.no_grad()
def test_another_dtype(saved, tmp_path):
    source = saved()
    done = convert(source, tmp_path / "out", stream={"name": "ldm"}, dtype="bfloat16")
    assert done.comparison.difference == 0.0
    assert done.comparison.dtype == torch.bfloat16
    after = tensors(tmp_path / "out")
    for name, tensor in tensors(source).items():
        assert torch.equal(after[name], tensor.bfloat16()), name
    assert json.loads((tmp_path / "out" / "config.json").read_text())["dtype"] == "bfloat16"
    assert AutoModelForCausalLM.from_pretrained(tmp_path / "out").dtype == torch.bfloat16


def test_a_dtype_that_cannot_hold_the_weights(saved, tmp_path):
    from safetensors.torch import save_file

    source = saved()
    state = load_file(source / "model.safetensors")
    state["model.norm.weight"][0] = 1e6
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"^dtype: got 'float16'; allowed: .* hold model\.norm"):
        convert(source, tmp_path / "out", stream={"name": "ldm"}, dtype="float16")
    assert not (tmp_path / "out").exists()


def test_the_start_depends_on_the_seed_alone(saved, tmp_path):
    """Not on the shards, nor on what torch drew before."""
    source = saved(shard="8KB")
    options = {"stream": {"name": "ldm"}, "check": False}
    convert(source, tmp_path / "a", **options, seed=3)
    torch.rand(5)
    convert(source, tmp_path / "b", **options, seed=3, shard_bytes=9_000)
    convert(source, tmp_path / "c", **options, seed=4)
    a, b, c = (tensors(tmp_path / name) for name in "abc")
    assert all(torch.equal(a[name], b[name]) for name in a)
    key = "model.layers.1.attn_port.writer.key.weight"
    assert not torch.equal(a[key], c[key])
    assert not torch.equal(a[key], a[key.replace("layers.1", "layers.0")])


def test_the_files_beside_the_weights_go_along(saved, tmp_path):
    source, out = saved(), tmp_path / "out"
    (source / "chat_template.jinja").write_text("{{ messages }}")
    (source / "optimizer.pt").write_text("not for us")
    convert(source, out, stream={"name": "ldm"}, check=False)
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        assert (out / name).read_bytes() == (source / name).read_bytes()
    assert not (out / "optimizer.pt").exists()
    assert data.load_tokenizer(out).sha256 == data.load_tokenizer(source).sha256
    manifest = read_manifest(out)
    assert manifest["stream"] == models.DepthLlamaConfig.from_pretrained(out).stream
    assert manifest["keeps_function"] is True
    assert {*manifest["files"], "weights.json"} == {path.name for path in out.iterdir()}
    verify(out)


def test_the_directory_names_its_classes_as_a_saved_model_does(saved, tmp_path):
    convert(saved("qwen3"), tmp_path / "out", stream={"name": "ldm"}, check=False)
    models.DepthQwen3ForCausalLM.from_pretrained(tmp_path / "out").save_pretrained(tmp_path / "b")
    module = "modeling_depth_memory.py"
    assert (tmp_path / "out" / module).read_text() == (tmp_path / "b" / module).read_text()
    ours, theirs = (
        json.loads((tmp_path / name / "config.json").read_text()) for name in ("out", "b")
    )
    assert ours == theirs
    assert set(ours["auto_map"]) == {"AutoConfig", "AutoModel", "AutoModelForCausalLM"}


def test_logits_that_are_not_finite_are_no_proof(saved, tmp_path):
    from safetensors.torch import save_file

    source = saved()
    state = load_file(source / "model.safetensors")
    state["model.norm.weight"][0] = float("nan")
    save_file(state, source / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"plain: logits: got some that are not finite"):
        convert(source, tmp_path / "out", stream={"name": "ldm"})
    convert(source, tmp_path / "out", stream={"name": "ldm"}, check=False)


@pytest.mark.parametrize("tied", [True, False])
def test_there_and_back_is_the_same_model(saved, family, tmp_path, tied):
    source = saved(family, dtype=torch.bfloat16, tie_word_embeddings=tied, shard="8KB")
    convert(source, tmp_path / "ours", stream={"name": "preln"})
    done = to_transformers(tmp_path / "ours", tmp_path / "back")
    assert done.comparison.difference == 0.0
    before, after = tensors(source), tensors(tmp_path / "back")
    assert before.keys() == after.keys()
    assert all(torch.equal(bits(before[name]), bits(after[name])) for name in before)
    config = json.loads((tmp_path / "back" / "config.json").read_text())
    assert config == json.loads((source / "config.json").read_text())
    assert (tmp_path / "back" / "tokenizer.json").exists()
    assert not list((tmp_path / "back").glob("*.py"))


@pytest.mark.parametrize("name", [n for n in streams.STREAMS if n != "preln"])
def test_only_the_ordinary_residual_goes_back_or_on(saved, tmp_path, name):
    convert(saved(), tmp_path / "ours", stream={"name": name}, check=False, force=True)
    for action in (to_transformers, lambda s, o: convert(s, o, stream={"name": "ldm"})):
        with pytest.raises(UserError, match=f"stream: got '{name}'; allowed: preln"):
            action(tmp_path / "ours", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_model_with_the_ordinary_residual_gets_another(saved, tmp_path):
    convert(saved(), tmp_path / "preln", stream={"name": "preln"})
    done = convert(tmp_path / "preln", tmp_path / "ldm", stream={"name": "ldm"})
    assert done.comparison.difference == 0.0
    with pytest.raises(UserError, match=r"^source: got 'llama'; allowed: a model of this package"):
        to_transformers(tmp_path / "plain", tmp_path / "out")


CANNOT = [
    {"name": "attnres"},
    {"name": "block_attnres"},
    {"name": "ldm", "residual": False},
    {"name": "mhc", "init": "zero"},
]


@pytest.mark.parametrize("stream", CANNOT, ids=lambda stream: stream["name"])
def test_a_stream_that_cannot_says_so_and_by_how_much(saved, tmp_path, stream):
    source, out = saved(), tmp_path / "out"
    with pytest.raises(UserError) as error:
        convert(source, out, stream=stream)
    line = str(error.value)
    assert line.startswith(f"stream {stream['name']}: ")
    assert line.endswith("(64 tokens, float32); --force converts")
    assert "max difference " in line
    assert "\n" not in line
    with pytest.raises(UserError, match="--check says by how much, --force converts"):
        convert(source, out, stream=stream, check=False)
    assert [path.name for path in tmp_path.iterdir()] == ["plain"]
    done = convert(source, out, stream=stream, force=True)
    assert done.comparison.difference > 0
    assert f"{done.comparison}" in line
    assert done.obstacle is not None
    assert read_manifest(out)["keeps_function"] is False


@pytest.mark.parametrize("name", streams.STREAMS)
def test_what_cannot_is_what_grafting_refuses(name):
    from tests.models.conftest import SHAPE

    config = models.DepthLlamaConfig(stream={"name": name}, **SHAPE)
    assert (obstacle(config) is None) == (name in (*EXACT, "hc", "mhc"))
