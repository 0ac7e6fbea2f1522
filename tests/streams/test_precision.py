"""What a stream computes in float32, under autocast and in a bfloat16 model."""

from __future__ import annotations

from functools import partial

import pytest
import torch
from torch import Tensor

from depth_memory import streams
from tests.streams.cases import (
    CASES,
    MEMORIES,
    D,
    Network,
    inputs_of,
    ldm,
    randomised,
    tensors,
)

every_case = pytest.mark.parametrize("config", CASES.values(), ids=CASES.keys())
FLOAT32_STATE = {n: c for n, c in CASES.items() if c.get("state_dtype") != "bfloat16"}


def perturbed(x: Tensor, ulps: float) -> Tensor:
    """`x` with every entry off by up to so many float32 ulps."""
    return x * (1 + ulps * torch.finfo(torch.float32).eps * (2 * torch.rand_like(x) - 1))


def perturbed_run(network: Network, x: Tensor, ulps: float) -> Tensor:
    """The float64 result if inputs, parameters and what is written are a little wrong."""
    copies = {n: perturbed(p.detach(), ulps) for n, p in network.named_parameters()}
    each = partial(perturbed, ulps=ulps)
    return torch.func.functional_call(network, copies, (x,), {"each": each}).detach()


@pytest.mark.parametrize("config", FLOAT32_STATE.values(), ids=FLOAT32_STATE.keys())
def test_float32_against_float64(config: dict) -> None:
    single = randomised(Network(config, dtype=torch.float32))
    exact = Network(config)
    exact.load_state_dict(single.state_dict())
    x = torch.randn(2, 3, D)
    expected = exact(x.double()).detach()
    # a float32 sum of n terms is off by up to n ulps, and the longest is over all lanes
    ulps = D * getattr(exact.stream.config, "lanes", 1)
    peers = torch.stack([perturbed_run(exact, x.double(), ulps) for _ in range(4)])
    allowed = 2 * (peers - expected).abs().max()
    assert (single(x).double() - expected).abs().max() <= allowed


@every_case
def test_autocast_keeps_the_stream_in_float32(config: dict) -> None:
    network = randomised(Network(config, dtype=torch.float32))
    written, x = [], torch.randn(2, 3, D)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        inputs = inputs_of(network, x)
        network(x, each=lambda v: written.append(v) or v)
    assert written[1].dtype == torch.bfloat16
    for z in inputs:
        assert z.dtype == torch.float32


COEFFICIENTS = {
    "hc": ("post", "mix"),
    "mhc": ("post", "mix"),
    "ldm": ("covariance", "transitions"),
    "ldm_delta": ("transitions",),
}


@pytest.mark.parametrize("name", COEFFICIENTS)
def test_coefficients_stay_float32_under_autocast_and_in_bfloat16(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16):
        network = randomised(Network(CASES[name], dtype=dtype))
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == torch.float32):
            states = list(network.states(torch.randn(2, 3, D, dtype=dtype)))
        found = [
            tensor
            for state in states
            for part in (state, getattr(state, "memory", None))
            for field in COEFFICIENTS[name]
            for tensor in tensors(getattr(part, field, ()))
        ]
        assert found
        assert {tensor.dtype for tensor in found} == {torch.float32}


@pytest.mark.parametrize("rule", ["ldm", "ldm_delta", "ldm_outer"])
@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_the_folded_memory_has_the_dtype_asked_for(rule: str, state_dtype: str) -> None:
    network = Network(ldm(rule, window=2, state_dtype=state_dtype), dtype=torch.bfloat16)
    x = torch.randn(3, D, dtype=torch.bfloat16)
    bases = [b for state in network.states(x) for b in state.memory.base]
    assert {base.dtype for base in bases} == {getattr(torch, state_dtype)}


@pytest.mark.parametrize("name", [*MEMORIES, "mhc", "mhc-head"])
def test_what_must_stay_float32_survives_a_cast(name: str) -> None:
    network = Network(CASES[name], dtype=torch.float32)
    kept = [m for m in network.modules() if getattr(m, "keeps_float32", False)]
    with torch.no_grad():
        for module in kept:
            for parameter in module.parameters():
                parameter.fill_(0.999)
    for cast in (
        lambda: network.to(torch.bfloat16), network.bfloat16, network.half,
        lambda: network.to("cpu", torch.float16),
    ):  # fmt: skip
        cast()
        for module in kept:
            for parameter in module.parameters():
                assert parameter.dtype == torch.float32
                assert (parameter == torch.tensor(0.999)).all()
    assert {p.dtype for p in network.ports.parameters()} >= (
        {torch.float16} if name in MEMORIES else set()
    )
    network.double()
    assert {p.dtype for p in network.parameters()} == {torch.float64}


@every_case
def test_the_names_of_float32_modules_are_published(config: dict) -> None:
    for name, module in Network(config).named_modules():
        last = name.rpartition(".")[2]
        keeps = getattr(module, "keeps_float32", False)
        assert keeps == (last in streams.FLOAT32_MODULES), name


@every_case
def test_matrices_that_start_at_a_pattern_are_undecayed(config: dict) -> None:
    torch.manual_seed(0)
    first = dict(Network(config).named_parameters())
    for name, parameter in Network(config).named_parameters():
        if parameter.dim() >= 2 and parameter.any() and torch.equal(parameter, first[name]):
            assert name.rpartition(".")[2] in streams.UNDECAYED, name


def test_mean_readout_is_exact_in_float64() -> None:
    network = randomised(Network({"name": "mhc", "lanes": 3}))
    x = torch.randn(4, D, dtype=torch.float64)
    *_, last = network.states(x)
    expected = last.lanes.mean(-2)
    atol = 4 * torch.finfo(torch.float64).eps * last.lanes.abs().max().item()
    torch.testing.assert_close(inputs_of(network, x)[-1], expected, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["hc", "hc-rms", "mhc", "mhc-zero"])
def test_controllers_compute_in_float32_under_autocast(name: str) -> None:
    """The values, not only their dtype: a bfloat16 product would be off by 1e-3."""
    network = randomised(Network(CASES[name], dtype=torch.float32))
    lanes = torch.randn(5, network.stream.config.lanes, D)
    for port in network.ports:
        controller = port.coefficients if name.startswith("hc") else port.controller
        plain = controller(lanes)
        with torch.autocast("cpu", torch.bfloat16):
            cast = controller(lanes)
        for a, b in zip(plain, cast, strict=True):
            torch.testing.assert_close(b, a, rtol=1e-6, atol=1e-6)
