"""A sublayer compiles as one graph, and a deep model does not compile one variant per layer."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from itertools import islice
from typing import Any

import pytest
import torch
from torch._dynamo.eval_frame import _debug_get_cache_entry_list

from depth_memory.streams import STREAMS
from depth_memory.streams.base import CONTEXTS, MAX_VARIANTS, Port
from tests.streams.cases import CASES, D, Network, ldm, mapped, norm, randomised, tensors

# dynamo looks at the gradient of intermediate tensors, and torch warns of that
pytestmark = pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor:UserWarning")

# every kind of port and every branch inside one; the others differ in numbers alone
BRANCHES = (
    "preln", "hc", "hc-static", "hc-unmixed", "mhc", "mhc-columns", "denseformer-dilated",
    "attnres", "block_attnres-2", "ldm", "ldm-1", "ldm-alone", "ldm-block-input", "ldm-alpha",
    "ldm-bfloat16", "ldm_delta-alone", "ldm_outer-block",
)  # fmt: skip


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    with torch._dynamo.config.patch(recompile_limit=8, fail_on_recompile_limit_hit=True):
        yield
    torch._dynamo.reset()


@pytest.mark.parametrize("name", BRANCHES)
def test_a_compiled_sublayer_equals_the_plain_one(name: str) -> None:
    network = randomised(Network(CASES[name]))
    site, port = 3, network.ports[3]

    def sublayer(state: Any) -> Any:
        z, state = port.read(state, norm)
        return z, port.write(state, network.body(site, z))

    with torch.no_grad():
        states = network.states(torch.randn(2, 3, D, dtype=torch.float64))
        state = next(islice(states, 2 * site, None))
    results = []
    for function in (sublayer, torch.compile(sublayer, fullgraph=True, backend="aot_eager")):
        leaves = mapped(state, lambda x: x.clone().requires_grad_())
        outputs = tensors(function(leaves))
        loss = sum((y * (1 + 0.1 * i)).sin().sum() for i, y in enumerate(outputs))
        wanted = [*tensors(leaves), *port.parameters()]
        results.append((outputs, torch.autograd.grad(loss, wanted, allow_unused=True)))
    (plain, plain_grads), (compiled, compiled_grads) = results
    for a, b in zip(plain, compiled, strict=True):
        assert torch.equal(a, b)
    for a, b in zip(plain_grads, compiled_grads, strict=True):
        assert (a is None) == (b is None)
        if a is not None:
            # the same derivatives, with sums in another order
            atol = 64 * D * torch.finfo(torch.float64).eps * max(a.abs().max().item(), 1.0)
            torch.testing.assert_close(a, b, rtol=0, atol=atol)


def variants(network: Network) -> int:
    """The largest number of compiled variants of any method that compiling a port replaced."""
    parts = [part for port in network.ports for part in port.modules() if hasattr(part, "compiled")]
    methods = {getattr(type(part), name) for part in parts for name in part.compiled}
    return max(len(_debug_get_cache_entry_list(method.__code__)) for method in methods)


def run_compiled(config: dict, layers: int) -> tuple[Network, int]:
    """A compiled network run once in training and once in evaluation; the variants by then."""
    network = Network(config, sites=2 * layers, dtype=torch.float32)
    expected = network(x := torch.randn(3, D, requires_grad=True))
    for port in network.ports:
        port.compile(backend="eager")
    assert torch.equal(network(x), expected)
    with torch.no_grad():
        assert torch.equal(network(x.detach()), expected)
    return network, variants(network)


# every stream whose states are few, with numbers that keep them so, but `ldm_delta`, whose states
# are those of `ldm` without the covariance; the others grow with depth
BOUNDED = {
    "preln": CASES["preln"],
    "preln_adapter": CASES["preln_adapter"],
    "hc": CASES["hc"],
    "mhc": {"name": "mhc", "iterations": 2},
    "block_attnres": CASES["block_attnres-2"],
    "ldm": ldm(window=2),
    "ldm_outer": ldm("ldm_outer", window=1, sites="block"),
}


def test_the_maps_around_kernels_are_compiled_once_for_all_layers() -> None:
    counts = []
    for layers in (1, 3):
        torch._dynamo.reset()
        counts.append(run_compiled(ldm(window=1000, impl="triton"), layers)[1])
    assert 0 < counts[1] <= CONTEXTS
    assert counts[0] == counts[1]


@pytest.mark.parametrize("config", BOUNDED.values(), ids=BOUNDED.keys())
def test_the_variants_do_not_grow_with_depth(config: dict) -> None:
    counts = [run_compiled(config, layers)[1] for layers in (12, 24, 70)]
    network = Network(config)
    bound = max(port.variants for port in network.ports)
    assert 0 < counts[0] <= 2 * bound
    # networks of different depth may differ in a number, which is compiled as a variable then
    assert counts[1] <= CONTEXTS * bound
    assert counts[2] == counts[1]


GROWING = {
    "denseformer": CASES["denseformer"],
    "attnres": CASES["attnres"],
    "ldm": ldm(window=1000),
}


@pytest.mark.parametrize("config", GROWING.values(), ids=GROWING.keys())
@pytest.mark.parametrize("layers", [24, 70])
def test_a_port_whose_state_grows_stays_uncompiled(config: dict, layers: int) -> None:
    ports = Network(config, sites=2 * layers).ports
    assert min(port.variants for port in ports) > MAX_VARIANTS
    for port in ports:
        port.compile(backend="eager")
        assert not set(port.traced) & set(vars(port))


@pytest.mark.parametrize("name", ["denseformer", "attnres"])
def test_a_small_network_compiles_whatever_its_stream(name: str) -> None:
    network, count = run_compiled(CASES[name], 2)
    assert 0 < count <= 2 * max(port.variants for port in network.ports)


def test_a_port_says_how_many_variants_it_may_have() -> None:
    for config in CASES.values():
        assert all(port.variants >= 1 for port in Network(config).ports)
    assert Port.variants == 1


def test_every_stream_is_bounded_or_grows() -> None:
    tested = {config["name"] for config in [*BOUNDED.values(), *GROWING.values()]}
    assert tested | {"ldm_delta"} == set(STREAMS)


@pytest.mark.parametrize("before", [1, 1000])
def test_compiling_never_lowers_the_limit_of_the_process(before: int) -> None:
    port = Network({"name": "hc"}, sites=2).ports[0]
    with torch._dynamo.config.patch(recompile_limit=before):
        port.compile(backend="eager")
        assert torch._dynamo.config.recompile_limit == max(before, CONTEXTS * port.variants)


def test_a_copy_of_a_compiled_port_has_its_own_parameters() -> None:
    network = Network(CASES["hc"], sites=2)
    for port in network.ports:
        port.compile(backend="eager")
    other = randomised(copy.deepcopy(network), scale=1.0)
    x = torch.randn(3, D).double()
    with torch.no_grad():
        assert not torch.allclose(network(x), other(x))
