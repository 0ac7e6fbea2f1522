"""The memory of an LDM, written once more in float64 from what its writers said."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn

from depth_memory.inspect import probe as probing
from depth_memory.inspect.measures import summary
from depth_memory.inspect.probe import names
from depth_memory.ops import delta_write, outer_write, read, rls_write
from depth_memory.streams.ldm import LDM
from depth_memory.streams.memory import Observation

RULES = {"ldm": rls_write, "ldm_delta": delta_write, "ldm_outer": outer_write}


def from_probe(probe: probing.Probe) -> list[dict[str, Any]]:
    """One row per write, in order of depth; see `writes`."""
    stream = probe.trunk.stream
    if not isinstance(stream, LDM):
        return []
    groups, width = stream.config.groups, stream.config.key_dim
    tokens = probe.input_ids.numel()
    first = probe.sources[0].detach()
    M = first.new_zeros(tokens, groups, stream.dim // groups, width, dtype=torch.float64)
    P = torch.eye(width, dtype=torch.float64, device=first.device)
    if stream.prior is not None:
        P = stream.prior(first).detach().double()
    rows = []
    for name, value, observation in _observations(probe):
        v = value.double().reshape(tokens, groups, -1)
        key, forgetting, importance = (part.detach().double() for part in observation)
        key, importance = key.flatten(0, -3), importance.flatten(0, -2)
        before = _error(v, M, key)
        M, P = RULES[stream.config.name](M, P, key, v, forgetting, importance)
        row = {
            "source": name,
            "importance": summary(importance),
            "forgetting": forgetting.tolist(),
            "error": summary(before),
            "error_after": summary(_error(v, M, key)),
            "memory_norm": summary(M.flatten(-2).norm(dim=-1)),
        }
        rows.append(row | (_condition(P) if stream.prior is not None else {}))
    return rows


def _observations(probe: probing.Probe) -> Iterator[tuple[str, Tensor, Observation]]:
    """What was written, in order: the name of its last source, the value, and where it went."""
    sources = [source.detach() for source in probe.sources]
    _, labels = names(len(sources) - 1)
    found = probe.observations
    if "stream.embedding_writer" in found:
        yield labels[0], sources[0], found["stream.embedding_writer"]
    per_block = probe.trunk.stream.config.sites == "block"
    for site in range(len(sources) - 1):
        port = "mlp_port" if site % 2 else "attn_port"
        writer = f"layers.{site // 2}.{port}.writer"
        if writer in found:
            value = sources[site + 1] + sources[site] if per_block else sources[site + 1]
            yield labels[site + 1], value, found[writer]


def _error(value: Tensor, M: Tensor, key: Tensor) -> Tensor:
    """|v - M k| / |v| per token and group; 0 for a value of 0."""
    tiny = torch.finfo(value.dtype).tiny
    return (value - read(M, key)).norm(dim=-1) / value.norm(dim=-1).clamp_min(tiny)


def _condition(P: Tensor) -> dict[str, Any]:
    """Median and worst over tokens, per group, of largest over smallest eigenvalue of P."""
    eigenvalues = torch.linalg.eigvalsh(P)
    ratio = eigenvalues[..., -1] / eigenvalues[..., 0]
    median = ratio.quantile(0.5, 0)
    return {"condition": {"median": median.tolist(), "worst": ratio.amax(0).tolist()}}


def writes(model: nn.Module, input_ids: Tensor) -> list[dict[str, Any]]:
    """Statistics of every write to the memory of a model, on some text.

    The writes are made once more in float64, one by one, from the keys, importances and forgetting
    of one run: what is measured is the fit itself, whatever window and precision the model keeps.

    Args:
        model: A causal language model of this package.
        input_ids: Token ids [batch, length].

    Returns:
        One row per write, the embedding's first, empty for streams without a memory. Per group:
        `importance`, `error` = |v - M k| / |v| before the write, `error_after` the same after it,
        and `memory_norm` = |M| (Frobenius) after it, each with `mean` and `std` over tokens;
        `forgetting`; and for least squares `condition`, largest over smallest eigenvalue of P after
        the write, `median` and `worst` over tokens.

    Raises:
        UserError: The model has no stream, there are no tokens, or a number is not finite.
    """
    return from_probe(probing.run(model, input_ids))
