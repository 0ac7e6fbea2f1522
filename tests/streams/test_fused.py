"""LDM by kernels equals LDM by reference operations, in float64, output and every gradient."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call

from depth_memory import streams
from depth_memory.errors import UserError
from depth_memory.ops import _impl
from depth_memory.streams import ldm_step
from depth_memory.streams.ldm_fused import Exchange
from tests.streams.cases import ldm, weighted
from tests.streams.fused import (
    Layers,
    LlamaRMSNorm,
    assert_fused,
    assert_same,
    pair,
    results,
    tokens,
)

SIZES = {"key_dim": 3, "groups": 2, "read_rank": 5, "write_rank": 3}
EVERY = [
    (rule, sites) for rule in ("ldm", "ldm_delta", "ldm_outer") for sites in ("sublayer", "block")
]


def small(rule: str = "ldm", **options: Any) -> dict[str, Any]:
    return ldm(rule, **{**SIZES, **options})


# 5 writes of sublayers, 3 of blocks: from one write to a window, to more than there are
WINDOWS = {
    f"{rule}-{sites}-{window}": (small(rule, sites=sites, window=window), 6, (1,))
    for i, (rule, sites) in enumerate(EVERY)
    for window in ((1, 9), (2, 3))[i % 2]
}
# configuration, width, shape of the tokens
OPTIONS: dict[str, tuple[dict[str, Any], int, tuple[int, ...]]] = {
    "exact window": (small(sites="sublayer", window=5), 6, (1,)),
    "exact window of blocks": (small("ldm_outer", sites="block", window=3), 6, (1,)),
    "odd width": (small(groups=1, window=2), 7, (3,)),
    "three groups": (small("ldm_delta", groups=3, window=2, read_rank=1), 15, (1,)),
    "five groups": (small("ldm_outer", groups=5, window=2, key_dim=1), 35, (1,)),
    "a key of 1": (small(key_dim=1, window=2), 10, (1,)),
    "a key of 8": (small(key_dim=8, window=2, groups=1, sites="block"), 5, (1,)),
    "keys of each group": (small(shared_keys=False, groups=3, window=2), 9, (1,)),
    "keys of each group, delta": (small("ldm_delta", shared_keys=False, window=2), 6, (1,)),
    "keys of each group, outer": (small("ldm_outer", shared_keys=False, window=1), 6, (1,)),
    "no gate": (small(gate=False, window=2), 6, (1,)),
    "equal importance": (small(importance="one", sites="block"), 6, (1,)),
    "softplus": (small(importance="softplus", window=2), 6, (1,)),
    "unit queries": (small(query_norm="unit", window=2), 6, (1,)),
    "raw keys": (small(key_norm="none", query_norm="rms", window=2), 6, (1,)),
    "learned alpha": (small(alpha_learned=True, shared_keys=False, window=2), 6, (1,)),
    "nothing forgotten": (small(forgetting="one", window=2), 6, (1,)),
    "nothing forgotten, delta": (small("ldm_delta", forgetting="one", window=2), 6, (1,)),
    "many writes to a window": (small(window=3), 6, (2,)),
    "no batch axis": (small(window=2), 6, ()),
    "three axes": (small(window=2, sites="block"), 6, (1, 3, 1)),
    "more rows than a tile": (small(window=3, sites="block", key_dim=1), 6, (17,)),
}
CASES = {**WINDOWS, **OPTIONS}


@pytest.mark.parametrize(("config", "dim", "shape"), CASES.values(), ids=CASES.keys())
def test_a_pass_equals_the_reference(config: dict, dim: int, shape: tuple[int, ...]) -> None:
    reference, kernels = pair(config, dim=dim)
    x = tokens(*shape, dim=dim)
    assert_fused(kernels, x)
    right = results(reference, x)
    assert all(grad is not None and grad.isfinite().all() for grad in right.values())
    assert_same(results(kernels, x), right)


@pytest.mark.parametrize(("rule", "sites"), [EVERY[3], EVERY[4]])
def test_gradients_pass_finite_differences(rule: str, sites: str) -> None:
    """Over all parameters at once, of a pass of 4 sublayers that folds."""
    network = Layers(small(rule, sites=sites, window=2, impl="triton"))
    names, values = zip(*network.named_parameters(), strict=True)
    sizes = [2 * 6, *(value.numel() for value in values)]

    def run(flat: Tensor) -> Tensor:
        x, *parts = flat.split(sizes)
        shaped = (part.view_as(value) for part, value in zip(parts, values, strict=True))
        return functional_call(network, dict(zip(names, shaped, strict=True)), (x.view(2, 6),))

    flat = torch.cat([tokens(2).flatten(), *(value.detach().flatten() for value in values)])
    assert torch.autograd.gradcheck(run, [flat.requires_grad_()], fast_mode=True)


# each rule and each dtype once; the interpreter rounds to bfloat16 towards 0
@pytest.mark.parametrize(
    ("dtype", "rule", "sites"),
    [
        (torch.float32, "ldm", "sublayer"),
        (torch.float16, "ldm_delta", "block"),
        (torch.bfloat16, "ldm_outer", "block"),
    ],
    ids=str,
)
def test_no_worse_than_the_reference_in(dtype: torch.dtype, rule: str, sites: str) -> None:
    """At most twice the reference's distance from float64, of the output and of all gradients.

    A gradient alone has a few entries: which of two roundings hits it harder is chance.
    """
    config = small(rule, sites=sites, window=2)
    x = tokens(4, dtype=dtype)
    reference, kernels = (network.to(dtype) for network in pair(config))
    exact = results(Layers({**config, "impl": "reference"}).to(dtype).double(), x.double())
    right, found = results(reference, x), results(kernels, x)
    assert {n: g.dtype for n, g in found.items()} == {n: g.dtype for n, g in right.items()}
    for part in (["value"], [name for name in exact if name != "value"]):
        truth, by_reference, by_kernels = (
            torch.cat([of[name].double().flatten() for name in part])
            for of in (exact, right, found)
        )
        allowed = (by_reference - truth).norm() + torch.finfo(dtype).eps * truth.norm()
        assert (by_kernels - truth).norm() <= 2 * allowed


@pytest.mark.parametrize(("rule", "sites"), EVERY[:2])
def test_without_gradients_the_output_is_the_same(
    rule: str, sites: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ldm_step, "TOKENS", 0)  # as for many tokens
    network = Layers(small(rule, sites=sites, window=2, impl="triton"))
    x = tokens(3)
    recorded = network(x.clone().requires_grad_()).detach()
    for context in (torch.no_grad, torch.inference_mode):
        with context():
            assert torch.equal(network(x), recorded)


@pytest.mark.parametrize("shape", [(0,), (2, 0)], ids=str)
@pytest.mark.parametrize("sites", ["sublayer", "block"])
def test_no_tokens(sites: str, shape: tuple[int, ...]) -> None:
    network = Layers(small(sites=sites, window=2, impl="triton"))
    found = results(network, tokens(*shape))
    assert found["value"].shape == (*shape, 6)
    assert not any(grad.any() for name, grad in found.items() if name != "value")


@pytest.mark.parametrize("state_dtype", ["float32", "bfloat16"])
def test_the_folded_memory_is_kept_as_asked(state_dtype: str) -> None:
    network = Layers(small(window=2, impl="triton", state_dtype=state_dtype), dtype=torch.float32)
    seen = []

    def each(site: int, z: Tensor, y: Tensor, state: Exchange) -> Tensor:
        seen.append(state.tape.current.base)
        return y

    network(tokens(2, dtype=torch.float32), each)
    assert {base.dtype for base in seen if base is not None} == {getattr(torch, state_dtype)}


def test_autocast() -> None:
    """Bodies in bfloat16, the stream in float32: as the reference, within their rounding."""
    reference, kernels = pair(small(window=2), dtype=torch.float32)
    x = tokens(4, dtype=torch.float32)
    exact = results(Layers({**small(window=2), "impl": "reference"}), x.double())
    with torch.autocast("cpu", torch.bfloat16):
        right, found = results(reference, x), results(kernels, x)
    for name, value in exact.items():
        assert found[name].dtype == torch.float32, name
        # a rounding of every body's inputs, weights and output
        allowed = 8 * torch.finfo(torch.bfloat16).eps * value.norm()
        assert (right[name] - found[name]).norm() <= allowed, name


UNSUITED = {
    "latent_norm": "none",
    "latent_input": "input",
    "embedding_write": False,
    "final_read": False,
    "residual": False,
}


@pytest.mark.parametrize("field", UNSUITED)
def test_kernels_that_cannot_carry_a_configuration_are_refused(field: str, monkeypatch) -> None:
    config = small(**{field: UNSUITED[field]})
    with pytest.raises(
        UserError, match=rf"^stream\.impl: got 'triton'; allowed: .*\({field} is not"
    ):
        streams.build({**config, "impl": "triton"}, 6, 4)
    # nor does `auto` take them, where it takes kernels
    monkeypatch.setattr(_impl, "_reason", lambda op, device: None)
    assert not isinstance(Layers(config).stream.start(tokens(2)), Exchange)
    assert isinstance(Layers(small()).stream.start(tokens(2)), Exchange)


def test_kernels_that_cannot_run_here_are_refused(monkeypatch) -> None:
    network = Layers(small(impl="triton"))
    monkeypatch.delenv("TRITON_INTERPRET")
    with pytest.raises(UserError) as caught:
        network(tokens(2))
    said = "stream.impl: got 'triton'; allowed: auto, reference (Triton has no cpu backend)"
    assert str(caught.value) == said


class Gemma(LlamaRMSNorm):
    """Another norm: its weight is an offset from 1."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + x * torch.rsqrt(
            x.pow(2).mean(-1, keepdim=True) + self.variance_epsilon
        )


