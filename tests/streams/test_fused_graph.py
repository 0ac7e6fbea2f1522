"""The graph of a pass by kernels is like any other: partial losses, many passes, what it keeps."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from depth_memory.errors import UserError
from depth_memory.ops import _impl
from depth_memory.streams import frozen_coefficients
from depth_memory.streams.ldm_fused import Exchange
from tests.streams.cases import ldm, weighted
from tests.streams.fused import Layers, assert_same, pair, results, tokens

SIZES = {"key_dim": 2, "groups": 2, "read_rank": 3, "write_rank": 3}
# what has a covariance and what has not, and both kinds of site
FORMS = {
    "ldm": ldm(**SIZES, window=2),
    "ldm_delta-block": ldm("ldm_delta", **SIZES, window=1, sites="block"),
}
DEFAULT = {**FORMS["ldm"], "impl": "triton"}
every_form = pytest.mark.parametrize("config", FORMS.values(), ids=FORMS.keys())


def detached_bodies(network: Layers, x: Tensor) -> Tensor:
    """Nothing after a body depends on what it read: no read but the last has a gradient."""
    return network(x, lambda site, z, y, state: y.detach())


def detached_in_the_middle(network: Layers, x: Tensor) -> Tensor:
    return network(x, lambda site, z, y, state: y.detach() if site in (1, 2) else y)


def early_input(network: Layers, x: Tensor) -> Tensor:
    """Only what a sublayer in the middle reads counts."""
    seen = []
    network(x, lambda site, z, y, state: seen.append(z) or y)
    return seen[2]


def inputs_and_output(network: Layers, x: Tensor) -> Tensor:
    """What every sublayer reads counts, and the output; bodies pass nothing on."""
    seen = []
    out = network(x, lambda site, z, y, state: seen.append(z) or y.detach())
    return out + sum(torch.sin((1 + i) * z) for i, z in enumerate(seen))


def residual_stream(network: Layers, x: Tensor) -> Tensor:
    """Only the residual stream after some layers counts, which no read of a later one enters."""
    seen = []
    network(x, lambda site, z, y, state: seen.append(state.h) or y)
    return seen[2]


def outputs(network: Layers, x: Tensor) -> Tensor:
    """Only what two bodies give counts."""
    seen = []
    network(x, lambda site, z, y, state: seen.append(y) or y)
    return seen[0] + torch.sin(seen[2])


LOSSES = (
    *(detached_bodies, detached_in_the_middle, early_input, inputs_and_output),
    *(residual_stream, outputs),
)


@pytest.mark.parametrize("loss", LOSSES, ids=lambda loss: loss.__name__)
@every_form
def test_a_loss_may_use_part_of_the_graph(config: dict, loss: Callable) -> None:
    if loss is residual_stream and config.get("sites") == "block":
        # the reference's residual stream holds the attention's output there, the kernels' not yet
        config = {**config, "sites": "sublayer"}
    reference, kernels = pair(config)
    x = tokens(1)
    assert_same(results(kernels, x, loss), results(reference, x, loss))


@pytest.mark.parametrize("still", ["stream", "ports", "writer", "reader", "norms", "1.writer"])
def test_parameters_may_be_frozen(still: str) -> None:
    reference, kernels = pair(DEFAULT)
    found = []
    for network in (kernels, reference):
        for name, parameter in network.named_parameters():
            parameter.requires_grad_(still not in name)
        moving = [p for p in network.parameters() if p.requires_grad]
        x = tokens(1) if not found else found[0][0]
        found.append((x, torch.autograd.grad(weighted(network(x)), moving)))
    for actual, expected in zip(found[0][1], found[1][1], strict=True):
        atol = 1e-12 * max(expected.abs().max().item(), 1.0)
        torch.testing.assert_close(actual, expected, rtol=0, atol=atol)


@pytest.mark.parametrize("embedding", [True, False], ids=["all", "frozen embedding"])
def test_every_backward_pass_starts_anew(embedding: bool) -> None:
    """After a pass over the whole graph, over a part of it, and over another loss."""
    network = Layers(DEFAULT)
    network.stream.embedding_writer.requires_grad_(embedding)
    x, seen = tokens(1).requires_grad_(embedding), []
    loss = weighted(network(x, lambda site, z, y, state: seen.append(z) or y))
    wanted = [p for p in network.parameters() if p.requires_grad]

    def differentiate(what: Tensor = loss, by: Any = wanted) -> list[Tensor]:
        return torch.autograd.grad(what, by, retain_graph=True, allow_unused=True)

    first = differentiate()
    differentiate(by=list(network.norms[-1].parameters()))
    differentiate(by=list(network.ports[3].parameters()))
    differentiate(weighted(seen[2]))
    differentiate(weighted(seen[3]), [seen[0]])
    for again in (differentiate(), torch.autograd.grad(loss, wanted)):
        assert all(torch.equal(a, b) for a, b in zip(first, again, strict=True))


def test_gradients_accumulate() -> None:
    network = Layers(DEFAULT)
    parts = tokens(2, 1)
    for part in parts:
        weighted(network(part)).backward()
    total = [p.grad.clone() for p in network.parameters()]
    network.zero_grad()
    sum(weighted(network(part)) for part in parts).backward()
    for parameter, expected in zip(network.parameters(), total, strict=True):
        torch.testing.assert_close(parameter.grad, expected, rtol=1e-11, atol=1e-13)


def test_two_passes_at_once() -> None:
    reference, kernels = pair(DEFAULT)
    x = tokens(2, 1)

    def both(network: Layers, x: Tensor) -> Tensor:
        states = [network.stream.start(part) for part in x]
        for site, port in enumerate(network.ports):
            for i in range(2):
                z, state = port.read(states[i], network.norms[site])
                states[i] = port.write(state, network.body(site, z))
        first, second = (network.stream.finish(s, network.norms[-1]) for s in states)
        return first * second

    assert_same(results(kernels, x, both), results(reference, x, both))


def test_second_derivatives_are_refused() -> None:
    network = Layers(DEFAULT)
    x = tokens(1).requires_grad_()
    (grad,) = torch.autograd.grad(weighted(network(x)), x, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@every_form
def test_a_graph_is_used_up_by_its_last_backward_pass(config: dict) -> None:
    network, tapes = Layers({**config, "impl": "triton"}), []
    x = tokens(1).requires_grad_()
    loss = weighted(network(x, lambda site, z, y, state: tapes.append(state.tape) or y))
    kept = tapes[0].windows
    loss.backward(retain_graph=True)
    assert all(window.values.numel() for window in kept)
    loss.backward()
    assert len(kept) > 1
    for window in kept:
        arrays = (window.values, window.weights, window.rests, window.scales, *window.writes[:1])
        assert not any(array.numel() for array in arrays)
        assert window.base is window.grads is window.write_grads is window.base_grad is None
    with pytest.raises(RuntimeError, match="retain_graph"):
        loss.backward()


@pytest.fixture
def _no_collector() -> Iterator[None]:
    gc.collect()
    gc.disable()
    yield
    gc.enable()


@pytest.mark.usefixtures("_no_collector")
@pytest.mark.parametrize("backward", [True, False])
def test_a_pass_is_freed_with_its_loss(backward: bool) -> None:
    """By counting references alone: nothing of a pass refers to itself."""
    network, watched = Layers(DEFAULT), []

    def each(site: int, z: Tensor, y: Tensor, state: Exchange) -> Tensor:
        watched.append(weakref.ref(state.tape))
        watched.extend(weakref.ref(window) for window in state.tape.windows)
        return y

    loss = weighted(network(tokens(1).requires_grad_(), each))
    if backward:
        loss.backward(retain_graph=True)
    assert any(ref() is not None for ref in watched)
    del loss
    assert all(ref() is None for ref in watched)


def test_auto_takes_kernels_in_training_alone(monkeypatch) -> None:
    """Without gradients the plain path keeps a grafted model's logits to the bit."""
    network, x = Layers({**FORMS["ldm"], "impl": "auto"}), tokens(1)
    assert not isinstance(network.stream.start(x), Exchange)  # the interpreter is for tests
    monkeypatch.setattr(_impl, "_reason", lambda op, device: None)
    assert isinstance(network.stream.start(x), Exchange)
    with torch.no_grad():
        assert not isinstance(network.stream.start(x), Exchange)


