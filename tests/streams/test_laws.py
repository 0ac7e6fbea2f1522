"""The laws of `depth_memory/streams/base.py`, for every stream and every named option."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, Literal, get_args, get_origin, get_type_hints

import pytest
import torch
from safetensors.torch import load, save
from torch.func import functional_call

from depth_memory import streams
from depth_memory.errors import UserError
from depth_memory.streams.ldm_config import AbstractLDMConfig
from tests.streams.cases import CASES, SITES, D, Network, gradients, randomised, tensors, weighted

EPS64 = torch.finfo(torch.float64).eps

every_case = pytest.mark.parametrize("config", CASES.values(), ids=CASES.keys())


def tokens(*shape: int, dtype: torch.dtype = torch.float64) -> torch.Tensor:
    return torch.randn(*shape, D, dtype=torch.float64).to(dtype)


def used_values(cls: type, field: str) -> set[Any]:
    """The values of a field over all cases; the LDM streams, which share theirs, count as one."""
    shared = AbstractLDMConfig if issubclass(cls, AbstractLDMConfig) else cls
    configs = [streams.resolve(config) for config in CASES.values()]
    return {getattr(config, field) for config in configs if isinstance(config, shared)}


OPTIONS = [(cls, field) for cls, _ in streams.STREAMS.values() for field in fields(cls)]


@pytest.mark.parametrize(("cls", "field"), OPTIONS, ids=lambda x: getattr(x, "name", None))
def test_the_cases_cover_every_option(cls: type, field: Any) -> None:
    hint = get_type_hints(cls)[field.name]
    used = used_values(cls, field.name)
    if hint is bool:
        assert used == {True, False}
    elif get_origin(hint) is Literal:
        assert used == set(get_args(hint))
    else:
        assert used - {field.default}, f"{field.name} has its default everywhere"


def test_the_cases_cover_every_stream() -> None:
    assert {config["name"] for config in CASES.values()} == set(streams.STREAMS)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16], ids=str)
@every_case
def test_shape_and_dtype_are_kept(config: dict, dtype: torch.dtype) -> None:
    network = Network(config, dtype=dtype)
    for shape in ((), (0,), (1,), (2, 0), (2, 3)):
        x = tokens(*shape, dtype=dtype)
        seen = []
        y = network(x, each=lambda v, seen=seen: seen.append(v) or v)
        for vector in (*seen, y):
            assert vector.shape == x.shape
            assert vector.dtype == dtype
            assert vector.isfinite().all()


@every_case
def test_leading_axes_only_repeat(config: dict) -> None:
    network = randomised(Network(config))
    x = tokens(2, 3)
    batched = network(x)
    for index in ((0, 0), (1, 2)):
        # sums of at most D x lanes terms, in another order, through every sublayer
        atol = 64 * D * SITES * EPS64 * batched.abs().max().item()
        torch.testing.assert_close(network(x[index]), batched[index], rtol=0, atol=atol)


@every_case
def test_no_tokens_give_zero_gradients(config: dict) -> None:
    for gradient in gradients(Network(config), tokens(2, 0))[1]:
        assert not gradient.any()


@every_case
def test_tokens_do_not_mix(config: dict) -> None:
    network = randomised(Network(config, dtype=torch.float32))
    x = tokens(2, 4, dtype=torch.float32)
    changed = x.clone()
    changed[1, 2] = 3.0 * x[1, 2] + 1.0
    same = torch.ones(2, 4, dtype=torch.bool)
    same[1, 2] = False
    before, after = network(x), network(changed)
    assert torch.equal(before[same], after[same])
    assert not torch.equal(before[~same], after[~same])


@every_case
def test_every_parameter_has_a_finite_gradient_at_the_start(config: dict) -> None:
    network = Network(config, dtype=torch.float32)
    weighted(network(tokens(2, 3, dtype=torch.float32).requires_grad_())).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, f"{name} is not used"
        assert parameter.grad.isfinite().all(), name
        # a direction of nothing would multiply it by 1e6, and drown all others once clipped;
        # without the residual stream an input can be small, and its norm multiplies too
        assert parameter.grad.norm() < (1e4 if config.get("residual", True) else 1e6), name


@every_case
def test_every_parameter_matters(config: dict) -> None:
    network = randomised(Network(config))
    weighted(network(tokens(2, 3).requires_grad_())).backward()
    for name, parameter in network.named_parameters():
        assert parameter.grad is not None, f"{name} is not used"
        assert parameter.grad.any(), name


@every_case
def test_gradcheck(config: dict) -> None:
    network = randomised(Network(config))
    modules = [network.stream, *network.ports]
    parameters = [list(module.parameters()) for module in modules]
    names = [[n for n, _ in module.named_parameters()] for module in modules]
    prefixes = ["stream", *(f"ports.{site}" for site in range(SITES))]

    def run(x: torch.Tensor, *flat: torch.Tensor) -> torch.Tensor:
        override = {}
        for prefix, own, values, vector in zip(prefixes, names, parameters, flat, strict=True):
            parts = vector.split([p.numel() for p in values])
            shaped = (part.view_as(p) for part, p in zip(parts, values, strict=True))
            override |= {f"{prefix}.{n}": p for n, p in zip(own, shaped, strict=True)}
        return functional_call(network, override, (x,))

    empty = torch.zeros(0, dtype=torch.float64)
    flat = [torch.cat([empty, *(p.detach().flatten() for p in own)]) for own in parameters]
    inputs = [v.requires_grad_(v.numel() > 0) for v in (tokens(2), *flat)]
    assert torch.autograd.gradcheck(run, inputs, fast_mode=True)


@every_case
def test_checkpointing_the_body_changes_nothing(config: dict) -> None:
    network = randomised(Network(config, dtype=torch.float32))
    x = tokens(2, 3, dtype=torch.float32)
    plain, plain_grads = gradients(network, x)
    saved, saved_grads = gradients(network, x, checkpointed=True)
    assert torch.equal(plain, saved)
    for a, b in zip(plain_grads, saved_grads, strict=True):
        assert torch.equal(a, b)


@every_case
def test_a_state_is_named_and_using_it_leaves_it_unchanged(config: dict) -> None:
    network = randomised(Network(config))
    earlier: list[tuple[torch.Tensor, torch.Tensor]] = []
    for state in network.states(tokens(2, 3)):
        assert hasattr(state, "_fields")
        earlier += [(tensor, tensor.clone()) for tensor in tensors(state)]
    for tensor, copy in earlier:
        assert torch.equal(tensor, copy)


@every_case
def test_nothing_is_kept_between_calls(config: dict) -> None:
    network = randomised(Network(config))
    x = tokens(2, 3)
    first = network(x)
    network(tokens(5))
    assert torch.equal(network(x), first)


@every_case
def test_saved_and_loaded_is_equal(config: dict) -> None:
    network, other = randomised(Network(config)), Network(config)
    x = tokens(2, 3)
    assert (config["name"] == "preln") == (not list(network.parameters()))
    other.load_state_dict(load(save(network.state_dict())))
    assert torch.equal(network(x), other(x))


@every_case
def test_a_configuration_survives_a_round_trip(config: dict) -> None:
    built = streams.build(config, D, SITES).config
    assert streams.resolve(streams.as_dict(built)) == built
    assert streams.build(built, D, SITES).config == built
    for name, value in config.items():
        assert streams.as_dict(built)[name] == value


@every_case
def test_reset_parameters_is_the_start(config: dict) -> None:
    network = Network(config, dtype=torch.float32)
    fresh = {name: value.clone() for name, value in network.state_dict().items()}
    randomised(network)
    for module in network.modules():
        if isinstance(module, streams.StreamModule | torch.nn.LayerNorm):
            module.reset_parameters()
    drawn = 0
    for name, value in network.state_dict().items():
        if name != "bodies" and not torch.equal(value, fresh[name]):
            # what is drawn at random is a matrix, drawn anew with the same spread
            assert value.dim() == 2
            drawn += 1
            assert 0.2 < value.std() / fresh[name].std() < 5
    expected = config["name"].startswith(("ldm", "preln_")) or config.get("init") == "zero"
    assert (drawn > 0) == expected


@every_case
def test_a_network_made_on_the_meta_device_can_start_later(config: dict) -> None:
    with torch.device("meta"):
        network = Network(config, dtype=torch.float32)
    assert all(parameter.is_meta for parameter in network.parameters())
    network.to_empty(device="cpu")
    for module in network.modules():
        if isinstance(module, streams.StreamModule | torch.nn.LayerNorm):
            module.reset_parameters()
    expected = Network(config, dtype=torch.float32)
    for name, value in network.named_parameters():
        start = expected.get_parameter(name)
        assert value.isfinite().all(), name
        if start.dim() < 2 or not start.any() or name.endswith("static_alpha"):
            assert torch.equal(value, start), name


@every_case
def test_another_width_is_refused(config: dict) -> None:
    stream = streams.build(config, D, SITES)
    for shape in ((), (2, D + 2)):
        with pytest.raises(UserError, match=r"^x: shape: got \[.*; allowed: \[..., ") as error:
            stream.start(torch.zeros(shape))
        assert "\n" not in str(error.value)