class GemmaRMSNorm(Gemma):
    """The same by a name that ends like those that kernels know."""


NORMS: dict[str, Any] = {
    "torch": lambda dim: nn.RMSNorm(dim, eps=1e-6),
    "torch without a weight": lambda dim: nn.RMSNorm(dim, eps=1e-6, elementwise_affine=False),
    "torch without an epsilon": nn.RMSNorm,
    "layer norm": nn.LayerNorm,
    "another weight": GemmaRMSNorm,
    "another class": Gemma,
}


@pytest.mark.parametrize("norm", NORMS.values(), ids=NORMS.keys())
def test_any_norm_is_computed_as_it_stands(norm: Any) -> None:
    reference, kernels = pair(small(sites="block", window=2), norm=norm)
    x = tokens(1)
    assert_same(results(kernels, x), results(reference, x))


HOOKS = {
    "forward": lambda norm: norm.register_forward_hook(lambda m, args, out: 2 * out),
    "before": lambda norm: norm.register_forward_pre_hook(lambda m, args: (args[0] + 1,)),
    "backward": lambda norm: norm.register_full_backward_hook(lambda m, i, o: (3 * i[0],)),
    "replaced": lambda norm: setattr(norm, "forward", lambda x: 2 * x),
}


@pytest.mark.parametrize("hook", HOOKS.values(), ids=HOOKS.keys())
def test_hooks_of_a_norm_are_called(hook: Any) -> None:
    reference, kernels = pair(small(sites="block", window=2))
    for network in (reference, kernels):
        for norm in network.norms:
            hook(norm)
    x = tokens(2)
    assert_same(results(kernels, x), results(reference, x))


def test_inputs_need_not_be_contiguous() -> None:
    reference, kernels = pair(small(window=2))

    def strided(network: Layers, x: Tensor) -> Tensor:
        def each(site: int, z: Tensor, y: Tensor, state: Any) -> Tensor:
            return y.mT.contiguous().mT

        return network(x.mT.contiguous().mT, each).mT

    x = tokens(2, 3)
    assert_same(results(kernels, x, strided), results(reference, x, strided))
    assert weighted(strided(kernels, x)).isfinite()
