"""What cannot be converted is refused in one line, and nothing is left behind."""

from __future__ import annotations

import errno
import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from safetensors.torch import load_file, save_file

from depth_memory import weights as weights_module
from depth_memory.convert import check, convert, source
from depth_memory.errors import UserError

LDM = {"stream": {"name": "ldm"}, "check": False}


def configured(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def with_weights(folder: Path, change: Callable[[dict], None]) -> None:
    path = folder / "model.safetensors"
    state = load_file(path)
    change(state)
    save_file(state, path, metadata={"format": "pt"})


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


def whole_numbers(state: dict) -> None:
    state["model.norm.weight"] = state["model.norm.weight"].int()


def narrower(state: dict) -> None:
    state["model.norm.weight"] = state["model.norm.weight"][:-1].clone()


BROKEN = {
    "no configuration": (lambda d: (d / "config.json").unlink(), "config.json: not the conf"),
    "a configuration that is cut": (lambda d: cut(d / "config.json"), "config.json: not the conf"),
    "another architecture": (
        lambda d: configured(d, model_type="gpt2"),
        "model_type: got 'gpt2'; allowed: depth_llama, depth_qwen3, llama, qwen3",
    ),
    "a configuration nested too deeply": (
        lambda d: (d / "config.json").write_text("[" * 100_000),
        "config.json: not the configuration of a model (nested too deeply)",
    ),
    "quantised weights": (
        lambda d: configured(d, quantization_config={"quant_method": "gptq"}),
        "quantization_config: got 'gptq'; allowed: none",
    ),
    "a configuration that contradicts itself": (
        lambda d: configured(d, num_attention_heads=5, head_dim=None),
        "config.json: cannot be read: ",
    ),
    "an unknown activation": (
        lambda d: configured(d, hidden_act="fly"),
        "config.json: cannot be loaded: 'fly' is not known",
    ),
    "an unknown rotation": (
        lambda d: configured(d, rope_parameters={"rope_type": "fly"}),
        "config.json: cannot be loaded: 'fly' is not known",
    ),
    "no positions": (
        lambda d: configured(d, max_position_embeddings=0),
        "config.json: max_position_embeddings: got 0; allowed: at least 1",
    ),
    "a stream of a newer version": (
        lambda d: configured(d, model_type="depth_llama", stream={"name": "preln", "fly": 1}),
        "config.json: stream.fly: got 1; allowed: a field of preln: none",
    ),
    "no weights": (
        lambda d: (d / "model.safetensors").unlink(),
        "no weights; looked for model.safetensors and model.safetensors.index.json",
    ),
    "weights that are cut": (
        lambda d: cut(d / "model.safetensors"),
        "model.safetensors: damaged: ",
    ),
    "a weight too few": (
        lambda d: with_weights(d, lambda s: s.pop("model.norm.weight")),
        "weights are missing: model.norm.weight",
    ),
    "a weight too many": (
        lambda d: with_weights(d, lambda s: s.update(spare=s["model.norm.weight"].clone())),
        "weights that a llama does not have: spare",
    ),
    "a weight of another shape": (
        lambda d: with_weights(d, narrower),
        "model.norm.weight: shape: got [31]; allowed: [32], as in config.json",
    ),
    "a weight of whole numbers": (
        lambda d: with_weights(d, whole_numbers),
        "dtype of model.norm.weight: got 'I32'; allowed: F64, F32, BF16, F16",
    ),
    "another vocabulary": (lambda d: configured(d, vocab_size=96), "shape: got [97, 32]; allowed:"),
}


def refused(folder: Path, out: Path, **options: object) -> str:
    with pytest.raises(UserError) as error:
        convert(folder, out, **LDM | options)
    line = str(error.value)
    assert "\n" not in line
    assert [path.name for path in out.parent.iterdir() if path.name != folder.name] == []
    return line


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_source(saved, tmp_path, case):
    damage, message = BROKEN[case]
    folder = saved()
    damage(folder)
    line = refused(folder, tmp_path / "out")
    assert line.startswith(str(folder))
    assert message in line


SHARDED = {
    "a shard that is missing": (lambda d, shard: shard.unlink(), "missing, though model.safeten"),
    "a shard that is cut": (lambda d, shard: cut(shard), "damaged: "),
    "a shard in the place of another": (
        lambda d, shard: shutil.copy(sorted(d.glob("*.safetensors"))[0], shard),
        "is missing, which model.safetensors.index.json places there",
    ),
}


@pytest.mark.parametrize("case", SHARDED)
def test_a_broken_shard(saved, tmp_path, case):
    damage, message = SHARDED[case]
    folder = saved(shard="8KB")
    shard = sorted(folder.glob("*.safetensors"))[1]
    damage(folder, shard)
    line = refused(folder, tmp_path / "out")
    assert line.startswith(str(shard))
    assert message in line


@pytest.mark.parametrize("content", ["{", "[]", '{"weight_map": {"a": "../b.safetensors"}}'])
def test_a_broken_index(saved, tmp_path, content):
    folder = saved(shard="8KB")
    (folder / "model.safetensors.index.json").write_text(content)
    assert refused(folder, tmp_path / "out").startswith(f"{folder}/model.safetensors.index.json: ")


def test_a_source_of_ours_that_was_altered(saved, tmp_path):
    convert(saved(), tmp_path / "ours", stream={"name": "preln"}, check=False)
    shutil.rmtree(tmp_path / "plain")
    path = tmp_path / "ours" / "model.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    line = refused(tmp_path / "ours", tmp_path / "out")
    assert line == (
        f"{tmp_path / 'ours'}: model.safetensors was altered (SHA-256 differs); "
        "bring it back, or remove weights.json if that was meant"
    )


def test_a_source_of_a_newer_version(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(weights_module, "FORMAT", 2)
    convert(saved(), tmp_path / "ours", stream={"name": "preln"}, check=False)
    shutil.rmtree(tmp_path / "plain")
    monkeypatch.setattr(weights_module, "FORMAT", 1)
    line = refused(tmp_path / "ours", tmp_path / "out")
    assert line.endswith("format: got 2; allowed: up to 1 (written by a newer depth-memory)")


def test_a_directory_that_is_there(saved, tmp_path):
    folder, out = saved(), tmp_path / "out"
    out.mkdir()
    (out / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"^out: got '.*out'; allowed: a new directory$"):
        convert(folder, out, **LDM)
    assert [path.name for path in out.iterdir()] == ["thesis.tex"]


@pytest.mark.parametrize("at", [1, 2, 3])
def test_a_disk_that_fills_leaves_nothing(saved, tmp_path, monkeypatch, at):
    write, calls = weights_module.write_durably, []

    def full(path, blocks):
        calls.append(path.name)
        if len(calls) == at:
            path.write_bytes(next(iter(blocks))[:5])
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(path, blocks)

    monkeypatch.setattr(weights_module, "write_durably", full)
    line = refused(saved(), tmp_path / "out", shard_bytes=30_000)
    assert line == f"out: cannot write {tmp_path / 'out'}: No space left on device"


@pytest.mark.parametrize("name", ["nowhere", "a/b/c", "", "./model", "-- x/y"])
def test_a_name_of_nothing(tmp_path, name):
    with pytest.raises(UserError, match=r"^source: got '.*'; allowed: a directory, or owner/name"):
        convert(name, tmp_path / "out", **LDM)


def test_a_model_of_the_hub(saved, tmp_path, monkeypatch):
    import huggingface_hub

    folder, asked = saved(), []

    def fetch(name, allow_patterns):
        asked.append((name, allow_patterns))
        return str(folder)

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    done = convert("owner/name", tmp_path / "out", stream={"name": "ldm"})
    assert done.comparison.difference == 0.0
    ((name, patterns),) = asked
    assert name == "owner/name"
    assert {"config.json", "*.safetensors", "tokenizer.json"} <= set(patterns)
    assert not any(pattern.endswith((".bin", ".py", ".pt")) for pattern in patterns)


def test_a_hub_that_does_not_answer(tmp_path, monkeypatch):
    import huggingface_hub

    def fetch(name, allow_patterns):
        raise huggingface_hub.errors.LocalEntryNotFoundError("offline\nand more of it")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", fetch)
    with pytest.raises(UserError, match=r"^source: owner/name is no directory, and the hub .*offl"):
        source.open_source("owner/name")


def test_without_memory_nothing_is_compared_unless_asked(saved, tmp_path, monkeypatch):
    monkeypatch.setattr(check, "available", lambda: 1000)
    folder = saved()
    assert convert(folder, tmp_path / "a", stream={"name": "ldm"}).comparison is None
    assert convert(folder, tmp_path / "b", stream={"name": "ldm"}, check=True).comparison
    monkeypatch.setattr(check, "available", lambda: None)
    assert check.fits(10**15)


def test_unknown_arguments(saved, tmp_path):
    folder = saved()
    assert refused(folder, tmp_path / "out", dtype="int8").startswith("dtype: got 'int8'; allowed:")
    line = refused(folder, tmp_path / "out", stream={"name": "fly"})
    assert line.startswith("stream.name: got 'fly'; allowed: ")
    line = refused(folder, tmp_path / "out", stream={"name": "ldm", "groups": 5})
    assert line.startswith("stream.groups: got 5; allowed: a divisor of the width 32")
