"""PreLN is the plain sum, and what other streams must reproduce to be grafted onto a model."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from depth_memory.errors import UserError
from tests.streams.cases import CASES, MEMORIES, D, Network, inputs_of, ldm, norm, randomised


def plain(network: Network, x: Tensor) -> list[Tensor]:
    """What each norm of an ordinary pre-norm network is given."""
    inputs = [h := x]
    for site in range(len(network.ports)):
        h = h + network.body(site, norm(h))
        inputs.append(h)
    return inputs


def preserved(config: dict, dtype: torch.dtype) -> Network:
    network = randomised(Network(config, dtype=dtype))
    network.stream.preserve_()
    for port in network.ports:
        port.preserve_()
    return network


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
def test_preln_is_the_plain_sum(dtype: torch.dtype) -> None:
    network, x = Network(CASES["preln"], dtype=dtype), torch.randn(2, 3, D).to(dtype)
    for a, b in zip(inputs_of(network, x), plain(network, x), strict=True):
        assert torch.equal(a, b)
    assert not list(network.parameters())


# blocks by kernels add the sum of two outputs, where PreLN adds one after the other
SUMS = [n for n, c in MEMORIES.items() if c.get("impl") == "triton" and c.get("sites") == "block"]
EXACT = [n for n, c in MEMORIES.items() if c.get("residual", True) and n not in SUMS]
EXACT += [n for n, c in CASES.items() if c["name"] in ("preln", "preln_adapter", "denseformer")]


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
@pytest.mark.parametrize("name", EXACT)
def test_preserved_is_preln_bit_for_bit(name: str, dtype: torch.dtype) -> None:
    network, x = preserved(CASES[name], dtype), torch.randn(2, 3, D).to(dtype)
    for a, b in zip(inputs_of(network, x), plain(network, x), strict=True):
        assert torch.equal(a, b)


# not bfloat16, to which the interpreter rounds towards 0
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16], ids=str)
def test_preserved_by_kernels_is_preln_bit_for_bit(dtype: torch.dtype) -> None:
    network, x = preserved(ldm(window=2, impl="triton"), dtype), torch.randn(2, D).to(dtype)
    for a, b in zip(inputs_of(network, x), plain(network, x), strict=True):
        assert torch.equal(a, b)


@pytest.mark.parametrize("name", SUMS)
def test_preserved_blocks_by_kernels_are_preln_up_to_rounding(name: str) -> None:
    network, x = preserved(CASES[name], torch.float64), torch.randn(2, D, dtype=torch.float64)
    for a, b in zip(inputs_of(network, x), plain(network, x), strict=True):
        atol = 64 * torch.finfo(torch.float64).eps * b.abs().max().item()
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["name"] == "hc"])
def test_preserved_hyper_connections_are_preln_in_every_lane(name: str) -> None:
    network, x = preserved(CASES[name], torch.float64), torch.randn(2, 3, D, dtype=torch.float64)
    *inputs, last = inputs_of(network, x)
    *expected, total = plain(network, x)
    for a, b in zip(inputs, expected, strict=True):
        assert torch.equal(a, b)
    if CASES[name].get("readout") == "norm_sum":
        last = last.sum(-2)
    lanes = network.stream.config.lanes
    atol = 2 * lanes * torch.finfo(torch.float64).eps * last.abs().max().item()
    torch.testing.assert_close(last, lanes * total, rtol=0, atol=atol)


@pytest.mark.parametrize("name", ["mhc", "mhc-columns", "mhc-sum"])
def test_preserved_mhc_is_nearly_preln(name: str) -> None:
    network, x = preserved(CASES[name], torch.float64), torch.randn(2, 3, D, dtype=torch.float64)
    for a, b in zip(inputs_of(network, x)[:-1], plain(network, x)[:-1], strict=True):
        # equal lanes are read with a sum of 1 + 2 sigmoid(-8) instead of 1
        assert (a - b).abs().max() <= 1e-3 * b.abs().max()
    out, expected = network(x), norm(plain(network, x)[-1])
    assert (out - expected).abs().max() <= 1e-3 * expected.abs().max()


CANNOT = [n for n, c in CASES.items() if c["name"] in ("attnres", "block_attnres")]
CANNOT += [n for n, c in CASES.items() if c.get("residual") is False]
CANNOT += ["mhc-zero", "mhc-head"]


@pytest.mark.parametrize("name", CANNOT)
def test_what_cannot_be_preln_says_so(name: str) -> None:
    with pytest.raises(UserError) as caught:
        preserved(CASES[name], torch.float32)
    assert "\n" not in str(caught.value)


def test_every_stream_is_either_preserved_or_refused() -> None:
    nearly = {n for n, c in CASES.items() if c["name"] in ("hc", "mhc")}
    assert nearly | set(SUMS) | set(EXACT) | set(CANNOT) == set(CASES)
