"""However its parameters move, an LDM stream forgets no more than float32 can bear."""

from __future__ import annotations

import math
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn

from depth_memory.streams.ldm_maps import Forgetting
from tests.streams.cases import D, Network, inputs_of, ldm


def forgettings(network: Network) -> list[Forgetting]:
    return [module for module in network.modules() if isinstance(module, Forgetting)]


def product(network: Network) -> Tensor:
    """The product of all forgetting factors, per group, in float64."""
    factors = [module().double() for module in forgettings(network)]
    assert all((f > 0).all() and (f <= 1).all() for f in factors)
    return torch.stack(factors).prod(0)


@pytest.mark.parametrize("options", [{}, {"embedding_write": False}, {"sites": "block"}], ids=str)
@pytest.mark.parametrize("retention", [1e-3, 0.5, 1e-6])
@pytest.mark.parametrize("sites", [2, 48, 160])
def test_retention_is_bounded(sites: int, retention: float, options: dict) -> None:
    config = ldm(min_retention=retention, **options)
    network = Network(config, sites=sites, dtype=torch.float32)
    writes = len(forgettings(network))
    assert writes == network.stream.writes
    # each factor is an exponential of a small number, correct to two ulps
    rounding = 1 - 2 * writes * torch.finfo(torch.float32).eps
    for logits in (
        torch.full((writes, 2), 1e4),
        torch.full((writes, 2), -1e4),
        1e4 * torch.randn(writes, 2),
    ):
        with torch.no_grad():
            for module, logit in zip(forgettings(network), logits, strict=True):
                module.logit.copy_(logit)
        kept = product(network)
        assert (kept >= retention * rounding).all()
        if (logits > 0).all():
            assert kept.tolist() == pytest.approx([retention] * 2, rel=1 - rounding)
        if (logits < 0).all():
            assert kept.tolist() == [1.0, 1.0]


@pytest.mark.parametrize("start", [0.5, 0.9, 0.999])
def test_retention_starts_where_it_is_told(start: float) -> None:
    network = Network(ldm(retention_init=start), sites=48, dtype=torch.float32)
    rounding = 4 * 49 * torch.finfo(torch.float32).eps
    assert product(network).tolist() == pytest.approx([start] * 2, rel=rounding)


def stubborn(rule: str, sites: int, **options: object) -> Network:
    """A stream that forgets as much as it may, and writes every value at one and the same key."""
    network = Network(ldm(rule, **options), sites=sites, dtype=torch.float32)
    key = nn.functional.normalize(torch.randn(3), dim=0)
    with torch.no_grad():
        for module in network.modules():
            if isinstance(module, Forgetting):
                module.logit.fill_(1e4)
            if hasattr(module, "key"):
                module.key.weight.zero_()
                module.key.bias.copy_(key)
    return network


def covariances(network: Network, x: Tensor, scale: float = 1.0) -> Iterator[Tensor]:
    state = network.stream.start(scale * x)
    yield from state.memory.covariance
    for site, port in enumerate(network.ports):
        z, state = port.read(state, nn.functional.normalize)
        state = port.write(state, scale * network.body(site, z))
        yield from state.memory.covariance
    assert all(value.isfinite().all() for value in (*state.memory.base, *state.memory.values))


@pytest.mark.parametrize(
    ("rule", "window"),
    [("ldm", 1), ("ldm", 4), ("ldm", 1000), ("ldm_delta", 4), ("ldm_outer", 1)],
)
def test_one_key_at_the_lowest_forgetting(rule: str, window: int) -> None:
    network = stubborn(rule, 160, window=window)
    exact = Network(ldm(rule, window=1), sites=160)
    exact.load_state_dict(network.state_dict())
    x = torch.randn(3, D)
    out, expected = inputs_of(network, x), inputs_of(exact, x.double())
    # P grows to 1 / retention where no key excites it; each write loses an ulp of that
    relative = 161 * torch.finfo(torch.float32).eps / network.stream.config.min_retention
    for a, b in zip(out, expected, strict=True):
        assert a.isfinite().all()
        assert (a - b).norm() <= relative * b.norm()


@pytest.mark.parametrize("scale", [1.0, 1e5])
def test_the_covariance_stays_symmetric_and_positive(scale: float) -> None:
    network = stubborn("ldm", 160)
    x = torch.randn(3, D)
    for autocast in (False, True):
        with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            found = list(covariances(network, x, scale))
        assert len(found) == 161
        for P in found:
            assert P.dtype == torch.float32
            assert torch.equal(P, P.mT)
            assert (torch.linalg.eigvalsh(P.double()) > 0).all()
            # where nothing was written P is alpha over the retention, and each write rounds it
            rounding = 1 + 4 * 161 * torch.finfo(torch.float32).eps
            assert P.abs().max() <= rounding / network.stream.config.min_retention


def test_gradients_stay_finite_at_the_lowest_forgetting() -> None:
    network = stubborn("ldm", 160)
    network(torch.randn(2, D)).square().sum().backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad.isfinite().all(), name


def test_a_learned_forgetting_moves_between_its_bounds() -> None:
    network = Network(ldm(), sites=2, dtype=torch.float32)
    module = forgettings(network)[0]
    floor = math.exp(math.log(1e-3) / 3)
    with torch.no_grad():
        module.logit.zero_()
    assert module().tolist() == pytest.approx([math.sqrt(floor)] * 2)
