"""Muon for the backbone's matrices, AdamW for the rest: which is which, the update, the resume."""

from __future__ import annotations

import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from depth_memory import streams
from depth_memory.errors import UserError
from depth_memory.models.names import is_of_stream
from depth_memory.train import OptimSpec, Run, read_metrics, train
from depth_memory.train.build import build_model
from depth_memory.train.optim import build, by_muon, set_learning_rate
from tests.train.processes import call, call_ranks
from tests.train.runs import curve, finish, weights
from tests.train.tiny import MODEL, tiny_run

MUON = OptimSpec(name="muon", lr=3e-3, muon_lr=1e-2)
PROJECTIONS = ("q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj")


@pytest.mark.parametrize("name", streams.STREAMS)
@pytest.mark.parametrize("tied", [True, False])
def test_muon_takes_the_matrices_of_attention_and_mlp(name: str, tied: bool) -> None:
    model = build_model(replace(MODEL, stream={"name": name}, tie_embeddings=tied), 257)
    chosen = {name for name, p in model.named_parameters() if by_muon(name, p)}
    assert len(chosen) == 7 * MODEL.depth
    assert {name.split(".")[-2] for name in chosen} == set(PROJECTIONS)
    assert not any(is_of_stream(name) for name in chosen)


def pair() -> dict[str, nn.Parameter]:
    generator = torch.Generator().manual_seed(0)
    shapes = {"model.layers.0.mlp.up_proj.weight": (48, 32), "model.norm.weight": (32,)}
    return {
        name: nn.Parameter(torch.randn(shape, generator=generator))
        for name, shape in shapes.items()
    }


def test_the_update_is_orthogonal_and_as_large_as_one_of_adamw() -> None:
    parameters = pair()
    spec = OptimSpec(name="muon", weight_decay=0.0, muon_momentum=0.0)
    optimizer = build(parameters, spec)
    matrix, norm = parameters.values()
    before = matrix.detach().clone()
    matrix.grad, norm.grad = torch.randn(48, 32), torch.randn(32)
    set_learning_rate(optimizer, 0.01)
    optimizer.step()
    update = (before - matrix.detach()) / 0.01
    # the gradient's own singular vectors, with singular values near 1, scaled
    u, _, vh = torch.linalg.svd(matrix.grad, full_matrices=False)
    values = torch.diagonal(u.T @ update @ vh.T) / (0.2 * 48**0.5)
    assert values.min() > 0.5
    assert values.max() < 1.5
    assert update.pow(2).mean().sqrt().item() == pytest.approx(0.2, rel=0.4)
    optimizer.zero_grad()
    assert matrix.grad is None
    assert norm.grad is None


def test_both_rates_follow_the_schedule() -> None:
    optimizer = build(pair(), replace(MUON, stream_lr=None))
    set_learning_rate(optimizer, 1.5e-3)
    rates = {len(group["params"][0].shape): group["lr"] for group in optimizer.param_groups}
    assert rates == pytest.approx({2: 5e-3, 1: 1.5e-3})


@pytest.mark.parametrize("shape", ["model.layers.0.mlp.up_proj.weight", "model.norm.weight"])
def test_where_one_of_the_two_has_nothing_to_do(shape: str) -> None:
    optimizer = build({shape: pair()[shape]}, MUON)
    assert len(optimizer.param_groups) == 1


def test_a_rate_of_muon_without_muon_is_refused(corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(corpus, tmp_path / "run", optim=OptimSpec(muon_lr=1e-2))
    with pytest.raises(UserError, match=r"^optim.muon_lr: got 0.01; allowed: none, unless"):
        run.validate()


def muon_run(corpus: Path, out: Path) -> Run:
    return tiny_run(corpus, out, steps=4, save_every=2, eval_every=0, optim=MUON, accumulate=2)


@pytest.fixture(scope="module")
def whole(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = muon_run(corpus, tmp_path_factory.mktemp("muon") / "run")
    call(finish, run)
    return run


def test_it_learns(whole: Run) -> None:
    losses = [record["loss"] for record in read_metrics(whole.out / "metrics.jsonl")]
    assert losses[-1] < losses[0] - 0.1


def test_momentum_is_saved_by_parameter(whole: Run) -> None:
    kept = load_file(whole.out / "checkpoints/step-00000004/optimizer.safetensors")
    momenta = {name for name in kept if name.endswith(".momentum_buffer")}
    assert len(momenta) == 7 * MODEL.depth
    assert not any(name.replace("momentum_buffer", "exp_avg") in kept for name in momenta)
    assert "model.embed_tokens.weight.exp_avg_sq" in kept


def forget_the_end(run: Run, out: Path) -> Run:
    shutil.copytree(run.out, out)
    shutil.rmtree(out / "model")
    shutil.rmtree(out / "checkpoints" / "step-00000004")
    return replace(run, out=out)


def test_a_resume_is_exact(whole: Run, tmp_path: Path) -> None:
    resumed = forget_the_end(whole, tmp_path / "resumed")
    call(finish, resumed)
    assert weights(resumed.out) == weights(whole.out)
    assert curve(resumed.out) == curve(whole.out)


def losses_of(run: Run) -> list[float]:
    train(run, show=False)
    return [record["loss"] for record in read_metrics(run.out / "metrics.jsonl")]


def test_sharded_matrices_get_the_update_of_whole_ones(whole: Run, tmp_path: Path) -> None:
    expected = [record["loss"] for record in read_metrics(whole.out / "metrics.jsonl")]
    two = replace(whole, out=tmp_path / "two")
    first, second = call_ranks(2, losses_of, two)
    assert first == second
    # the iteration rounds to bfloat16, and each sum of another order may round to the other side
    assert first == pytest.approx(expected, abs=1e-3)
    assert first[:2] == pytest.approx(expected[:2], abs=2e-4)
    resumed = forget_the_end(two, tmp_path / "resumed")
    call_ranks(2, losses_of, resumed)
    assert weights(resumed.out) == weights(two.out)
