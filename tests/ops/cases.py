"""One call of every public op, for tests that hold for all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from depth_memory import ops
from tests.testing import make_observations, write_all

Call = tuple[Callable, tuple[Tensor, ...]]


def window(rule: str, P: Tensor, keys: Tensor, forgetting: Tensor, importance: Tensor) -> list:
    """The transitions of a few writes, through the public one-step functions."""
    transitions = []
    for k, f, w in zip(keys.unbind(-2), forgetting.unbind(-1), importance.unbind(-1), strict=True):
        if rule == "rls":
            transition, P = ops.rls_transition(P, k, f, w)
        else:
            step = {"delta": ops.delta_transition, "outer": ops.outer_transition}[rule]
            transition = step(k, f, w)
        transitions.append(transition)
    return transitions


def make_calls(
    tokens: int = 2, key_dim: int = 3, value_dim: int = 2, writes: int = 3
) -> dict[str, Call]:
    """Name -> (function, inputs): every input a float64 tensor that the function differentiates."""
    obs = make_observations(writes, tokens, key_dim=key_dim, value_dim=value_dim)
    M, P = write_all(ops.rls_write, obs)[-1]
    k, v, f, w = next(iter(obs.steps()))
    query = torch.randn(tokens, key_dim).double()
    state = (M, P, obs.keys, obs.values, obs.forgetting, obs.importance, query)
    alpha = torch.full((tokens,), 1.5).double()
    coef, sources = torch.randn(tokens, 2, 4).double(), torch.randn(tokens, 4, 5).double()
    q, norm_weight = torch.randn(2, 5).double()
    logits = torch.randn(tokens, 4, 4).double()
    calls: dict[str, Call] = {
        "rls_write": (ops.rls_write, (M, P, k, v, f, w)),
        "rls_write at importance 0": (ops.rls_write, (M, P, k, v, f, 0 * w)),
        "rls_write at key 0": (ops.rls_write, (M, P, 0 * k, v, f, w)),
        "delta_write": (lambda *a: ops.delta_write(*a)[0], (M, P, k, v, f, w)),
        "outer_write": (lambda *a: ops.outer_write(*a)[0], (M, P, k, v, f, w)),
        "read": (ops.read, (M, query)),
        "ridge_solve": (ops.ridge_solve, (*obs, alpha)),
        "mix": (ops.mix, (coef, sources)),
        "mix of a list": (lambda c, s: ops.mix(c, list(s.unbind(-2))), (coef, sources)),
        "attnres": (ops.attnres, (q, sources, norm_weight)),
        "attnres of a list": (
            lambda q, s, n: ops.attnres(q, list(s.unbind(-2)), n),
            (q, sources, norm_weight),
        ),
        "attnres_weights": (ops.attnres_weights, (q, sources, norm_weight)),
        "sinkhorn": (lambda x: ops.sinkhorn(x, 5), (logits,)),
    }
    for rule in ("rls", "delta", "outer"):

        def weights(K, f, w, alpha, q, rule=rule):
            return ops.depth_weights(K, f, w, alpha, q, rule=rule)

        def window_read(M, P, K, V, f, w, q, rule=rule):
            return ops.window_read(M, window(rule, P, K, f, w), list(V.unbind(-2)), q)

        def window_fold(M, P, K, V, f, w, rule=rule):
            return ops.window_fold(M, window(rule, P, K, f, w), list(V.unbind(-2)))

        calls[f"depth_weights of {rule}"] = (weights, (obs.keys, *obs[2:], alpha, query))
        calls[f"window_read of {rule}"] = (window_read, state)
        calls[f"window_fold of {rule}"] = (window_fold, state[:-1])
    return calls


NAMES = (
    *("rls_write", "rls_write at importance 0", "rls_write at key 0", "delta_write", "outer_write"),
    *("read", "ridge_solve", "mix", "mix of a list", "attnres", "attnres of a list"),
    *("attnres_weights", "sinkhorn"),
    *(
        f"{op} of {rule}"
        for rule in ("rls", "delta", "outer")
        for op in ("depth_weights", "window_read", "window_fold")
    ),
)
