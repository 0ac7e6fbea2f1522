"""DenseFormer against the paper's definition (arXiv 2402.02622)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.streams.cases import D, Network, inputs_of, norm, randomised

BLOCKS = 7
EPS = torch.finfo(torch.float64).eps

every_stride = pytest.mark.parametrize(
    ("dilation", "period"), [(1, 1), (2, 1), (1, 2), (3, 2), (4, 5), (9, 1), (1, 9)]
)


def build(dilation: int, period: int) -> Network:
    config = {"name": "denseformer", "dilation": dilation, "period": period}
    return Network(config, sites=2 * BLOCKS)


def averaged(block: int, period: int) -> bool:
    """Blocks are counted from 1 for the period: every p-th one ends with an average."""
    return block % period == period - 1


def indices(block: int, dilation: int) -> list[int]:
    """Which X_j enter Y_block: j <= block + 1 and j = block + 1 modulo the dilation."""
    return [j for j in range(block + 2) if (block + 1 - j) % dilation == 0]


def paper(network: Network, x: Tensor, dilation: int, period: int) -> list[Tensor]:
    """What every norm is given: a block is a residual stream that starts from the last average."""
    X, Y, inputs = [x], x, []
    for block in range(BLOCKS):
        h = Y
        for site in (2 * block, 2 * block + 1):
            inputs.append(h)
            h = h + network.body(site, norm(h))
        X.append(h)
        Y = h
        if averaged(block, period):
            chosen = indices(block, dilation)
            weights = network.ports[2 * block + 1].average.weights
            assert len(chosen) == len(weights)
            Y = torch.einsum("j,jtd->td", weights, torch.stack([X[j] for j in chosen]))
    return [*inputs, Y]


@every_stride
def test_against_the_definition(dilation: int, period: int) -> None:
    network = randomised(build(dilation, period))
    x = torch.randn(4, D, dtype=torch.float64)
    expected = paper(network, x, dilation, period)
    # sums of at most D terms, through every sublayer
    atol = 64 * D * 2 * BLOCKS * EPS * max(z.abs().max().item() for z in expected)
    for a, b in zip(inputs_of(network, x), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


@every_stride
def test_numbers_of_weights_and_their_start(dilation: int, period: int) -> None:
    network = build(dilation, period)
    for site, port in enumerate(network.ports):
        block = site // 2
        weights = [p.tolist() for p in port.parameters()]
        if site % 2 == 0 or not averaged(block, period):
            assert weights == []
        else:
            count = (block + 1 + dilation) // dilation
            assert weights == [[0.0] * (count - 1) + [1.0]]


def test_the_start_is_an_ordinary_residual() -> None:
    x = torch.randn(4, D, dtype=torch.float64)
    network = build(2, 1)
    plain = Network({"name": "preln"}, sites=2 * BLOCKS)
    plain.bodies.copy_(network.bodies)
    assert torch.equal(network(x), plain(x))
