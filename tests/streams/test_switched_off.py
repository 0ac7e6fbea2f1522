"""Switching off a read leaves an ordinary residual, and everything else as it was."""

from __future__ import annotations

import pytest
import torch

from depth_memory import streams
from depth_memory.errors import UserError
from tests.streams.cases import (
    CASES,
    PEERS,
    SITES,
    D,
    Network,
    identity,
    inputs_of,
    norm,
    randomised,
)

CHOSEN = {
    name: CASES[name]
    for name in (*PEERS, "ldm", "ldm-alone", "ldm-block", "ldm-block-bare", "ldm-bare", "ldm_delta")
}
"""Those that read in ways of their own."""
every_case = pytest.mark.parametrize("config", CHOSEN.values(), ids=CHOSEN.keys())


def network_of(config: dict) -> Network:
    return randomised(Network(config))


def readers(network: Network) -> list[streams.StreamModule]:
    return [*network.ports, network.stream]


@every_case
def test_a_read_that_is_switched_off_is_another_one_and_the_reads_before_it_stay(
    config: dict,
) -> None:
    network, x = network_of(config), torch.randn(3, D, dtype=torch.float64)
    read = inputs_of(network, x)
    for site, reader in enumerate(readers(network)):
        if not reader.fallback.exists:
            with pytest.raises(UserError, match=r"^readers: got '\w+'; allowed: another; \w"):
                streams.switched_off(reader).__enter__()
            continue
        with streams.switched_off(reader):
            alone = inputs_of(network, x)
        assert all(torch.equal(a, b) for a, b in zip(read[:site], alone[:site], strict=True))
        if config.get("name") != "preln_adapter":  # whose map comes after the norm
            assert not torch.allclose(read[site], alone[site])
    assert all(torch.equal(a, b) for a, b in zip(read, inputs_of(network, x), strict=True))


@every_case
def test_nothing_is_switched_off_without_readers(config: dict) -> None:
    network, x = network_of(config), torch.randn(3, D, dtype=torch.float64)
    with streams.switched_off():
        inside = network(x)
    assert torch.equal(inside, network(x))


def test_ordinary_residuals_have_nothing_to_switch_off() -> None:
    names = {"preln": 0, "preln_adapter": 6, "hc": 6, "mhc": 6, "denseformer": 3, "attnres": 6,
             "block_attnres": 6, "ldm": 7, "ldm_delta": 7, "ldm_outer": 7}  # fmt: skip
    assert set(names) == set(streams.STREAMS)
    for name, count in names.items():
        network = Network({"name": name})
        assert sum(reader.fallback.exists for reader in readers(network)) == count, name


@pytest.mark.parametrize("rule", ["ldm", "ldm_delta", "ldm_outer"])
def test_without_its_memory_a_read_is_one_of_gain_0(rule: str) -> None:
    network, x = network_of(CASES[rule]), torch.randn(3, D, dtype=torch.float64)
    for reader in readers(network):
        with streams.switched_off(reader):
            found = network(x)
        map_ = getattr(reader, "reader", None) or network.stream.final_reader
        gain = map_.gain.detach().clone()
        with torch.no_grad():
            map_.gain.zero_()
            assert torch.equal(found, network(x))
            map_.gain.copy_(gain)


def test_with_every_read_off_ldm_and_attnres_and_the_adapter_are_an_ordinary_residual() -> None:
    x = torch.randn(3, D, dtype=torch.float64)
    plain = Network({"name": "preln"})
    expected = plain(x)
    for name in ("ldm", "ldm_outer", "attnres", "preln_adapter"):
        network = network_of(CASES[name])
        network.bodies.copy_(plain.bodies)
        with streams.switched_off(*(r for r in readers(network) if r.fallback.exists)):
            # the eps of the norm is all that tells a mean from a sum: 1e-6 of squares near 1 / 49
            torch.testing.assert_close(network(x), expected, rtol=0, atol=1e-3)


def test_a_switched_off_read_of_lanes_is_their_mean() -> None:
    for name in ("hc", "mhc"):
        network = network_of(CASES[name])
        port, lanes = network.ports[2], torch.randn(3, 4, D, dtype=torch.float64)
        state = type(network.stream.start(lanes[:, 0]))(lanes, (), ())
        with streams.switched_off(port):
            found, after = port.read(state, identity)
        _, learned = port.read(state, identity)
        torch.testing.assert_close(found, lanes.mean(-2), rtol=1e-14, atol=1e-14)
        assert torch.equal(after.mix[0], learned.mix[0])


def test_a_block_of_denseformer_falls_back_on_the_last_output() -> None:
    network = network_of(CASES["denseformer"])
    x = torch.randn(3, D, dtype=torch.float64)
    state = network.stream.start(x)
    for site in range(2):
        read, state = network.ports[site].read(state, norm)
        state = network.ports[site].write(state, network.body(site, read))
    with streams.switched_off(network.ports[2]):
        assert torch.equal(network.ports[2].read(state, identity)[0], state.outputs[-1])
    assert torch.equal(network.ports[2].read(state, identity)[0], state.h)


def test_contexts_add_up_and_end() -> None:
    network, x = network_of(CASES["ldm"]), torch.randn(3, D, dtype=torch.float64)
    first, second = network.ports[1], network.ports[4]
    with streams.switched_off(first):
        once = network(x)
        with streams.switched_off(second):
            nested = network(x)
        assert torch.equal(network(x), once)
    with streams.switched_off(first, second):
        assert torch.equal(network(x), nested)
    assert not torch.equal(network(x), once)


# dynamo looks at the gradient of intermediate tensors, and torch warns of that
@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")
def test_what_is_compiled_is_switched_off_too() -> None:
    network, x = network_of(CASES["ldm"]), torch.randn(3, D, dtype=torch.float64)
    port = network.ports[3]
    with streams.switched_off(port):
        expected = network(x)
    torch._dynamo.reset()
    port.compile(backend="eager")
    before = network(x)
    with streams.switched_off(port):
        assert torch.equal(network(x), expected)
    assert torch.equal(network(x), before)
    torch._dynamo.reset()


def test_kernels_give_way() -> None:
    network = randomised(Network(CASES["ldm-kernels"], dtype=torch.float32))
    x = torch.randn(3, D)
    assert type(network.stream.start(x)).__name__ == "Exchange"
    with streams.switched_off():
        assert type(network.stream.start(x)).__name__ == "Streams"


assert SITES == 6  # which the counts above rest on
