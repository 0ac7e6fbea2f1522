"""The loss in pieces of the head is the loss, and never holds the logits of all tokens."""

from __future__ import annotations

import functools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from depth_memory.train.build import build_model
from depth_memory.train.loss import (
    IGNORED,
    add_gradient,
    head_loss,
    head_of,
    loss_and_gradient,
    summed_loss,
)
from depth_memory.train.parallel import World, connect, full, mesh_of, shard_
from tests.testing import assert_within_budget
from tests.train.processes import call_ranks
from tests.train.test_loss import ALONE, assert_equal, batch
from tests.train.tiny import MODEL

N, D, V = 23, 16, 37


def inputs(dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    targets = torch.randint(V, (N,))
    targets[[0, 7, 8, N - 1]] = IGNORED
    return torch.randn(N, D, dtype=dtype), torch.randn(V, D, dtype=dtype), targets


def with_gradients(loss, hidden: Tensor, weight: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    hidden, weight = hidden.clone().requires_grad_(), weight.clone().requires_grad_()
    value = loss(hidden, weight)
    return value.detach(), *torch.autograd.grad(value / 7, (hidden, weight))


def plain(hidden: Tensor, weight: Tensor, targets: Tensor) -> Tensor:
    logits = (hidden @ weight.mT).to(torch.promote_types(hidden.dtype, torch.float32))
    return F.cross_entropy(logits, targets, ignore_index=IGNORED, reduction="sum")


@pytest.mark.parametrize("chunk", [0, 1, 5, N, 100])
def test_pieces_of_any_size_have_the_loss_and_gradient_of_the_whole(chunk: int) -> None:
    hidden, weight, targets = inputs()
    lost = functools.partial(head_loss, targets=targets, chunk=chunk, pointwise=loss_and_gradient)
    found = with_gradients(lost, hidden, weight)
    expected = with_gradients(functools.partial(plain, targets=targets), hidden, weight)
    torch.testing.assert_close(found, expected, rtol=1e-12, atol=1e-12)
    with torch.no_grad():
        torch.testing.assert_close(lost(hidden, weight), expected[0], rtol=1e-12, atol=0)


def test_bfloat16_is_as_exact_as_the_plain_loss_in_bfloat16() -> None:
    hidden, weight, targets = inputs()
    half = hidden.bfloat16(), weight.bfloat16()
    exact = with_gradients(functools.partial(plain, targets=targets), *(x.double() for x in half))
    peer = with_gradients(functools.partial(plain, targets=targets), *half)
    lost = functools.partial(head_loss, targets=targets, chunk=5, pointwise=loss_and_gradient)
    for name, *values in zip(
        ("loss", "hidden", "weight"), with_gradients(lost, *half), exact, peer, strict=True
    ):
        assert_within_budget(*values, name)


def test_the_compiled_form_is_the_plain_one() -> None:
    hidden, weight, targets = inputs(torch.float32)
    compiled = torch.compile(loss_and_gradient, dynamic=False, backend="aot_eager")
    logits = hidden @ weight.mT
    torch.testing.assert_close(compiled(logits, targets), loss_and_gradient(logits, targets))


@pytest.mark.parametrize("frozen", [False, True])
def test_a_frozen_head_gets_no_gradient_and_costs_none(frozen: bool) -> None:
    hidden, weight, targets = inputs()
    weight.requires_grad_(not frozen)
    hidden.requires_grad_()
    loss = head_loss(hidden, weight, targets, chunk=5, pointwise=loss_and_gradient)
    assert (loss.grad_fn.gradients[1] is None) == frozen
    loss.backward()
    assert (weight.grad is None) == frozen
    assert hidden.grad.any()


class Largest(TorchDispatchMode):
    """Notes the most elements of any tensor that is made."""

    elements = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        sizes = [leaf.numel() for leaf in tree_leaves(out) if isinstance(leaf, Tensor)]
        self.elements = max([self.elements, *sizes])
        return out


@pytest.mark.parametrize("training", [True, False])
def test_the_logits_of_all_tokens_never_exist(training: bool) -> None:
    model = build_model(replace(MODEL, max_length=512), 4096)
    tokens = torch.zeros(1, 512, dtype=torch.int64)
    with Largest() as seen, torch.set_grad_enabled(training):
        loss = summed_loss(model, tokens, tokens, head_of(16))
        if training:
            loss.backward()
    assert seen.elements <= 4096 * MODEL.width  # the head itself; all logits would be 16 times that


def step(pieces: int, world: World, chunk: int | None, tied: bool) -> tuple[float, dict]:
    torch.manual_seed(0)
    model = build_model(replace(MODEL, tie_embeddings=tied), 257)
    if world.size > 1:
        shard_(model, mesh_of(world), torch.float32)
    rows, targets = (part.chunk(world.size)[world.rank] for part in batch())
    head = None if chunk is None else head_of(chunk)
    loss, _ = add_gradient(model, rows, targets, pieces=pieces, world=world, head=head)
    named = {n: full(p.grad).tolist() for n, p in model.named_parameters()}
    return loss.item(), named


def on_rank(pieces: int, chunk: int, tied: bool) -> tuple[float, dict]:
    with connect("cpu") as world:
        return step(pieces, world, chunk, tied)


@pytest.mark.parametrize("tied", [True, False])
def test_a_step_in_pieces_is_the_step_alone_and_on_two_ranks(tied: bool) -> None:
    expected = step(1, ALONE, None, tied)
    assert_equal(step(2, ALONE, 5, tied), expected)
    for got in call_ranks(2, on_rank, 2, 5, tied):
        assert_equal(got, expected)
