"""Accumulation is exact: however a step is cut, its loss and gradient are those of one batch."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from depth_memory.train.build import build_model
from depth_memory.train.loss import IGNORED, add_gradient, shift
from depth_memory.train.parallel import World, connect, full, mesh_of, shard_
from tests.train.processes import call_ranks
from tests.train.tiny import MODEL

VALID = (32, 17, 1, 0)
ALONE = World(rank=0, size=1, device=torch.device("cpu"))


def batch(valid: tuple[int, ...] = VALID) -> tuple[Tensor, Tensor]:
    """4 sequences of 32 with so many valid targets."""
    tokens = torch.randint(257, (4, 33), generator=torch.Generator().manual_seed(1))
    targets = tokens[:, 1:].clone()
    for row, count in zip(targets, valid, strict=True):
        row[count:] = IGNORED
    return tokens[:, :-1], targets


def gradient(pieces: int, world: World, valid: tuple[int, ...] = VALID) -> tuple[float, dict]:
    torch.manual_seed(0)
    model = build_model(MODEL, 257)
    if world.size > 1:
        shard_(model, mesh_of(world), torch.float32)
    inputs, targets = (part.chunk(world.size)[world.rank] for part in batch(valid))
    loss, _ = add_gradient(model, inputs, targets, pieces=pieces, world=world)
    named = {n: full(p.grad).tolist() for n, p in model.named_parameters() if p.grad is not None}
    return loss.item(), named


def on_rank(pieces: int, valid: tuple[int, ...]) -> tuple[float, dict]:
    with connect("cpu") as world:
        return gradient(pieces, world, valid)


def assert_equal(got: tuple[float, dict], expected: tuple[float, dict]) -> None:
    assert got[0] == pytest.approx(expected[0], abs=1e-6)
    assert got[1].keys() == expected[1].keys()
    for name, value in expected[1].items():
        torch.testing.assert_close(
            torch.tensor(got[1][name]), torch.tensor(value), atol=1e-6, rtol=0, msg=name
        )


@pytest.fixture(scope="module")
def whole() -> tuple[float, dict]:
    return gradient(1, ALONE)


def test_the_loss_is_the_mean_over_valid_targets(whole: tuple[float, dict]) -> None:
    torch.manual_seed(0)
    inputs, targets = batch()
    with torch.no_grad():
        logits = build_model(MODEL, 257)(input_ids=inputs).logits
    chosen = logits.log_softmax(-1).gather(-1, targets.clamp(min=0)[..., None])[..., 0]
    expected = -chosen[targets != IGNORED].mean().item()
    assert whole[0] == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("pieces", [2, 4])
def test_micro_batches_equal_one_batch(pieces: int, whole: tuple[float, dict]) -> None:
    assert_equal(gradient(pieces, ALONE), whole)


def test_two_ranks_of_two_micro_batches_equal_one_batch(whole: tuple[float, dict]) -> None:
    for got in call_ranks(2, on_rank, 2, VALID):
        assert_equal(got, whole)


def test_nothing_to_predict_is_a_loss_of_zero_and_no_gradient() -> None:
    loss, named = gradient(4, ALONE, (0, 0, 0, 0))
    assert loss == 0.0
    assert all(not torch.tensor(value).any() for value in named.values())


def test_padding_is_neither_target_nor_a_foreign_input() -> None:
    inputs, targets = shift(torch.tensor([[5, 6, 7, -100, -100]]))
    assert inputs.tolist() == [[5, 6, 7, 0]]
    assert targets.tolist() == [[6, 7, IGNORED, IGNORED]]
