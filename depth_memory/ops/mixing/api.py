"""The public functions of mixing: shapes checked, precision chosen, nothing else."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from depth_memory.errors import invalid
from depth_memory.ops import _check, _impl
from depth_memory.ops._precision import compute_dtype
from depth_memory.ops.mixing import reference, registered


def mix(
    coef: Float[Tensor, "*#tokens R S"],
    sources: Float[Tensor, "*#tokens S D"] | Sequence[Float[Tensor, "*#tokens D"]],
    *,
    dtype: torch.dtype | None = None,
    impl: _impl.Impl = "auto",
) -> Float[Tensor, "*tokens R D"]:
    """Weighted sums of source vectors: `out[r] = sum_s coef[r, s] sources[s]`.

    Every method of depth mixing is this, with coefficients of its own. Computes in float32, or
    float64 where an argument is. A list of sources is never stacked.

    Args:
        coef: Coefficients; leading axes broadcast against those of the sources.
        sources: The vectors, as one tensor or as a list of S tensors.
        dtype: Of the result; that of the sources if not given.
        impl: Which implementation runs.

    Raises:
        ValueError: The number of sources differs from the columns of `coef`, or is 0; their widths
            differ.
    """
    _check.check_rank("coef", coef, 2)
    count = sources.shape[-2] if isinstance(sources, Tensor) else len(sources)
    if count != coef.shape[-1] or count == 0:
        raise invalid("sources", count, f"as many as coef has columns ({coef.shape[-1]}), above 0")
    first = sources if isinstance(sources, Tensor) else sources[0]
    for source in () if isinstance(sources, Tensor) else sources:
        _check.check_dim("sources", source, -1, first.shape[-1], "the first")
    if _impl.resolve("mix", impl, coef.device) == "triton":
        listed = sources.unbind(-2) if isinstance(sources, Tensor) else sources
        return registered.mix_any(coef, list(listed), dtype or first.dtype)
    return reference.weighted_sum(coef, sources).to(dtype or first.dtype)


def attnres_weights(
    query: Float[Tensor, " D"],
    sources: Float[Tensor, "*tokens S D"] | Sequence[Float[Tensor, "*tokens D"]],
    norm_weight: Float[Tensor, " D"],
    eps: float = 1e-6,
) -> Float[Tensor, "*tokens S"]:
    """The weights of `attnres`: softmax over the sources, in float32 or float64."""
    return reference.depth_attention(query, _listed(query, sources, norm_weight), norm_weight, eps)


def attnres(
    query: Float[Tensor, " D"],
    sources: Float[Tensor, "*tokens S D"] | Sequence[Float[Tensor, "*tokens D"]],
    norm_weight: Float[Tensor, " D"],
    eps: float = 1e-6,
    *,
    impl: _impl.Impl = "auto",
) -> Float[Tensor, "*tokens D"]:
    """Attention over depth with a learned query (Attention Residuals, arXiv 2603.15031, eq. 2-4).

        h = sum_i softmax_i(query . (norm_weight * rms(v_i))) v_i

    The keys are normalised, the values are not. Weights and sum are computed in float32, or float64
    where an argument is; the result has the dtype of the sources.

    Args:
        query: The pseudo-query of the sublayer; zeros give the mean of the sources.
        sources: Embedding and earlier sublayer outputs, as one tensor or a list.
        norm_weight: Weight of the key norm.
        eps: Added to the mean square of a key.
        impl: Which implementation runs.

    Raises:
        ValueError: No source, or widths disagree.
    """
    listed = _listed(query, sources, norm_weight)
    if _impl.resolve("attnres", impl, listed[0].device) == "triton":
        return registered.attnres_any(query, listed, norm_weight, eps)
    weights = reference.depth_attention(query, listed, norm_weight, eps)
    return reference.weighted_sum(weights[..., None, :], sources)[..., 0, :].to(listed[0].dtype)


def _listed(query: Tensor, sources: Tensor | Sequence[Tensor], norm_weight: Tensor) -> list[Tensor]:
    """The sources as a list, once their widths and their number have been checked."""
    listed = list(sources.unbind(-2) if isinstance(sources, Tensor) else sources)
    if not listed:
        raise invalid("sources", 0, "at least one")
    width = listed[0].shape[-1]
    _check.check_dim("query", query, -1, width, "sources")
    _check.check_dim("norm_weight", norm_weight, -1, width, "sources")
    for source in listed:
        _check.check_dim("sources", source, -1, width, "the first")
    return listed


def sinkhorn(
    logits: Float[Tensor, "*tokens n_out n_in"],
    iterations: int = 20,
    *,
    impl: _impl.Impl = "auto",
) -> Float[Tensor, "*tokens n_out n_in"]:
    """A nearly doubly stochastic matrix from logits (mHC, arXiv 2512.24880, eq. 8-9).

    Columns and then rows of `exp(logits)` are normalised, `iterations` times, in the log domain.
    Rows come last: the sum over `n_in` is 1 to rounding, the sum over `n_out` only approximately.
    Computes in float32, or float64 if given, and returns the dtype of `logits`. Logits of -inf are
    zeros as long as no row and no column has nothing else; +inf is not a logit.

    Raises:
        ValueError: `iterations` is below 1.
    """
    _impl.resolve("sinkhorn", impl, logits.device)
    _check.check_rank("logits", logits, 2)
    if iterations < 1:
        raise invalid("iterations", iterations, "at least 1")
    dtype = compute_dtype((logits,))
    return reference.sinkhorn(logits.to(dtype), iterations).to(logits.dtype)
