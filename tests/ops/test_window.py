"""The dual form and the windowed form against the recurrence, for the three write rules."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from depth_memory import ops
from tests.testing import (
    KEY_KINDS,
    Observations,
    assert_within_budget,
    condition,
    empty_memory,
    gram_matrices,
    make_observations,
    write_all,
)


class Rule(NamedTuple):
    write: Callable
    transition: Callable


RULES = {
    "rls": Rule(ops.rls_write, ops.rls_transition),
    "delta": Rule(ops.delta_write, lambda P, *a: (ops.delta_transition(*a), P)),
    "outer": Rule(ops.outer_write, lambda P, *a: (ops.outer_transition(*a), P)),
}
EVERY_RULE = pytest.mark.parametrize("rule", RULES)


def windowed(
    rule: str, obs: Observations, window: int, query: Tensor, alpha: float = 1.0
) -> tuple[list[Tensor], Tensor]:
    """A read after every write, folding whenever `window` writes are pending; and the memory."""
    _, P = empty_memory(obs, alpha)
    base: Tensor | None = None
    pending: list[tuple[ops.Transition, Tensor]] = []
    reads = []
    for k, v, f, w in obs.steps():
        transition, P = RULES[rule].transition(P, k, f, w)
        pending.append((transition, v))
        reads.append(ops.window_read(base, *map(list, zip(*pending, strict=True)), query))
        if len(pending) == window:
            base = ops.window_fold(base, *map(list, zip(*pending, strict=True)))
            pending = []
    if pending:
        base = ops.window_fold(base, *map(list, zip(*pending, strict=True)))
    assert base is not None
    return reads, base


@EVERY_RULE
@pytest.mark.parametrize("alpha", [1.0, 10.0])
@pytest.mark.parametrize("n", [1, 5, 24])
def test_depth_weights_are_the_read_of_one_hot_values(rule, n, alpha):
    obs = make_observations(n, 3)._replace(values=torch.eye(n).double().expand(3, n, n))
    query = torch.randn(3, 8).double()
    M, _ = write_all(RULES[rule].write, obs, alpha)[-1]
    c = ops.depth_weights(obs.keys, obs.forgetting, obs.importance, alpha, query, rule=rule)
    torch.testing.assert_close(c, ops.read(M, query), rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KEY_KINDS)
def test_rls_depth_weights_by_formula(kind):
    obs = make_observations(24, kind=kind, retention=1e-2)
    query = torch.randn(8).double()
    A = gram_matrices(obs)[-1]
    later = torch.stack([obs.forgetting[i + 1 :].prod() for i in range(24)])
    expected = later * obs.importance * (obs.keys @ torch.linalg.solve(A, query))
    c = ops.depth_weights(obs.keys, obs.forgetting, obs.importance, 1.0, query)
    error = torch.linalg.vector_norm(c - expected) / torch.linalg.vector_norm(expected)
    assert error <= 1e-13 * condition(A)


def test_outer_depth_weights_by_formula():
    obs = make_observations(9)
    query = torch.randn(8).double()
    later = torch.stack([obs.forgetting[i + 1 :].prod() for i in range(9)])
    c = ops.depth_weights(obs.keys, obs.forgetting, obs.importance, 1.0, query, rule="outer")
    expected = later * obs.importance * (obs.keys @ query)
    torch.testing.assert_close(c, expected, rtol=0, atol=1e-14)


def test_rls_weights_of_equal_unit_keys_sum_to_less_than_1():
    obs = make_observations(40, kind="identical", retention=1.0)
    c = ops.depth_weights(obs.keys, obs.forgetting, obs.importance, 10.0, obs.keys[0])
    mass = 10 * obs.importance.sum()
    torch.testing.assert_close(c.sum(), mass / (1 + mass), rtol=1e-6, atol=0)


def test_depth_weights_of_no_writes_are_empty():
    obs = make_observations(0, 2)
    c = ops.depth_weights(obs.keys, obs.forgetting, obs.importance, 1.0, torch.ones(2, 8).double())
    assert c.shape == (2, 0)


@EVERY_RULE
@pytest.mark.parametrize("window", [1, 4, 8, 56])
@pytest.mark.parametrize("kind", KEY_KINDS)
def test_window_equals_recurrence(rule, window, kind):
    obs = make_observations(24, 3, kind=kind, retention=1e-2)
    query = torch.randn(3, 8).double()
    states = write_all(RULES[rule].write, obs)
    reads, memory = windowed(rule, obs, window, query)
    tolerance = 1e-13 * max(condition(A).max().item() for A in gram_matrices(obs))
    for actual, (M, _) in zip(reads, states, strict=True):
        expected = ops.read(M, query)
        assert (actual - expected).abs().max() <= tolerance * expected.abs().max()
    expected = states[-1][0]
    assert (memory - expected).abs().max() <= tolerance * expected.abs().max()


@EVERY_RULE
@pytest.mark.parametrize("window", [1, 4, 8, 56])
@pytest.mark.parametrize("retention", [1.0, 1e-3])
def test_window_is_as_accurate_as_the_recurrence_in_float32(rule, window, retention):
    obs = make_observations(56, 16, kind="near", retention=retention)
    query = obs.keys[:, 0]
    exact = write_all(RULES[rule].write, obs)[-1][0]
    single = obs.to(torch.float32)
    peer = write_all(RULES[rule].write, single)[-1][0]
    reads, memory = windowed(rule, single, window, query.float())
    assert_within_budget(memory, exact, peer, "fold")
    # the weights are dotted with the query, which adds its own rounding to the peer as well
    assert_within_budget(reads[-1], ops.read(exact, query), ops.read(peer, query.float()), "read")


@EVERY_RULE
def test_window_reads_a_given_base(rule):
    first, second = make_observations(6, 3), make_observations(4, 3)
    query = torch.randn(3, 8).double()
    M, P = write_all(RULES[rule].write, first)[-1]
    base = M
    pending = []
    for k, v, f, w in second.steps():
        M, _ = RULES[rule].write(M, P, k, v, f, w)
        transition, P = RULES[rule].transition(P, k, f, w)
        pending.append((transition, v))
    transitions, values = map(list, zip(*pending, strict=True))
    read = ops.window_read(base, transitions, values, query)
    torch.testing.assert_close(read, ops.read(M, query), rtol=0, atol=1e-12)
    fold = ops.window_fold(base, transitions, values)
    torch.testing.assert_close(fold, M, rtol=0, atol=1e-12)


def test_an_empty_window_reads_the_base():
    M, query = torch.randn(3, 4, 8), torch.randn(3, 8)
    expected = torch.einsum("tvk,tk->tv", M, query)
    torch.testing.assert_close(ops.window_read(M, [], [], query), expected)


def test_a_low_precision_base_is_read_in_float32():
    obs = make_observations(3, 2).to(torch.float32)
    transitions, P = [], empty_memory(obs)[1]
    for k, _, f, w in obs.steps():
        transition, P = ops.rls_transition(P, k, f, w)
        transitions.append(transition)
    base, values = torch.randn(2, 4, 8).bfloat16(), list(obs.values.bfloat16().unbind(-2))
    query = torch.randn(2, 8)
    same = [v.float() for v in values]
    for run in (
        lambda m, v: ops.window_read(m, transitions, v, query),
        lambda m, v: ops.window_fold(m, transitions, v),
    ):
        assert torch.equal(run(base, values), run(base.float(), same))
