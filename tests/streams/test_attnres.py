"""Attention Residuals against the paper's equations (arXiv 2603.15031), full and in blocks."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor, nn

from tests.streams.cases import CASES, D, Network, inputs_of, norm, randomised

EPS = torch.finfo(torch.float64).eps


def attend(head: nn.Module, sources: list[Tensor]) -> Tensor:
    """`h = sum_i softmax_i(w' (g rms(v_i))) v_i` for sources [T, D]."""
    V = torch.stack(sources)
    keys = head.key_norm * V / (V.square().mean(-1, keepdim=True) + head.eps).sqrt()
    alpha = torch.softmax(torch.einsum("d,std->st", head.query, keys), 0)
    return torch.einsum("st,std->td", alpha, V)


def block_of(site: int, starts: list[int]) -> int:
    return max(block for block, start in enumerate(starts) if start <= site)


def sources_at(site: int, outputs: list[Tensor], x: Tensor, starts: list[int]) -> list[Tensor]:
    """The embedding, the sum of each block before this one, and the sum of this one so far."""
    ends = [*starts[1:], len(outputs)]
    found = [x]
    for start, end in zip(starts, ends, strict=True):
        inside = outputs[start : min(end, site)]
        if inside:
            found.append(torch.stack(inside).sum(0))
    return found


def paper(network: Network, x: Tensor, starts: list[int]) -> list[Tensor]:
    outputs: list[Tensor] = []
    inputs = []
    for site, port in enumerate(network.ports):
        sources = sources_at(site, outputs, x, starts) if site else [x]
        z = attend(port.attend, sources) if site else x
        inputs.append(z)
        outputs.append(network.body(site, norm(z)))
    last = attend(network.stream.head, sources_at(len(outputs), outputs, x, starts))
    return [*inputs, last]


@pytest.mark.parametrize(
    ("config", "sites", "starts"),
    [
        ({"name": "attnres"}, 5, [0, 1, 2, 3, 4]),
        ({"name": "attnres", "eps": 0.1}, 3, [0, 1, 2]),
        ({"name": "block_attnres", "blocks": 1}, 4, [0]),
        ({"name": "block_attnres", "blocks": 2}, 6, [0, 3]),
        ({"name": "block_attnres", "blocks": 4}, 10, [0, 2, 5, 7]),
        ({"name": "block_attnres", "blocks": 4, "boundary": "attention"}, 10, [0, 2, 4, 6]),
        ({"name": "block_attnres", "blocks": 2, "boundary": "attention"}, 6, [0, 2]),
        ({"name": "block_attnres", "blocks": 8}, 3, [0, 1, 2]),
        ({"name": "block_attnres", "blocks": 8, "boundary": "attention"}, 6, [0, 2, 4]),
    ],
    ids=str,
)
def test_against_the_equations(config: dict, sites: int, starts: list[int]) -> None:
    network = randomised(Network(config, sites=sites))
    x = torch.randn(4, D, dtype=torch.float64)
    expected = paper(network, x, starts)
    # sums of at most D terms and a softmax, through every sublayer
    atol = 64 * D * sites * EPS * max(z.abs().max().item() for z in expected)
    for a, b in zip(inputs_of(network, x), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize(("layers", "blocks"), [(12, 8), (24, 8), (27, 9), (35, 8), (2, 8)])
def test_blocks_start_where_the_rule_says(layers: int, blocks: int) -> None:
    sites = 2 * layers
    count = min(blocks, sites)
    network = Network({"name": "block_attnres", "blocks": blocks}, sites=sites)
    starts = [site for site, port in enumerate(network.ports) if port.starts_block]
    assert starts == [b * sites // count for b in range(count)]
    lengths = [b - a for a, b in zip(starts, [*starts[1:], sites], strict=True)]
    assert max(lengths) - min(lengths) <= 1
    *_, last = network.states(torch.randn(D, dtype=torch.float64))
    assert len(last.all) == count + 1


@pytest.mark.parametrize("layers", [3, 12, 35])
def test_attention_boundaries_are_even(layers: int) -> None:
    config = {"name": "block_attnres", "blocks": 5, "boundary": "attention"}
    network = Network(config, sites=2 * layers)
    starts = [site for site, port in enumerate(network.ports) if port.starts_block]
    assert starts[0] == 0
    assert all(start % 2 == 0 for start in starts)


def test_as_many_blocks_as_sublayers_is_full_attention() -> None:
    full = randomised(Network(CASES["attnres"]))
    block = Network({"name": "block_attnres", "blocks": 6})
    block.load_state_dict(full.state_dict())
    x = torch.randn(2, 3, D, dtype=torch.float64)
    assert torch.equal(full(x), block(x))


def test_the_start_is_a_mean() -> None:
    network = Network(CASES["attnres"])
    x, written = torch.randn(3, D, dtype=torch.float64), []
    network(x, each=lambda v: written.append(v) or v)
    inputs = inputs_of(network, x)
    assert torch.equal(inputs[0], x)
    for count, z in enumerate(inputs[1:], start=2):
        mean = torch.stack(written[:count]).mean(0)
        # softmax of equal logits and a sum of `count` terms, each at most as large as the largest
        atol = 4 * count * EPS * max(v.abs().max().item() for v in written)
        torch.testing.assert_close(z, mean, rtol=0, atol=atol)


def test_the_running_sum_is_without_the_embedding() -> None:
    network = randomised(Network({"name": "block_attnres", "blocks": 2}))
    x, written = torch.randn(3, D, dtype=torch.float64), []
    network(x, each=lambda v: written.append(v) or v)
    states = list(network.states(x))
    _, after_first, *_ = states[2:]
    (running,) = states[2].open
    assert torch.equal(running, written[1])
    assert torch.equal(after_first.done[0], x)


@pytest.mark.parametrize("name", ["attnres", "block_attnres-2"])
def test_numbers_of_parameters(name: str) -> None:
    network = Network(CASES[name])
    counts = [sum(p.numel() for p in port.parameters()) for port in network.ports]
    # the first sublayer has one source, and nothing to choose
    assert counts == [0] + [2 * D] * 5
    assert sum(p.numel() for p in network.stream.parameters()) == 2 * D
    heads = [network.stream.head, *(port.attend for port in network.ports[1:])]
    for head in heads:
        assert not head.query.any()
        assert torch.equal(head.key_norm, torch.ones_like(head.key_norm))
