"""The delta rule and the outer product against what they sum to."""

from __future__ import annotations

import pytest
import torch

from depth_memory.ops import delta_write, outer_write, read, rls_write
from tests.testing import empty_memory, make_observations, write_all


def test_delta_is_one_gradient_step_on_the_newest_observation():
    obs = make_observations(5, 3)
    M, P = write_all(delta_write, obs)[-1]
    k, v, f, w = next(iter(obs.steps()))
    # the loss of the newest observation at the memory after forgetting
    kept = (f[:, None, None] * M).requires_grad_()
    loss = 0.5 * (v - torch.einsum("tvk,tk->tv", kept, k)).square().sum()
    step = kept - w[:, None, None] * torch.autograd.grad(loss, kept)[0]
    torch.testing.assert_close(delta_write(M, P, k, v, f, w)[0], step.detach(), rtol=0, atol=1e-14)


def test_delta_equals_the_product_of_its_transitions():
    obs = make_observations(6)
    expected = torch.zeros(4, 8).double()
    for i in range(obs.count):
        k, v, f, w = (x[i] for x in obs)
        expected = expected @ (f * (torch.eye(8) - w * torch.outer(k, k))) + w * torch.outer(v, k)
    torch.testing.assert_close(write_all(delta_write, obs)[-1][0], expected, rtol=0, atol=1e-14)


def test_delta_of_importance_1_and_a_unit_key_stores_the_value():
    obs = make_observations(9, 3)
    M, P = write_all(delta_write, obs)[-1]
    k, v, f, _ = next(iter(obs.steps()))
    M, _ = delta_write(M, P, k, v, f, 1.0)
    torch.testing.assert_close(read(M, k), v, rtol=0, atol=1e-6)


def test_outer_is_the_closed_sum():
    obs = make_observations(9, 3)
    later = torch.stack([obs.forgetting[:, i + 1 :].prod(-1) for i in range(9)], -1)
    expected = torch.einsum("tn,tnv,tnk->tvk", later * obs.importance, obs.values, obs.keys)
    torch.testing.assert_close(write_all(outer_write, obs)[-1][0], expected, rtol=0, atol=1e-14)


@pytest.mark.parametrize("write", [delta_write, outer_write])
def test_the_covariance_is_left_alone(write):
    obs = make_observations(1, 3)
    M, P = empty_memory(obs)
    assert write(M, P, *next(iter(obs.steps())))[1] is P


@pytest.mark.parametrize("write", [delta_write, outer_write])
def test_importance_0_only_forgets(write):
    obs = make_observations(4, 3).to(torch.float32)
    M, P = write_all(write, obs)[-1]
    k, v, f, w = next(iter(obs.steps()))
    assert torch.equal(write(M, P, k, v, f, 0 * w)[0], f[:, None, None] * M)


def test_rls_with_a_small_alpha_is_the_outer_product():
    obs = make_observations(9, 3, retention=1.0)
    alpha = 1e-7
    rls = write_all(rls_write, obs, alpha)[-1][0] / alpha
    outer = write_all(outer_write, obs)[-1][0]
    torch.testing.assert_close(rls, outer, rtol=0, atol=10 * 9 * alpha)
