"""A number that is not finite stops the run, before it can spread to the weights."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from depth_memory.errors import UserError
from depth_memory.train import NonFiniteError, Run, build, loop, train
from depth_memory.train import checkpoint as checkpoints
from depth_memory.train import step as step_module
from tests.train.processes import call_ranks
from tests.train.tiny import MODEL, tiny_run

FATAL = 5


@pytest.fixture
def run(corpus: Path, tmp_path: Path) -> Run:
    model = replace(MODEL, stream={"name": "preln"})
    return tiny_run(corpus, tmp_path / "run", save_every=2, model=model)


class Spoiled(torch.autograd.Function):
    """The identity, with an infinite gradient."""

    @staticmethod
    def forward(ctx, x):
        return x.clone()

    @staticmethod
    def backward(ctx, gradient):
        return gradient * math.inf


def spoil_output(model) -> None:
    model.model.layers[1].mlp.up_proj.register_forward_hook(lambda m, i, out: out * math.nan)


def spoil_gradient(model) -> None:
    model.model.layers[1].mlp.down_proj.register_forward_hook(lambda m, i, out: Spoiled.apply(out))


def spoil_weight(model) -> None:
    with torch.no_grad():
        model.model.layers[0].self_attn.q_proj.weight[0] = math.inf


def spoil_stream(model) -> None:
    port = model.model.layers[1].attn_port
    write = port.write
    port.write = lambda state, y: write(state, y * math.nan)


def spoil_at(monkeypatch: pytest.MonkeyPatch, spoil) -> None:
    """Spoil the network before the step that ends as number `FATAL`."""
    rows = step_module._rows

    def spoiling(session, step):
        if step == FATAL - 1:
            spoil(session.model)
        return rows(session, step)

    monkeypatch.setattr(step_module, "_rows", spoiling)


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (spoil_output, "loss is nan; first non-finite: output of model.layers.1.mlp.up_proj; "),
        (
            spoil_gradient,
            "norm of the gradient is nan; "
            "first non-finite: gradient of model.layers.1.mlp.down_proj.weight; ",
        ),
        (
            spoil_weight,
            "loss is nan; first non-finite: weight model.layers.0.self_attn.q_proj.weight; ",
        ),
        (
            spoil_stream,
            "loss is nan; first non-finite: input of model.layers.1.post_attention_layernorm; ",
        ),
    ],
)
def test_the_run_stops_and_names_step_place_and_last_checkpoint(
    run: Run, monkeypatch: pytest.MonkeyPatch, spoil, message: str
) -> None:
    spoil_at(monkeypatch, spoil)
    with pytest.raises(NonFiniteError) as error:
        train(run, show=False)
    last = run.out / "checkpoints" / "step-00000004"
    assert str(error.value) == f"step {FATAL}: {message}last good checkpoint: {last}"
    assert checkpoints.newest(run.out / "checkpoints").path == last
    assert isinstance(error.value, UserError)


def test_before_the_first_checkpoint_it_says_so(run: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    spoil_at(monkeypatch, spoil_output)
    with pytest.raises(NonFiniteError, match=r"up_proj; no checkpoint was saved yet$"):
        train(replace(run, save_every=0), show=False)
    assert not (run.out / "model").exists()


def test_after_it_the_run_can_go_on(run: Run) -> None:
    with pytest.MonkeyPatch.context() as patch:
        spoil_at(patch, spoil_output)
        with pytest.raises(NonFiniteError):
            train(run, show=False)
    assert math.isfinite(train(run, show=False).evaluation.loss)


def spoiled_rank(run: Run) -> str:
    prepare = build.prepare

    def spoiling(run, vocab_size, end_id, world, config, **options):
        model, weights = prepare(run, vocab_size, end_id, world, config, **options)
        if not world.main:
            spoil_output(model)
        return model, weights

    loop.prepare = spoiling
    with pytest.raises(NonFiniteError) as error:
        train(run, show=False)
    return str(error.value)


def test_all_processes_stop_for_the_fault_of_one(run: Run) -> None:
    expected = "step 1: loss is nan; first non-finite: output of model.layers.1.mlp.up_proj; "
    assert call_ranks(2, spoiled_rank, run) == [expected + "no checkpoint was saved yet"] * 2
