"""The state per token that is told is that of the real tensors."""

from __future__ import annotations

import weakref
from pathlib import Path

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves

from depth_memory import models
from depth_memory.generate import generate, state_bytes
from depth_memory.generate.graph import step
from depth_memory.presets.counts import state_size
from tests.generate.conftest import SHAPE


def watched(loaded, monkeypatch, see) -> None:
    """Let `see(event, state)` know of every state of a pass: start, read or write."""
    layers = loaded.model.model.layers
    kinds = {type(port) for layer in layers for port in (layer.attn_port, layer.mlp_port)}
    stream = loaded.model.model.stream
    start = stream.start
    monkeypatch.setattr(stream, "start", lambda x: see("start", start(x)))
    for kind in kinds:
        read, write = kind.read, kind.write

        def reading(port, state, norm, read=read):
            x, state = read(port, state, norm)
            return x, see("read", state)

        def writing(port, state, y, write=write):
            return see("write", write(port, state, y))

        monkeypatch.setattr(kind, "read", reading)
        monkeypatch.setattr(kind, "write", writing)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@torch.no_grad()
def test_bytes_per_token(make, stream, dtype, monkeypatch):
    from transformers import DynamicCache

    loaded = make(stream)
    loaded.model.to(dtype)
    told = state_bytes(loaded.model)
    ids, cache = loaded.encode("the old house"), DynamicCache(config=loaded.model.config)
    sizes = []

    def see(event, state):
        size = state_size(state) // ids.shape[1]
        # an output may wait for the read, and a read may leave something for its write
        sizes.append(min(sizes.pop(), size) if event == "read" else size)
        return state

    watched(loaded, monkeypatch, see)
    positions = torch.arange(ids.shape[1])[None]
    step(loaded.model, cache, ids, positions, {"full_attention": None})
    held = sum(layer.keys.nbytes + layer.values.nbytes for layer in cache.layers)
    assert told.cache == held // ids.shape[1] == 2 * 2 * 2 * 8 * dtype.itemsize
    # after the last sublayer the head reads, which may need less than what waits
    assert max(sizes[:-1]) <= told.depth <= max(sizes)
    assert str(told) == (
        f"state per token: {told.cache} bytes of keys and values are kept; "
        f"{told.depth} of {stream} live within one forward pass"
    )


def test_nothing_but_keys_and_values_outlives_a_pass(make, stream, monkeypatch):
    loaded, seen, passes = make(stream), [], []

    def see(event, state):
        if event == "start":
            passes.append(all(tensor() is None for tensor in seen))
            seen.clear()
        seen.extend(weakref.ref(leaf) for leaf in tree_leaves(state) if isinstance(leaf, Tensor))
        return state

    watched(loaded, monkeypatch, see)
    generate(loaded, "the old house", tokens=4, temperature=0)
    assert len(seen) >= 4
    assert passes == [True] * 4


@pytest.mark.parametrize(("key_dim", "depth"), [(4, 49_840), (8, 88_128)])
def test_the_page_says_the_bytes_of_a_large_model(key_dim, depth):
    shape = SHAPE | {"vocab_size": 97, "num_hidden_layers": 28, "hidden_size": 2048}
    heads = {"num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128}
    with torch.device("meta"):
        stream = {"name": "ldm", "key_dim": key_dim}
        model = models.build_model("qwen3", stream, **(shape | heads)).to(torch.bfloat16)
    told = state_bytes(model)
    assert (told.cache, told.depth) == (114_688, depth)
    text = (Path(__file__).parents[2] / "docs" / "generation.md").read_text()
    assert f"{told.cache:,} bytes" in text
    assert f"{told.depth:,}" in text
