"""Recomputing and compiling bodies changes no gradient, alone or spread over ranks."""

from __future__ import annotations

from dataclasses import replace
from functools import partialmethod

import pytest
import torch

from depth_memory.models.layer import DepthLayer
from depth_memory.train import Run
from depth_memory.train.build import prepare
from depth_memory.train.loss import add_gradient, head_of
from depth_memory.train.parallel import connect, full
from tests.train.processes import call_ranks
from tests.train.test_loss import assert_equal, batch
from tests.train.tiny import MODEL, RUN

DEPTH = 3
PLAIN = replace(RUN, model=replace(MODEL, depth=DEPTH))


def step(run: Run) -> tuple[tuple[float, dict], list[int], list[int]]:
    """Loss and gradients of a step; how often each layer's MLP and read ran, where not compiled."""
    # what is traced is the same, and no compiler is waited for
    DepthLayer.compile = partialmethod(DepthLayer.compile, backend="eager")
    bodies, reads = [0] * DEPTH, [0] * DEPTH
    with connect("cpu") as world:
        model, weights = prepare(run, 257, 0, world)
        for i, layer in enumerate(model.model.layers if not run.compile else ()):
            count(layer.mlp, "forward", bodies, i)
            count(layer.mlp_port, "read", reads, i)
        inputs, targets = (part.chunk(world.size)[world.rank] for part in batch())
        loss, _ = add_gradient(model, inputs, targets, pieces=2, world=world, head=head_of(16))
        named = {n: full(p.grad).tolist() for n, p in weights.named.items() if p.grad is not None}
    return (loss.item(), named), bodies, reads


def count(owner: torch.nn.Module, name: str, counts: list[int], place: int) -> None:
    called = getattr(owner, name)

    def counted(*args, **options):
        counts[place] += 1
        return called(*args, **options)

    setattr(owner, name, counted)


@pytest.fixture(scope="module")
def plain() -> tuple[float, dict]:
    found, bodies, reads = call_ranks(1, step, PLAIN)[0]
    assert (bodies, reads) == ([2] * DEPTH, [2] * DEPTH)  # once for each micro-batch
    return found


@pytest.mark.parametrize(("every", "expected"), [(1, [4, 4, 4]), (2, [4, 2, 4])])
def test_spread_and_recomputed_a_step_is_the_same(plain, every, expected) -> None:
    run = replace(PLAIN, checkpointing=True, checkpoint_every=every)
    for found, bodies, reads in call_ranks(2, step, run):
        assert_equal(found, plain)
        # the bodies run again in the backward pass, of every layer or every other; no port does
        assert bodies == expected
        assert reads == [2] * DEPTH


def test_spread_recomputed_and_compiled_a_step_is_the_same() -> None:
    # few forms of state: each is traced by itself
    stream = {"name": "ldm", "sites": "block", "window": 1, "key_dim": 2, "groups": 1}
    base = replace(PLAIN, model=replace(MODEL, depth=2, stream=stream))
    expected = call_ranks(1, step, base)[0][0]
    for found, _, _ in call_ranks(2, step, replace(base, checkpointing=True, compile=True)):
        assert_equal(found, expected)
