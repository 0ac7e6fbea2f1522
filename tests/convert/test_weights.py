"""Weights are read and written one at a time, in files that safetensors itself reads."""

from __future__ import annotations

import json
import weakref
from functools import partial
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from depth_memory.convert import convert
from depth_memory.weights import INDEX, Part, Weights, open_weights, write_weights

TENSORS = {
    "odd": torch.randn(3).bfloat16(),
    "matrix": torch.randn(5, 7),
    "scalar": torch.tensor(2.5),
    "empty": torch.zeros(0, 4),
    "half": torch.randn(9).half(),
    "double": torch.randn(2, 3, 2, dtype=torch.float64),
}


def parts(tensors: dict[str, torch.Tensor]) -> list[Part]:
    return [Part(n, t.dtype, tuple(t.shape), partial(lambda x: x, t)) for n, t in tensors.items()]


@pytest.mark.parametrize("limit", [1, 50, 10**9])
def test_what_is_written_is_read_by_safetensors(tmp_path: Path, limit: int) -> None:
    seen = []
    write_weights(
        tmp_path, parts(TENSORS), shard_bytes=limit, on_progress=lambda *at: seen.append(at)
    )
    files = sorted(tmp_path.glob("*.safetensors"))
    found = {name: tensor for file in files for name, tensor in load_file(file).items()}
    ours = open_weights(tmp_path)
    assert (tmp_path / INDEX).exists() == (limit < 10**9) == (len(files) > 1)
    for name, tensor in TENSORS.items():
        for other in (found[name], ours.read(name)):
            assert other.dtype == tensor.dtype
            assert torch.equal(other, tensor), name
    total = sum(tensor.nbytes for tensor in TENSORS.values())
    assert seen[-1] == (total, total)
    assert ours.size == total


def test_elements_lie_at_multiples_of_their_size(tmp_path: Path) -> None:
    write_weights(tmp_path, parts(TENSORS), shard_bytes=10**9)
    content = (tmp_path / "model.safetensors").read_bytes()
    start = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:start])
    for name, tensor in TENSORS.items():
        assert (start + header[name]["data_offsets"][0]) % tensor.element_size() == 0, name


def test_a_conversion_holds_one_tensor_at_a_time(saved, tmp_path, monkeypatch) -> None:
    source = saved(shard="8KB", num_hidden_layers=4)
    alive: list[weakref.ref] = []
    most = reads = 0
    read = Weights.read

    def counting(self: Weights, name: str) -> torch.Tensor:
        nonlocal most, reads
        tensor = read(self, name)
        alive.append(weakref.ref(tensor.untyped_storage()))
        storages = sum(ref() is not None for ref in alive)
        most, reads = max(most, storages), reads + 1
        return tensor

    monkeypatch.setattr(Weights, "read", counting)
    convert(source, tmp_path / "out", stream={"name": "ldm"}, check=False)
    assert reads == len(open_weights(source).entries)
    assert most == 1
