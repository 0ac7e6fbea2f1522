"""bfloat16: the optimiser keeps float32, and what must stay float32 reaches its use unrounded."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils._pytree import tree_leaves

from depth_memory.streams.memory import Memory, MemoryForm
from depth_memory.train import OptimSpec, Run
from depth_memory.train.build import prepare
from depth_memory.train.loss import add_gradient
from depth_memory.train.optim import adamw
from depth_memory.train.parallel import connect
from depth_memory.train.precision import rounded_
from tests.train.processes import call_ranks
from tests.train.tiny import RUN, replace

SIXTEEN: Run = replace(RUN, precision="bfloat16")
LOGIT = -7.2303  # bfloat16 rounds it, and with it the forgetting of 0.999


def seen_by_the_write(run: Run) -> tuple[list[tuple[str, float]], str]:
    """dtype and value of the forgetting of every write in one forward pass; the MLP's dtype."""
    seen, dtypes = [], []

    def record(module: nn.Module, inputs: Any, output: Any) -> None:
        if hasattr(output, "forgetting"):
            seen.append((str(output.forgetting.dtype), output.forgetting.flatten()[0].item()))

    with connect("cpu") as world:
        model, weights = prepare(run, 257, 0, world)
        for name, weight in weights.named.items():
            if name.endswith("forgetting.logit"):
                nn.init.constant_(weight, LOGIT)
        weights.publish()
        for module in model.modules():
            module.register_forward_hook(record)
        model.model.layers[0].mlp.register_forward_hook(
            lambda module, inputs, output: dtypes.append(str(output.dtype))
        )
        tokens = torch.zeros(2, 8, dtype=torch.int64)
        add_gradient(model, tokens, tokens, pieces=1, world=world)
    return seen, dtypes[0]


def check_unrounded(seen: list[tuple[str, float]], mlp: str) -> None:
    expected, _ = seen_by_the_write(RUN)
    assert mlp == "torch.bfloat16"
    assert len(seen) == len(expected) > 2
    assert seen == expected
    # the case that bfloat16 turns into "never forget"
    learned = [value for _, value in seen if value != 1.0]
    assert learned == pytest.approx([0.999] * len(learned), abs=1e-5)
    assert all(torch.tensor(value).bfloat16().item() == 1.0 for value in learned)


def test_forgetting_reaches_the_write_unrounded_in_one_process() -> None:
    check_unrounded(*seen_by_the_write(SIXTEEN))


def test_forgetting_reaches_the_write_unrounded_when_sharded() -> None:
    for seen, mlp in call_ranks(2, seen_by_the_write, SIXTEEN):
        check_unrounded(seen, mlp)


def test_weights_move_by_less_than_bfloat16_can_show() -> None:
    model = nn.Linear(4, 4, bias=False)
    nn.init.ones_(model.weight)
    weights = rounded_(model, torch.bfloat16)
    optimizer = adamw(weights.named, OptimSpec(lr=1e-4, weight_decay=0.0))
    for _ in range(3):
        model(torch.ones(1, 4, dtype=torch.bfloat16)).sum().backward()
        optimizer.step()
        optimizer.zero_grad()
        weights.publish()
    assert torch.allclose(weights.named["weight"], torch.tensor(1 - 3e-4), atol=1e-6)
    assert torch.equal(model.weight, torch.ones(4, 4, dtype=torch.bfloat16))


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    model = nn.Linear(1, 1, bias=False)
    weights = rounded_(model, torch.bfloat16)
    for x in (256.0, 1.0):
        model(torch.tensor([[x]], dtype=torch.bfloat16)).sum().backward()
    assert weights.named["weight"].grad.item() == 257.0  # 256 in bfloat16
    assert model.weight.grad is None


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_the_optimiser_sees_float32_only(precision: str) -> None:
    with connect("cpu") as world:
        _, weights = prepare(replace(RUN, precision=precision), 257, 0, world)
    assert {p.dtype for p in weights.named.values()} == {torch.float32}


def seen_by_the_memory(run: Run) -> list[list[str]]:
    """dtypes of covariance, coefficients, query and values of all writes in one training step."""
    found: list[set[str]] = [set(), set(), set(), set()]
    store, retrieve = MemoryForm.store, MemoryForm.retrieve

    def watched_store(self: MemoryForm, memory: Memory, *write: Any) -> Memory:
        memory = store(self, memory, *write)
        for kind, parts in zip(found, (memory.covariance, memory.transitions), strict=False):
            kind.update(str(leaf.dtype) for leaf in tree_leaves(parts))
        found[3].update(str(value.dtype) for value in memory.values)
        return memory

    def watched_retrieve(self: MemoryForm, memory: Memory, query: torch.Tensor) -> torch.Tensor:
        found[2].add(str(query.dtype))
        return retrieve(self, memory, query)

    with connect("cpu") as world:
        model, _ = prepare(run, 257, 0, world)
        MemoryForm.store, MemoryForm.retrieve = watched_store, watched_retrieve
        tokens = torch.zeros(2, 8, dtype=torch.int64)
        add_gradient(model, tokens, tokens, pieces=1, world=world)
    return [sorted(kind) for kind in found]


@pytest.mark.parametrize("ranks", [1, 2])
def test_covariance_and_coefficients_are_float32_beside_bfloat16(ranks: int) -> None:
    exact = ["torch.float32"]
    for found in call_ranks(ranks, seen_by_the_memory, SIXTEEN):
        assert found == [exact, exact, exact, ["torch.bfloat16"]]
