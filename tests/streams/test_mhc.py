"""mHC against the paper's equations (arXiv 2512.24880, eq. 7-9)."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from tests.streams.cases import CASES, SITES, D, Network, inputs_of, norm, randomised

MHC = {name: config for name, config in CASES.items() if config["name"] == "mhc"}
EPS = torch.finfo(torch.float64).eps

every_mhc = pytest.mark.parametrize("config", MHC.values(), ids=MHC.keys())


def logits(controller: torch.nn.Module, X: Tensor) -> Tensor:
    """`x' phi` with x' the root-mean-square norm of all lanes X [T, n, D] together."""
    flat = X.reshape(X.shape[0], -1)
    rms = flat.square().mean(-1).sqrt()
    return torch.einsum("tc,cm->tm", flat / rms[:, None], controller.phi)


def doubly_stochastic(H: Tensor, iterations: int, last: str) -> Tensor:
    """`exp(H)` with its columns, then its rows normalised; the other way round if asked."""
    M = H.exp()
    axes = (1, 2) if last == "rows" else (2, 1)
    for _ in range(iterations):
        for axis in axes:
            M = M / M.sum(axis, keepdim=True)
    return M


def coefficients(port: torch.nn.Module, X: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    c, config, n = port.controller, port.config, X.shape[1]
    products = logits(c, X).split([n, n, n * n], -1)
    biases = c.bias.split([n, n, n * n])
    pre, post, res = (a * x + b for a, x, b in zip(c.alpha, products, biases, strict=True))
    mixing = doubly_stochastic(res.reshape(-1, n, n), config.iterations, config.exact_sums)
    return torch.sigmoid(pre), 2 * torch.sigmoid(post), mixing


def paper(network: Network, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The input of every sublayer before its norm, and the lanes at the end, for tokens [T, D]."""
    X = torch.stack([x] * network.stream.config.lanes, 1)
    inputs = []
    for site, port in enumerate(network.ports):
        pre, post, res = coefficients(port, X)
        inputs.append(torch.einsum("tn,tnd->td", pre, X))
        y = network.body(site, norm(inputs[-1]))
        X = torch.einsum("toi,tid->tod", res, X) + torch.einsum("tn,td->tnd", post, y)
    return inputs, X


def readout(network: Network, X: Tensor) -> Tensor:
    kind = network.stream.config.readout
    if kind == "head":
        c = network.stream.controller
        weights = torch.sigmoid(c.alpha * logits(c, X) + c.bias)
        return torch.einsum("tn,tnd->td", weights, X)
    return X.sum(1) if kind == "sum" else X.sum(1) / X.shape[1]


@every_mhc
def test_against_the_equations(config: dict) -> None:
    network = randomised(Network(config), scale=0.5)
    x = torch.randn(4, D, dtype=torch.float64)
    inputs, X = paper(network, x)
    *seen, last = inputs_of(network, x)
    # sums over all lanes and 2 iterations of normalisation, through every sublayer
    iterations = network.stream.config.iterations
    atol = 64 * (4 * D + 8 * iterations) * SITES * EPS * X.abs().max().item()
    for a, b in zip([*seen, last], [*inputs, readout(network, X)], strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


def mixings(network: Network, x: Tensor) -> Tensor:
    """The mixing matrices of all sublayers for equal lanes, [sites, T, n, n]."""
    lanes = network.stream.start(x)
    return torch.stack([port.read(lanes, norm)[1].mix[0] for port in network.ports])


@pytest.mark.parametrize(("exact_sums", "axis"), [("rows", -1), ("columns", -2)])
def test_which_sums_are_exact(exact_sums: str, axis: int) -> None:
    config = {"name": "mhc", "exact_sums": exact_sums}
    first = randomised(Network(config), scale=0.5)
    x, off = torch.randn(5, D, dtype=torch.float64), []
    for iterations in (1, 2, 20):
        network = Network({**config, "iterations": iterations})
        network.load_state_dict(first.state_dict())
        found = mixings(network, x)
        assert (found > 0).all()
        exact = found.sum(axis)
        # the exponential of a logarithm of up to 32, each off by an ulp of itself
        torch.testing.assert_close(exact, torch.ones_like(exact), rtol=0, atol=64 * EPS)
        off.append((found.sum(-3 - axis) - 1).abs().max().item())
    # the other sums only come nearer with every iteration
    assert off[0] > off[1] > off[2] > 64 * EPS


def test_both_sums_are_nearly_exact_at_the_start() -> None:
    found = mixings(Network({"name": "mhc"}), torch.randn(5, D, dtype=torch.float64))
    for axis in (-1, -2):
        sums = found.sum(axis)
        torch.testing.assert_close(sums, torch.ones_like(sums), rtol=0, atol=64 * EPS)


def test_rows_are_the_lanes_that_are_written() -> None:
    """With rows exact, a stream whose lanes are all equal stays as large as it is."""
    network = randomised(Network({"name": "mhc", "iterations": 1}), scale=0.5)
    port = network.ports[0]
    state = network.stream.start(torch.randn(4, D, dtype=torch.float64))
    _, read = port.read(state, norm)
    written = port.write(read, torch.zeros(4, D, dtype=torch.float64))
    torch.testing.assert_close(written.lanes, state.lanes, rtol=0, atol=256 * EPS)


@pytest.mark.parametrize("lanes", [2, 4])
def test_the_gap_start(lanes: int) -> None:
    network = Network({"name": "mhc", "lanes": lanes}, dtype=torch.float32)
    for site, port in enumerate(network.ports):
        c = port.controller
        assert not c.phi.any()
        assert c.alpha.tolist() == pytest.approx([0.01] * 3)
        pre, post, res = c.bias.split([lanes, lanes, lanes * lanes])
        assert pre.tolist() == [8.0 if lane == site % lanes else -8.0 for lane in range(lanes)]
        assert not post.any()
        expected = [[0.0 if i == j else -8.0 for j in range(lanes)] for i in range(lanes)]
        assert res.view(lanes, lanes).tolist() == expected


def test_the_gap_start_mixes_very_little() -> None:
    network = Network({"name": "mhc"})
    _, read, *_ = network.states(torch.randn(3, D, dtype=torch.float64))
    (post,), (mixing,) = read.post, read.mix
    assert torch.equal(post, torch.ones_like(post))
    diagonal = 1 / (1 + 3 * math.exp(-8))
    assert diagonal == pytest.approx(0.998995, abs=1e-6)
    off = (1 - diagonal) / 3
    assert off == pytest.approx(0.000335, abs=1e-6)
    expected = off + (diagonal - off) * torch.eye(4, dtype=torch.float64)
    torch.testing.assert_close(mixing, expected.expand_as(mixing), rtol=0, atol=64 * EPS)


def test_the_zero_start_mixes_evenly() -> None:
    network = Network({"name": "mhc", "init": "zero", "alpha_init": 0.0})
    _, read, *_ = network.states(torch.randn(3, D, dtype=torch.float64))
    (post,), (mixing,) = read.post, read.mix
    torch.testing.assert_close(post, torch.ones_like(post), rtol=0, atol=EPS)
    torch.testing.assert_close(mixing, torch.full_like(mixing, 0.25), rtol=0, atol=8 * EPS)
    phi = torch.cat([port.controller.phi.flatten() for port in network.ports])
    # the spread of m normal draws is known to one part in sqrt(2 m), here within 5 of these
    assert phi.std().item() == pytest.approx(0.02, rel=5 / math.sqrt(2 * phi.numel()))
    assert not any(port.controller.bias.any() for port in network.ports)


def test_numbers_of_parameters() -> None:
    n = 4
    network = Network({"name": "mhc", "readout": "head"})
    outputs = 2 * n + n * n
    for port in network.ports:
        assert sum(p.numel() for p in port.parameters()) == n * D * outputs + outputs + 3
    assert sum(p.numel() for p in network.stream.parameters()) == n * D * n + n + 1
    assert not list(Network({"name": "mhc"}).stream.parameters())


def test_the_output_projection_scale() -> None:
    assert Network(CASES["mhc"]).stream.output_init_scale == 1.0
    assert Network(CASES["mhc-zero"]).stream.output_init_scale == pytest.approx(3**-0.5)