@pytest.mark.parametrize("impl", ["auto", "triton"])
def test_frozen_coefficients_use_the_plain_path(impl: str, monkeypatch) -> None:
    """Where `auto` takes kernels, too: only there are coefficients separate tensors."""
    monkeypatch.setattr(_impl, "_reason", lambda op, device: None)
    network = Layers({**FORMS["ldm"], "impl": impl})
    x = tokens(1)
    assert isinstance(network.stream.start(x), Exchange)
    with frozen_coefficients():
        assert not isinstance(network.stream.start(x), Exchange)
        found = results(network, x)
        assert_same(found, results(Layers({**FORMS["ldm"], "impl": "reference"}), x))


def test_a_layer_that_runs_again_is_refused() -> None:
    """As when a checkpoint wraps a port: the tape has gone on, a result would be wrong."""
    network = Layers(DEFAULT)
    state = network.stream.start(tokens(1).requires_grad_())

    def layer(state: Any) -> Any:
        z, state = network.ports[0].read(state, network.norms[0])
        return network.ports[0].write(state, network.body(0, z))

    state = checkpoint(layer, state, use_reentrant=False)
    loss = weighted(network.stream.finish(state, network.norms[-1]))
    with pytest.raises(UserError, match=r"^stream\.impl: .*; allowed: reference"):
        loss.backward()


@every_form
def test_memory_that_was_never_written_is_never_read(config: dict) -> None:
    """The suite fills new memory with NaN; with another filling the results are the same."""
    network, x = Layers({**config, "impl": "triton"}), tokens(2)
    assert torch.empty(3).isnan().all()
    poisoned = results(network, x)
    assert all(grad.isfinite().all() for grad in poisoned.values())
    torch.utils.deterministic.fill_uninitialized_memory = False
    plain = results(network, x)
    assert all(torch.equal(grad, plain[name]) for name, grad in poisoned.items())
