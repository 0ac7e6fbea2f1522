"""With frozen coefficients, gradients are the exact weights with which outputs are retrieved."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from depth_memory import streams
from tests.streams.cases import CASES, LDM, SITES, D, Inputs, Network, inputs_of, norm, randomised

EPS = torch.finfo(torch.float64).eps

every_case = pytest.mark.parametrize("config", CASES.values(), ids=CASES.keys())


def observe(network: Network, x: Tensor) -> tuple[list[Tensor], list[Tensor]]:
    """What every norm was given, and what was written: the embedding, then each output."""
    inputs, written = Inputs(), []

    def leaf(y: Tensor) -> Tensor:
        written.append(y.detach().clone().requires_grad_())
        return written[-1]

    with streams.frozen_coefficients():
        network(x, norm=inputs, each=leaf)
    # a stream may norm each of its lanes; their sum is what is read
    return [z.sum(-2) if z.dim() > x.dim() else z for z in inputs.seen], written


def weights(z: Tensor, written: list[Tensor]) -> list[Tensor]:
    grads = torch.autograd.grad(z.sum(), written, retain_graph=True, allow_unused=True)
    return [torch.zeros_like(v) if g is None else g for g, v in zip(grads, written, strict=True)]


@every_case
def test_an_input_is_the_weighted_sum_of_what_was_written(config: dict) -> None:
    network = randomised(Network(config))
    inputs, written = observe(network, torch.randn(2, 3, D, dtype=torch.float64))
    assert len(inputs) == len(written) == SITES + 1
    for site, z in enumerate(inputs):
        c = weights(z, written)
        assert not any(later.any() for later in c[site + 1 :])
        terms = torch.stack([a * v.detach() for a, v in zip(c, written, strict=True)])
        # each weight is itself a sum over paths; paths double at most with every sublayer
        atol = 2**SITES * EPS * terms.abs().sum(0).max().item()
        torch.testing.assert_close(terms.sum(0), z.detach(), rtol=0, atol=atol)


@every_case
def test_the_weights_are_the_same_for_all_channels_of_a_group(config: dict) -> None:
    groups = config.get("groups", 1)
    network = randomised(Network(config))
    inputs, written = observe(network, torch.randn(3, D, dtype=torch.float64))
    for z in inputs:
        for c in weights(z, written):
            grouped = c.unflatten(-1, (groups, -1))
            spread = grouped.amax(-1) - grouped.amin(-1)
            atol = 2**SITES * EPS * max(c.abs().max().item(), 1.0)
            assert spread.max() <= atol


@every_case
def test_freezing_changes_no_value(config: dict) -> None:
    network = randomised(Network(config))
    x = torch.randn(3, D, dtype=torch.float64)
    plain = inputs_of(network, x)
    with streams.frozen_coefficients():
        frozen = inputs_of(network, x)
    # kernels, which frozen coefficients do without, add in another order
    ulps = 64 * torch.finfo(torch.float64).eps if config.get("impl") == "triton" else 0.0
    for a, b in zip(plain, frozen, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=ulps * SITES * a.abs().max().item())


def test_coefficients_are_frozen_inside_the_context_alone() -> None:
    network = randomised(Network(CASES["hc"]))
    x = torch.randn(3, D, dtype=torch.float64)
    with streams.frozen_coefficients():
        frozen = network(x)
    assert not frozen.requires_grad
    with pytest.raises(RuntimeError, match="stop"), streams.frozen_coefficients():
        raise RuntimeError("stop")
    assert network(x).requires_grad


def test_groups_have_weights_of_their_own() -> None:
    network = randomised(Network(CASES["ldm"]))
    inputs, written = observe(network, torch.randn(D, dtype=torch.float64))
    c = weights(inputs[-1], written)[1].unflatten(-1, (LDM["groups"], -1))
    assert c[0, 0] != c[1, 0]


# dynamo looks at the gradient of intermediate tensors, and torch warns of that
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_a_compiled_port_is_frozen_too() -> None:
    network = randomised(Network(CASES["hc"]))
    x = torch.randn(3, D, dtype=torch.float64)
    inputs, written = observe(network, x)
    expected = weights(inputs[-1], written)
    for port in network.ports:
        port.compile(backend="eager")
    with torch.no_grad():
        network(x, norm=norm)
    inputs, written = observe(network, x)
    for a, b in zip(weights(inputs[-1], written), expected, strict=True):
        assert torch.equal(a, b)
