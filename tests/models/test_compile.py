"""Compiling, whole or per layer: same results, and no more variants for more layers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pytest
import torch
from torch.utils.checkpoint import checkpoint

SMALL = {
    "block_attnres": {"blocks": 2},
    "ldm": {"window": 2},
    "ldm_delta": {"window": 2},
    "ldm_outer": {"window": 2},
}
"""Fewer states to compile for than by default; what is tested does not depend on how many."""

# the compiler looks at this attribute itself, and hides the warning unless warnings are errors
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor")


class Backend:
    """Runs a graph as it is, and counts how many there were."""

    def __init__(self) -> None:
        self.graphs = 0

    def __call__(self, module, inputs):
        del inputs
        self.graphs += 1
        return module.forward


@pytest.fixture(autouse=True)
def _fresh() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


def test_whole_model(make, stream, ids):
    model = make("llama", stream).train()
    expected = model(ids, labels=ids)
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    output = compiled(ids, labels=ids)
    assert torch.equal(output.logits, expected.logits)
    assert torch.equal(output.loss, expected.loss)


def compile_layers(model, ids) -> int:
    """Compile each layer, compare, and return how many graphs that took."""
    expected = model(ids).logits
    backend = Backend()
    for layer in model.model.layers:
        layer.compile(backend=backend, fullgraph=True)
    assert torch.equal(model(ids).logits, expected)
    count = backend.graphs
    assert torch.equal(model(ids).logits, expected)
    assert backend.graphs == count, "a second step compiles nothing"
    return count


def test_variants_do_not_grow_with_depth(make, stream, ids):
    """The bodies are shared, and a port meets a bounded number of states or stays uncompiled."""
    small = stream | SMALL.get(stream["name"], {})
    counts = []
    for depth in (12, 24):
        torch._dynamo.reset()
        model = make("llama", small, num_hidden_layers=depth).train()
        counts.append(compile_layers(model, ids))
    assert 2 <= counts[1] <= counts[0]


def test_compiled_layers_train_alike(make, ids):
    model = make("qwen3", {"name": "ldm", "window": 2}).train()
    model(ids, labels=ids).loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    for layer in model.model.layers:
        layer.compile(backend="eager")
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, expected[name]), name


def test_compiled_layers_checkpoint_alike(make, ids):
    model = make("llama", {"name": "mhc"}).train()
    model(ids, labels=ids).loss.backward()
    expected = {name: p.grad for name, p in model.named_parameters()}
    model.zero_grad()
    model._set_gradient_checkpointing(True, partial(checkpoint, use_reentrant=False))
    for layer in model.model.layers:
        layer.compile(backend="eager")
    model(ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        assert torch.equal(parameter.grad, expected[name]), name


@torch.no_grad()
def test_compiled_layers_generate_without_a_variant_per_layer(make, ids):
    model = make("llama", {"name": "preln"}, num_hidden_layers=12)
    options = {"max_new_tokens": 4, "do_sample": False}
    expected = model.generate(ids, **options)
    for layer in model.model.layers:
        layer.compile(backend="eager", dynamic=True)
    assert torch.equal(model.generate(ids, **options), expected)


@torch.no_grad()
def test_hidden_states_of_compiled_layers(make, ids):
    model = make("llama", {"name": "hc"})
    expected = model(ids, output_hidden_states=True, use_cache=False).hidden_states
    for layer in model.model.layers:
        layer.compile(backend="eager")
    for _ in range(2):
        output = model(ids, output_hidden_states=True, use_cache=False)
        assert all(map(torch.equal, output.hidden_states, expected))
        assert model(ids, use_cache=False).hidden_states is None
