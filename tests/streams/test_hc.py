"""Hyper-Connections against the paper's equations (arXiv 2409.19606)."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from tests.streams.cases import CASES, SITES, D, Network, inputs_of, norm, randomised

HC = {name: config for name, config in CASES.items() if config["name"] == "hc"}
EPS = torch.finfo(torch.float64).eps

every_hc = pytest.mark.parametrize("config", HC.values(), ids=HC.keys())


def coefficients(port: torch.nn.Module, H: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """B [T, n], A_m [T, n] and A_r [T, n, n] of lanes H [T, n, D]."""
    config, p = port.config, dict(port.named_parameters())
    tokens, n = H.shape[:2]
    B = p["static_beta"].expand(tokens, n)
    A = p["static_alpha"].expand(tokens, n, -1)
    if config.dynamic:
        if config.norm == "layer":
            centred = H - H.mean(-1, keepdim=True)
            normed = centred / (centred.square().mean(-1, keepdim=True) + 1e-5).sqrt()
            normed = normed * p["norm.weight"] + p["norm.bias"]
        else:
            normed = H / (H.square().mean(-1, keepdim=True) + 1e-8).sqrt()
        B = B + p["beta_scale"] * torch.tanh(torch.einsum("tnd,d->tn", normed, p["beta_proj"][0]))
        A = A + p["alpha_scale"] * torch.tanh(torch.einsum("tnd,kd->tnk", normed, p["alpha_proj"]))
    A_r = A[..., 1:] if config.mix_residual else torch.eye(n).to(H).expand(tokens, n, n)
    return B, A[..., 0], A_r


def paper(network: Network, x: Tensor) -> tuple[list[Tensor], Tensor]:
    """The input of every sublayer before its norm, and the lanes at the end, for tokens [T, D]."""
    H = torch.stack([x] * network.stream.config.lanes, 1)
    inputs = []
    for site, port in enumerate(network.ports):
        B, A_m, A_r = coefficients(port.coefficients, H)
        inputs.append(torch.einsum("tn,tnd->td", A_m, H))
        y = network.body(site, norm(inputs[-1]))
        # A_r' H: lane j of the result is the sum over lanes i of A_r[i, j] H_i
        H = torch.einsum("tij,tid->tjd", A_r, H) + torch.einsum("tn,td->tnd", B, y)
    return inputs, H


@every_hc
def test_against_the_equations(config: dict) -> None:
    network = randomised(Network(config))
    x = torch.randn(4, D, dtype=torch.float64)
    inputs, H = paper(network, x)
    *seen, last = inputs_of(network, x)
    # sums of at most D terms, through every sublayer
    atol = 64 * D * SITES * EPS * H.abs().max().item()
    for a, b in zip(seen, inputs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)
    if config.get("readout") == "norm_sum":
        torch.testing.assert_close(last, H, rtol=0, atol=atol)
        torch.testing.assert_close(network(x), norm(H).sum(1), rtol=0, atol=64 * atol)
    else:
        torch.testing.assert_close(last, H.sum(1), rtol=0, atol=atol * H.shape[1])


@pytest.mark.parametrize("lanes", [1, 3, 4])
def test_the_start(lanes: int) -> None:
    network = Network({"name": "hc", "lanes": lanes, "scale_init": 0.02}, dtype=torch.float32)
    for site, port in enumerate(network.ports):
        own = port.coefficients
        alpha = own.static_alpha
        assert alpha.shape == (lanes, lanes + 1)
        for lane in range(lanes):
            assert alpha[lane, 0] == (lane == site % lanes)
        assert torch.equal(alpha[:, 1:], torch.eye(lanes))
        assert torch.equal(own.static_beta, torch.ones(lanes))
        assert not own.alpha_proj.any()
        assert not own.beta_proj.any()
        assert own.alpha_scale.item() == own.beta_scale.item() == pytest.approx(0.02)
    assert network.stream.output_init_scale == pytest.approx(lanes**-0.5)


def test_the_output_projection_keeps_its_start_if_asked() -> None:
    assert Network(CASES["hc-unmixed"]).stream.output_init_scale == 1.0


def test_numbers_of_parameters() -> None:
    def count(config: dict) -> int:
        return sum(p.numel() for p in Network(config).ports[0].parameters())

    n = 4
    assert count({"name": "hc"}) == n * (n + 1) + n + (n + 2) * D + 2 + 2 * D
    assert count({"name": "hc", "norm": "rms"}) == n * (n + 1) + n + (n + 2) * D + 2
    assert count({"name": "hc", "dynamic": False}) == n * (n + 1) + n
    assert count({"name": "hc", "dynamic": False, "mix_residual": False}) == 2 * n


def test_tanh_bounds_what_the_input_can_change() -> None:
    network = Network({"name": "hc"})
    with torch.no_grad():
        for port in network.ports:
            port.coefficients.alpha_proj.fill_(1e3)
            port.coefficients.beta_proj.fill_(1e3)
    *_, read, _ = network.states(torch.randn(5, D, dtype=torch.float64))
    for mixing in read.mix:
        assert ((mixing - torch.eye(4)).abs() <= 0.01 + EPS).all()
    for post in read.post:
        assert ((post - 1).abs() <= 0.01 + EPS).all()
