"""The public functions of the regression memory: shapes checked, precision chosen, nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import torch
from jaxtyping import Float
from torch import Tensor

from depth_memory.errors import choose, invalid
from depth_memory.ops import _check, _impl
from depth_memory.ops._precision import as_scalar, compute_dtype, without_autocast
from depth_memory.ops.memory import reference
from depth_memory.ops.memory.reference import Transition
from depth_memory.ops.mixing.reference import weighted_sum

Rule = Literal["rls", "delta", "outer"]
Scalar = Float[Tensor, "*#tokens"] | float


def rls_write(
    M: Float[Tensor, "*#tokens Dv Dk"],
    P: Float[Tensor, "*#tokens Dk Dk"],
    key: Float[Tensor, "*#tokens Dk"],
    value: Float[Tensor, "*#tokens Dv"],
    forgetting: Scalar,
    importance: Scalar,
    *,
    impl: _impl.Impl = "auto",
) -> tuple[Float[Tensor, "*tokens Dv Dk"], Float[Tensor, "*tokens Dk Dk"]]:
    """Fold one observation into the exact weighted ridge fit over depth.

    With `u = P k`, `den = forgetting + importance k'u` and `b = importance / den`:

        M' = M + b (v - M k) u'        P' = (P - b u u') / forgetting

    Leading axes broadcast and may be absent. Computes in float32, or float64 where an argument is;
    `M` and `P` keep their own dtypes. In float32 the fit holds its accuracy while `alpha` over the
    product of all `forgetting` stays below about 1e3: in directions that no key excites P grows to
    that. The method is recursive least squares (any text on adaptive filtering).

    Args:
        M: The memory; zeros before the first write.
        P: The inverse key covariance; `alpha` times the identity before the first write.
        key: Where to write.
        value: What to write.
        forgetting: Weight of everything written before, in (0, 1]; 1 is ordinary least squares.
        importance: Weight of this observation, at least 0; 0 only forgets.
        impl: Which implementation runs.

    Returns:
        The new memory and the new inverse covariance, symmetric to the last bit if `P` is.

    Raises:
        ValueError: Shapes disagree, or a Python float is out of range.
    """
    _impl.resolve("rls_write", impl, M.device)
    _check_write(M, P, key, value)
    _check.check_forgetting(forgetting)
    _check.check_importance(importance)
    dtype = compute_dtype((M, P, key, value, forgetting, importance))
    f, w = as_scalar(forgetting, M, dtype), as_scalar(importance, M, dtype)
    transition, next_P = reference.rls_transition(P.to(dtype), key.to(dtype), f, w)
    next_M = reference.apply(M.to(dtype), transition, value.to(dtype))
    return next_M.to(M.dtype), next_P.to(P.dtype)


def delta_write(
    M: Float[Tensor, "*#tokens Dv Dk"],
    P: Float[Tensor, "*#tokens Dk Dk"],
    key: Float[Tensor, "*#tokens Dk"],
    value: Float[Tensor, "*#tokens Dv"],
    forgetting: Scalar,
    importance: Scalar,
    *,
    impl: _impl.Impl = "auto",
) -> tuple[Float[Tensor, "*tokens Dv Dk"], Float[Tensor, "*#tokens Dk Dk"]]:
    """Take one gradient step on the newest observation instead of solving the fit.

        M' = forgetting M + importance (v - forgetting M k) k'

    Stable for unit keys and importance in [0, 1]. `P` is returned as it came. Arguments, dtypes and
    errors are those of `rls_write`; a Python-float importance must not exceed 1.
    """
    _impl.resolve("delta_write", impl, M.device)
    _check.check_importance(importance, at_most=1.0)
    return _first_order_write("delta", M, P, key, value, forgetting, importance), P


def outer_write(
    M: Float[Tensor, "*#tokens Dv Dk"],
    P: Float[Tensor, "*#tokens Dk Dk"],
    key: Float[Tensor, "*#tokens Dk"],
    value: Float[Tensor, "*#tokens Dv"],
    forgetting: Scalar,
    importance: Scalar,
    *,
    impl: _impl.Impl = "auto",
) -> tuple[Float[Tensor, "*tokens Dv Dk"], Float[Tensor, "*#tokens Dk Dk"]]:
    """Add the outer product of value and key, taking the Gram matrix of the keys for the identity.

        M' = forgetting M + importance v k'

    `P` is returned as it came. Arguments, dtypes and errors are those of `rls_write`.
    """
    _impl.resolve("outer_write", impl, M.device)
    _check.check_importance(importance)
    return _first_order_write("outer", M, P, key, value, forgetting, importance), P


def read(
    M: Float[Tensor, "*#tokens Dv Dk"],
    query: Float[Tensor, "*#tokens Dk"],
    *,
    impl: _impl.Impl = "auto",
) -> Float[Tensor, "*tokens Dv"]:
    """What the memory predicts at `query`: `M q`, in the dtype of `M`.

    Raises:
        ValueError: The key dimensions of `M` and `query` differ.
    """
    _impl.resolve("read", impl, M.device)
    _check.check_rank("M", M, 2)
    _check.check_dim("query", query, -1, M.shape[-1], "M")
    dtype = compute_dtype((M, query))
    return (M.to(dtype) * query.to(dtype)[..., None, :]).sum(-1).to(M.dtype)


def ridge_solve(
    keys: Float[Tensor, "*#tokens n Dk"],
    values: Float[Tensor, "*#tokens n Dv"],
    forgetting: Float[Tensor, "*#tokens n"],
    importance: Float[Tensor, "*#tokens n"],
    alpha: Scalar,
) -> Float[Tensor, "*tokens Dv Dk"]:
    """The fit that `rls_write` maintains, by a direct solve.

    The minimiser over M of

        sum_i omega_i w_i |v_i - M k_i|^2 + omega |M|^2 / alpha

    where `omega_i` is the product of the forgetting of all later writes and `omega` that of all.

    Args:
        keys: One key per write, in order of depth.
        values: One value per write.
        forgetting: One factor per write, in (0, 1].
        importance: One weight per write, at least 0.
        alpha: Inverse strength of the ridge, above 0.

    Returns:
        The fit, in float32, or float64 where an argument is.

    Raises:
        ValueError: Shapes disagree, or `alpha` is not positive.
    """
    _check_sequence(keys, forgetting, importance)
    _check.check_dim("values", values, -2, keys.shape[-2], "keys")
    _check.check_alpha(alpha)
    dtype = compute_dtype((keys, values, forgetting, importance, alpha))
    with without_autocast(keys):
        args = (x.to(dtype) for x in (keys, values, forgetting, importance))
        return reference.ridge(*args, as_scalar(alpha, keys, dtype))


def depth_weights(
    keys: Float[Tensor, "*#tokens n Dk"],
    forgetting: Float[Tensor, "*#tokens n"],
    importance: Float[Tensor, "*#tokens n"],
    alpha: Scalar,
    query: Float[Tensor, "*#tokens Dk"],
    *,
    rule: Rule = "rls",
) -> Float[Tensor, "*tokens n"]:
    """The dual form of a read: how much of each written value it returns.

    A read after n writes equals `sum_i c_i v_i` exactly, and `c` does not involve the values.

    Args:
        keys: One key per write, in order of depth.
        forgetting: One factor per write, in (0, 1].
        importance: One weight per write, at least 0.
        alpha: Start of the inverse covariance; used by `rls` alone.
        query: Where to read.
        rule: Which write rule, `rls`, `delta` or `outer`.

    Returns:
        The weights c, in float32, or float64 where an argument is.

    Raises:
        ValueError: Shapes disagree, `alpha` is not positive, or the rule is unknown.
    """
    choose("rule", rule, ("rls", "delta", "outer"))
    _check_sequence(keys, forgetting, importance)
    _check.check_dim("query", query, -1, keys.shape[-1], "keys")
    _check.check_alpha(alpha)
    dtype = compute_dtype((keys, forgetting, importance, alpha, query))
    keys, forgetting, importance, query = (
        x.to(dtype) for x in (keys, forgetting, importance, query)
    )
    eye = torch.eye(keys.shape[-1], dtype=dtype, device=keys.device)
    P = as_scalar(alpha, keys, dtype)[..., None, None] * eye
    transitions = reference.scan(rule, P, keys, forgetting, importance)
    weights, rest = reference.sweep(transitions, query[..., None, :])
    return torch.cat(weights, -1) if weights else rest[..., 0, :0]


def window_read(
    M: Float[Tensor, "*#tokens Dv Dk"] | None,
    transitions: Sequence[Transition],
    values: Sequence[Float[Tensor, "*#tokens Dv"]],
    query: Float[Tensor, "*#tokens Dk"],
) -> Float[Tensor, "*tokens Dv"]:
    """Read a memory whose last writes have not been folded in.

    Args:
        M: The memory before the window; None stands for an empty one, which is not visited.
        transitions: The writes since, oldest first.
        values: The value of each of them.
        query: Where to read.

    Returns:
        What `read` would return after the writes, in the compute dtype (float32 or float64).

    Raises:
        ValueError: `transitions` and `values` differ in number, or key dimensions disagree.
    """
    _check_window(M, transitions, values)
    if transitions:
        _check.check_dim("query", query, -1, transitions[0].gain.shape[-1], "the keys written")
    weights, rest = reference.sweep(transitions, query[..., None, :])
    parts = [] if M is None else [weighted_sum(rest, M.mT)]
    if values:
        parts.append(weighted_sum(torch.stack(weights, -1), list(values)))
    if not parts:
        raise invalid("window", "no memory and no writes", "a memory or at least one write")
    return sum(parts[1:], parts[0])[..., 0, :]


def window_fold(
    M: Float[Tensor, "*#tokens Dv Dk"] | None,
    transitions: Sequence[Transition],
    values: Sequence[Float[Tensor, "*#tokens Dv"]],
) -> Float[Tensor, "*tokens Dv Dk"]:
    """Fold a window of writes into the memory: `M A + V B`, with one visit to each.

    Arguments, dtype and errors are those of `window_read`; the window must not be empty.
    """
    _check_window(M, transitions, values)
    if not values:
        raise invalid("window", 0, "at least one write")
    gain = transitions[0].gain
    eye = torch.eye(gain.shape[-1], dtype=gain.dtype, device=gain.device)
    weights, rest = reference.sweep(transitions, eye)
    folded = weighted_sum(torch.stack(weights, -1), list(values))
    if M is not None:
        folded = folded + weighted_sum(rest, M.mT)
    return folded.mT


def _first_order_write(
    rule: str,
    M: Tensor,
    P: Tensor,
    key: Tensor,
    value: Tensor,
    forgetting: Tensor | float,
    importance: Tensor | float,
) -> Tensor:
    _check_write(M, P, key, value)
    _check.check_forgetting(forgetting)
    dtype = compute_dtype((M, key, value, forgetting, importance))
    f, w = as_scalar(forgetting, M, dtype), as_scalar(importance, M, dtype)
    step = {"delta": reference.delta_transition, "outer": reference.outer_transition}[rule]
    return reference.apply(M.to(dtype), step(key.to(dtype), f, w), value.to(dtype)).to(M.dtype)


def _check_write(M: Tensor, P: Tensor, key: Tensor, value: Tensor) -> None:
    _check.check_rank("M", M, 2)
    _check.check_dim("P", P, -1, M.shape[-1], "M")
    _check.check_dim("P", P, -2, M.shape[-1], "M")
    _check.check_dim("key", key, -1, M.shape[-1], "M")
    _check.check_dim("value", value, -1, M.shape[-2], "M")


def _check_sequence(keys: Tensor, forgetting: Tensor, importance: Tensor) -> None:
    _check.check_rank("keys", keys, 2)
    _check.check_dim("forgetting", forgetting, -1, keys.shape[-2], "keys")
    _check.check_dim("importance", importance, -1, keys.shape[-2], "keys")


def _check_window(
    M: Tensor | None, transitions: Sequence[Transition], values: Sequence[Tensor]
) -> None:
    if len(transitions) != len(values):
        raise invalid("values", len(values), f"{len(transitions)}, one per transition")
    if M is not None and transitions:
        _check.check_dim("M", M, -1, transitions[0].gain.shape[-1], "the keys written")
