"""What every sublayer reads, beside an ordinary residual, by depth."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from depth_memory.inspect import probe as probing
from depth_memory.inspect.probe import names


def summary(values: Tensor) -> dict[str, Any]:
    """Mean and standard deviation over tokens, per group, for values [..., G]."""
    flat = values.detach().float().reshape(-1, values.shape[-1])
    return {"mean": flat.mean(0).tolist(), "std": flat.std(0, unbiased=False).tolist()}


def rms(x: Tensor) -> float:
    """Root mean square over everything."""
    return x.detach().float().square().mean().sqrt().item()


def turned(x: Tensor, h: Tensor) -> float:
    """Mean over tokens of the sine of the angle between vectors [..., D]; 0 for a vector of 0."""
    x, h = x.detach().double(), h.detach().double()
    tiny = torch.finfo(x.dtype).tiny
    # by the rest, not by 1 - cos^2, which would lose half of the digits of a small angle
    along = (x * h).sum(-1, keepdim=True) / h.square().sum(-1, keepdim=True).clamp_min(tiny)
    rest = (x - along * h).norm(dim=-1) / x.norm(dim=-1).clamp_min(tiny)
    return rest.mean().item()


def from_probe(probe: probing.Probe) -> list[dict[str, Any]]:
    """One row per read, in order of depth; see `statistics`."""
    reads, _ = names(len(probe.sources) - 1)
    rows: list[dict[str, Any]] = []
    residual = torch.zeros_like(probe.sources[0])
    for read, name in enumerate(reads):
        residual = residual + probe.sources[read].detach()
        seen = probe.reads[read].detach()
        row: dict[str, Any] = {"read": name, "input_rms": rms(seen), "residual_rms": rms(residual)}
        if seen.shape == residual.shape:
            row["beyond_residual"] = rms(seen - residual) / max(rms(residual), 1e-30)
            row["turned"] = turned(seen, residual)
        if read + 1 < len(probe.sources):
            row["output_rms"] = rms(probe.sources[read + 1])
        rows.append(row | _maps(probe, read, last=name == "output"))
    return rows


def _maps(probe: probing.Probe, read: int, *, last: bool) -> dict[str, Any]:
    """Gate and gain of the port at one read, where it has them."""
    port = "attn_port" if read % 2 == 0 else "mlp_port"
    reader = "stream.final_reader" if last else f"layers.{read // 2}.{port}.reader"
    row: dict[str, Any] = {}
    if reader in probe.gates:
        row["gate"] = summary(probe.gates[reader])
    gains = dict(probe.trunk.named_parameters())
    if f"{reader}.gain" in gains:
        row["gain"] = gains[f"{reader}.gain"].detach().float().tolist()
    return row


def statistics(model: nn.Module, input_ids: Tensor) -> list[dict[str, Any]]:
    """Statistics of every read of a model on some text.

    With x the input of a sublayer before its norm and h the ordinary residual, which is the plain
    sum of the embedding and all earlier outputs of the same run, both [tokens, D]:

    Args:
        model: A causal language model of this package.
        input_ids: Token ids [batch, length].

    Returns:
        One row per read, the last for the final norm: `input_rms` of x, `residual_rms` of h,
        `output_rms` of what the sublayer wrote, `beyond_residual` = |x - h| / |h|, `turned` = the
        sine of the angle between x and h (what is left once a norm has removed all scale), and for
        memory streams `gate` (`mean` and `std` over tokens) and `gain` per group. All have no unit.

    Raises:
        UserError: The model has no stream, there are no tokens, or a number is not finite.
    """
    return from_probe(probing.run(model, input_ids))
