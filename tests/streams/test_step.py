"""LDM by kernels for few tokens without gradients equals the reference, in float64 to rounding."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from depth_memory.ops import _impl
from depth_memory.streams import ldm_step
from depth_memory.streams.ldm import Streams
from depth_memory.streams.ldm_fused import Exchange
from depth_memory.streams.ldm_step import Stepping
from tests.streams.fused import Layers, pair, tokens
from tests.streams.test_fused import EVERY, OPTIONS, small

CASES = {
    **{f"{rule}-{sites}": (small(rule, sites=sites), 6, (2,)) for rule, sites in EVERY},
    **OPTIONS,
}


@pytest.fixture(autouse=True)
def _no_gradients():
    with torch.no_grad():
        yield


def stepped(network: Layers, x: Tensor) -> Tensor:
    """The output; these kernels do carry it."""
    assert isinstance(network.stream.start(x), Stepping)
    return network(x)


@pytest.mark.parametrize(("config", "dim", "shape"), CASES.values(), ids=CASES.keys())
def test_a_pass_equals_the_reference(config: dict, dim: int, shape: tuple[int, ...]) -> None:
    reference, kernels = pair(config, dim=dim)
    x = tokens(*shape, dim=dim)
    right = reference(x)
    atol = 1e-13 * right.abs().max().item()
    torch.testing.assert_close(stepped(kernels, x), right, rtol=0, atol=atol)


# the interpreter rounds to bfloat16 towards 0
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16], ids=str)
@pytest.mark.parametrize(("rule", "sites"), [EVERY[0], EVERY[3]])
def test_no_worse_than_the_reference_in(dtype: torch.dtype, rule: str, sites: str) -> None:
    config = small(rule, sites=sites)
    exact = Layers({**config, "impl": "reference"}, dtype=dtype).double()
    x = tokens(4, dtype=dtype)
    right = exact(x.double())
    reference, kernels = pair(config, dtype=dtype)

    def distance(y: Tensor) -> float:
        return ((y.double() - right).norm() / right.norm()).item()

    assert distance(stepped(kernels, x)) <= 2 * distance(reference(x)) + torch.finfo(dtype).eps


def test_a_norm_that_kernels_do_not_know_is_called() -> None:
    reference, kernels = pair(small(sites="block"), norm=torch.nn.LayerNorm)
    x = tokens(2)
    torch.testing.assert_close(stepped(kernels, x), reference(x), rtol=1e-12, atol=1e-12)


def test_a_state_is_as_it_was_after_it_was_used() -> None:
    """Nothing is changed in place: the same state gives the same read again."""
    network = Layers(small(impl="triton"))
    state: Any = network.stream.start(tokens(2))
    for site in range(3):
        z, state = network.ports[site].read(state, network.norms[site])
        state = network.ports[site].write(state, network.body(site, z))
    (first, _), (again, _) = (network.ports[3].read(state, network.norms[3]) for _ in range(2))
    assert torch.equal(first, again)


def test_no_tokens_give_no_output() -> None:
    assert stepped(Layers(small(impl="triton")), tokens(0)).shape == (0, 6)


def test_the_memory_is_poisoned_nowhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is allocated is written before it is read."""
    network, x = Layers(small(sites="block", impl="triton"), dim=10), tokens(3, dim=10)
    right = stepped(network, x)
    for name in ("empty", "empty_like"):
        real = getattr(torch, name)
        monkeypatch.setattr(
            torch, name, lambda *a, real=real, **k: real(*a, **k).fill_(float("nan"))
        )
    assert torch.equal(stepped(network, x), right)


def test_who_carries_what(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Layers(small(impl="triton"))
    assert isinstance(network.stream.start(tokens(ldm_step.TOKENS)), Stepping)
    assert isinstance(network.stream.start(tokens(ldm_step.TOKENS + 1)), Exchange)
    with torch.enable_grad():
        assert isinstance(network.stream.start(tokens(1)), Exchange)
    wide = Layers(small(impl="triton", key_dim=64, groups=6, read_rank=128))
    assert isinstance(wide.stream.start(tokens(1)), Exchange)
    # a port's parameters may be gone when the next one reads
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    assert isinstance(network.stream.start(tokens(1)), Exchange)


def test_auto_waits_for_a_measurement(monkeypatch: pytest.MonkeyPatch) -> None:
    network = Layers(small(impl="auto"))
    monkeypatch.setattr(_impl, "obstacle", lambda op, device: None)
    monkeypatch.setattr(_impl, "_reason", lambda op, device: None if op == "exchange" else "no")
    assert isinstance(network.stream.start(tokens(1)), Streams)
    monkeypatch.setattr(_impl, "_reason", lambda op, device: None)
    assert isinstance(network.stream.start(tokens(1)), Stepping)
