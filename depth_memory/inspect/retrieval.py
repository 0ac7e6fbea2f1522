"""The exact weight with which every sublayer reads every earlier one."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from jaxtyping import Float
from torch import Tensor, nn

from depth_memory import streams
from depth_memory.inspect import probe as probing
from depth_memory.inspect.probe import names
from depth_memory.models.trunk import DepthModel


@dataclass(frozen=True)
class RetrievalMap:
    """How each read is made of sources: `read_l = sum_s weights[l, s] source_s`, exactly.

    Attributes:
        weights: [reads, sources, groups], the mean over tokens; 0 for sources yet to come.
        spread: Their standard deviation over tokens.
        share: [reads, sources], the mean over tokens of |weight source| / |read|.
        reads: Name of each read, from `attention 0` to `output`.
        sources: Name of each source, from `embedding` on.
        tokens: [reads, sources, kept, groups], the weights of the first tokens one by one.
    """

    weights: Float[Tensor, "reads sources groups"]
    spread: Float[Tensor, "reads sources groups"]
    share: Float[Tensor, "reads sources"]
    reads: list[str]
    sources: list[str]
    tokens: Float[Tensor, "reads sources kept groups"]


def token_weights(
    probe: probing.Probe, read: int, groups: int
) -> Float[Tensor, "sources tokens groups"]:
    """The weights of one read, for every source and token.

    With the coefficients fixed, a read is linear in the sources and channel by channel, so that its
    derivative with respect to a source is the weight itself.
    """
    target = probe.reads[read]
    if not target.requires_grad:
        raise RuntimeError("the read does not depend on any source")
    with torch.enable_grad():
        total = target.sum()
    gradients = torch.autograd.grad(total, probe.sources, retain_graph=True, allow_unused=True)
    filled = [
        torch.zeros_like(source) if gradient is None else gradient
        for source, gradient in zip(probe.sources, gradients, strict=True)
    ]
    return torch.stack([g.flatten(0, -2).unflatten(-1, (groups, -1)).mean(-1) for g in filled])


def from_probe(probe: probing.Probe, kept: int = 0) -> RetrievalMap:
    """The retrieval map of a forward pass that has been recorded."""
    groups = group_count(probe.trunk)
    means, spreads, shares, firsts = [], [], [], []
    for read in range(len(probe.reads)):
        weights = token_weights(probe, read, groups)
        means.append(weights.mean(1))
        spreads.append(weights.std(1, unbiased=False))
        shares.append(_shares(probe, read, weights))
        firsts.append(weights[:, :kept])
    reads, sources = names(len(probe.sources) - 1)
    return RetrievalMap(
        weights=torch.stack(means),
        spread=torch.stack(spreads),
        share=torch.stack(shares),
        reads=reads,
        sources=sources,
        tokens=torch.stack(firsts),
    )


def _shares(probe: probing.Probe, read: int, weights: Tensor) -> Float[Tensor, " sources"]:
    groups = weights.shape[-1]
    total = probe.reads[read].detach()
    if total.dim() > probe.sources[0].dim():  # lanes that are normed one by one
        total = total.sum(-2)
    size = total.flatten(0, -2).norm(dim=-1).clamp_min(torch.finfo(total.dtype).tiny)
    shares = []
    for source, weight in zip(probe.sources, weights, strict=True):
        grouped = source.detach().flatten(0, -2).unflatten(-1, (groups, -1))
        part = (weight[..., None] * grouped).flatten(-2).norm(dim=-1)
        shares.append((part / size).mean())
    return torch.stack(shares)


def group_count(trunk: DepthModel) -> int:
    """How many groups of channels have weights of their own."""
    return streams.as_dict(trunk.stream.config).get("groups", 1)


def retrieval_map(model: nn.Module, input_ids: Tensor, kept: int = 0) -> RetrievalMap:
    """The exact retrieval weights of a model on some text, for any stream.

    Args:
        model: A causal language model of this package.
        input_ids: Token ids [batch, length].
        kept: Of how many tokens, from the first on, the weights are also kept one by one.

    Returns:
        The weights, averaged over all tokens, in the dtype of the model's stream; an ordinary
        residual has weight 1 everywhere.

    Raises:
        UserError: The model has no stream, there are no tokens, or a number is not finite.
    """
    return from_probe(probing.run(model, input_ids), kept)
