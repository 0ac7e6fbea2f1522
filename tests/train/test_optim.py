"""The schedules, the parameter groups and the norm of the gradient."""

from __future__ import annotations

import itertools
import math

import pytest
import torch
from torch import nn

from depth_memory import streams
from depth_memory.train import OptimSpec, ScheduleSpec
from depth_memory.train.build import build_model
from depth_memory.train.optim import adamw, clip_, decays, gradient_norm, set_learning_rate
from depth_memory.train.schedule import factor
from tests.train.tiny import MODEL, replace


def test_cosine_rises_falls_and_ends_at_the_floor() -> None:
    spec = ScheduleSpec(kind="cosine", warmup=4, floor=0.1)
    factors = [factor(spec, step, 24) for step in range(24)]
    assert factors[:4] == [0.25, 0.5, 0.75, 1.0]
    assert factors[13] == pytest.approx(0.55)  # half way down
    assert factors[23] == pytest.approx(0.1)
    assert all(a > b for a, b in itertools.pairwise(factors[3:]))


def test_wsd_holds_the_peak_and_falls_in_a_line() -> None:
    spec = ScheduleSpec(kind="wsd", warmup=2, decay=0.25, floor=0.0)
    factors = [factor(spec, step, 16) for step in range(16)]
    assert factors == [0.5, *[1.0] * 11, 0.75, 0.5, 0.25, 0.0]


@pytest.mark.parametrize("kind", ["cosine", "wsd"])
def test_schedules_without_warmup_or_decay(kind: str) -> None:
    spec = ScheduleSpec(kind=kind, warmup=0, decay=0.0, floor=0.2)
    assert all(0.2 <= factor(spec, step, 3) <= 1 for step in range(3))
    assert factor(ScheduleSpec(kind=kind, warmup=3, decay=0.0), 2, 3) == 1.0


@pytest.mark.parametrize("name", streams.STREAMS)
def test_weight_decay_acts_on_matrices_that_are_not_embeddings(name: str) -> None:
    spec = replace(MODEL, stream={"name": name}, tie_embeddings=False)
    for name, parameter in build_model(spec, 257).named_parameters():
        last = name.split(".")[-1]
        embedding = name == "model.embed_tokens.weight"
        expected = parameter.ndim >= 2 and not embedding and last not in streams.UNDECAYED
        assert decays(name, parameter, "matrices") is expected
        assert decays(name, parameter, "all") is (last not in streams.UNDECAYED)


def test_decay_shrinks_what_decays_and_nothing_else() -> None:
    parameters = {"a.weight": torch.ones(2, 2), "a.bias": torch.ones(2)}
    parameters = {name: nn.Parameter(value) for name, value in parameters.items()}
    optimizer = adamw(parameters, OptimSpec(weight_decay=0.5))
    for parameter in parameters.values():
        parameter.grad = torch.zeros_like(parameter)
    set_learning_rate(optimizer, 0.1)
    optimizer.step()
    assert torch.allclose(parameters["a.weight"], torch.tensor(0.95))
    assert torch.equal(parameters["a.bias"], torch.ones(2))


def test_clipping_scales_the_whole_gradient_and_reports_its_norm() -> None:
    parameters = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    for gradient, limit, expected in [(4.0, 1.0, 0.8), (4.0, 10.0, 4.0), (4.0, 0.0, 4.0)]:
        parameters[0].grad, parameters[1].grad = torch.tensor([3.0]), torch.tensor([gradient])
        norm = gradient_norm(parameters)
        assert norm.item() == pytest.approx(5.0)
        clip_(parameters, limit, norm)
        assert parameters[1].grad.item() == pytest.approx(expected)
    parameters[0].grad = torch.tensor([math.nan])
    assert math.isnan(gradient_norm(parameters))
