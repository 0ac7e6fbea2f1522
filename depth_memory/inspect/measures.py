"""What the learned maps of a stream do, sublayer by sublayer."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from depth_memory.inspect import probe as probing
from depth_memory.inspect.retrieval import names


def summary(values: Tensor) -> dict[str, Any]:
    """Mean and standard deviation over tokens, per group, for values [..., G]."""
    flat = values.detach().float().reshape(-1, values.shape[-1])
    return {"mean": flat.mean(0).tolist(), "std": flat.std(0, unbiased=False).tolist()}


def rms(x: Tensor) -> float:
    """Root mean square over everything."""
    return x.detach().float().square().mean().sqrt().item()


def from_probe(probe: probing.Probe) -> list[dict[str, Any]]:
    """One row per read, in order of depth; see `statistics`."""
    reads, _ = names(len(probe.sources) - 1)
    rows: list[dict[str, Any]] = []
    residual = torch.zeros_like(probe.sources[0])
    for read, name in enumerate(reads):
        residual = residual + probe.sources[read].detach()
        seen = probe.reads[read].detach()
        row: dict[str, Any] = {"read": name, "input_rms": rms(seen)}
        if seen.shape == residual.shape:
            row["beyond_residual"] = rms(seen - residual) / max(rms(residual), 1e-30)
        if read + 1 < len(probe.sources):
            row["output_rms"] = rms(probe.sources[read + 1])
        rows.append(row | _maps(probe, read, last=name == "output"))
    return rows


def _maps(probe: probing.Probe, read: int, *, last: bool) -> dict[str, Any]:
    """Gate, gain, importance and forgetting of the port at one read, where it has them."""
    port = "attn_port" if read % 2 == 0 else "mlp_port"
    prefix = f"layers.{read // 2}.{port}."
    reader = "stream.final_reader" if last else f"{prefix}reader"
    row: dict[str, Any] = {}
    if reader in probe.gates:
        row["gate"] = summary(probe.gates[reader])
    gains = dict(probe.trunk.named_parameters())
    if f"{reader}.gain" in gains:
        row["gain"] = gains[f"{reader}.gain"].detach().float().tolist()
    observation = None if last else probe.observations.get(f"{prefix}writer")
    if observation is not None:
        row["importance"] = summary(observation.importance)
        row["forgetting"] = observation.forgetting.detach().float().tolist()
    return row


def statistics(model: nn.Module, input_ids: Tensor) -> list[dict[str, Any]]:
    """Statistics of every read of a model on some text.

    Args:
        model: A causal language model of this package.
        input_ids: Token ids [batch, length].

    Returns:
        One row per read, the last for the final norm: `input_rms` before the norm, `output_rms` of
        the sublayer, `beyond_residual` (size of the input's difference from an ordinary residual,
        relative to that residual), and for memory streams `gate`, `gain`, `importance` and
        `forgetting` per group.

    Raises:
        UserError: The model has no stream.
    """
    return from_probe(probing.run(model, input_ids))
