"""Everything that a report shows, as one value: the file `inspect.json`, and the page's data."""

from __future__ import annotations

import base64
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict
from typing import Any

import numpy as np
from torch import Tensor, nn

from depth_memory import streams
from depth_memory.errors import within
from depth_memory.inspect import ablations, measures, replay, retrieval
from depth_memory.inspect import probe as probing
from depth_memory.inspect.retrieval import RetrievalMap

FORMAT = 2
BUDGET = 1_500_000
"""Bytes that the weights of single tokens may take of each model's part."""
STEPS = 2**15 - 1
"""Of the scale on which they are kept."""
DIGITS = 6
"""Significant ones, of all other measured numbers."""

Progress = Callable[[str, int, int], None]


def describe(
    models: Sequence[tuple[str, nn.Module]],
    input_ids: Tensor,
    *,
    title: str,
    words: Sequence[str] | None = None,
    kept: int = 128,
    ablate: bool = True,
    on_progress: Progress | None = None,
) -> dict[str, Any]:
    """What the streams of models do on the same text; arguments and errors as `report`."""
    kept = min(kept, input_ids.shape[-1], *(affordable(model) for _, model in models))
    words = [f"[{i}]" for i in input_ids[0].tolist()] if words is None else list(words)
    entries = []
    for name, model in models:
        with within(name):
            entries.append(_entry(name, model, input_ids, kept, ablate, on_progress))
    text = {"rows": input_ids.shape[0], "length": input_ids.shape[1], "words": words, "kept": kept}
    return {"format": FORMAT, "title": title, "text": text, "models": entries}


def affordable(model: nn.Module) -> int:
    """Of how many tokens the single weights fit into the budget; at least one."""
    reads = len(ablations.readers(model))
    groups = retrieval.group_count(probing.trunk_of(model))
    return max(BUDGET // (reads * (reads + 1) * groups), 1)  # pairs, at 2 bytes each


def _entry(
    name: str,
    model: nn.Module,
    input_ids: Tensor,
    kept: int,
    ablate: bool,
    on_progress: Progress | None,
) -> dict[str, Any]:
    probe = probing.run(model, input_ids)
    found = retrieval.from_probe(probe, kept)
    losses = None
    if ablate and input_ids.shape[-1] > 1:
        told = None if on_progress is None else lambda done, of: on_progress(name, done, of)
        losses = asdict(ablations.ablation(model, input_ids, told))
    measured = {
        "weights": found.weights.tolist(),
        "spread": found.spread.tolist(),
        "share": found.share.tolist(),
        "statistics": measures.from_probe(probe),
        "writes": replay.from_probe(probe),
    }
    return {
        "name": name,
        "stream": streams.as_dict(probe.trunk.stream.config),
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "groups": found.weights.shape[-1],
        "reads": found.reads,
        "sources": found.sources,
        **rounded(measured),
        "token_weights": packed(found),
        "ablation": losses,
    }


def rounded(value: Any) -> Any:
    """`value` with every float to `DIGITS` significant digits."""
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: rounded(item) for key, item in value.items()}
    return [rounded(item) for item in value] if isinstance(value, list) else value


def packed(found: RetrievalMap) -> dict[str, Any]:
    """The weights of single tokens, in whole steps of 1 / 32767 of the largest of each read.

    `data` is base64 of little-endian int16: read by read, the sources up to the read, tokens,
    groups. A weight is its number times the `scale` of its read.
    """
    weights = found.tokens.double().cpu().numpy()
    scales, parts = [], []
    for read, rows in enumerate(weights):
        seen = rows[: read + 1]
        scale = float(np.abs(seen).max(initial=0.0)) / STEPS or 1.0
        scales.append(scale)
        parts.append(np.rint(seen / scale).astype("<i2").tobytes())
    kept = weights.shape[2]
    return {"kept": kept, "scale": scales, "data": base64.b64encode(b"".join(parts)).decode()}


def unpack(entry: Mapping[str, Any]) -> np.ndarray:
    """The weights of single tokens of one of `models` in `inspect.json`.

    Args:
        entry: The model's part.

    Returns:
        float64 [reads, sources, kept, groups], within 1 / 65534 of the largest of each read; 0 for
        sources yet to come.
    """
    reads, groups, stored = len(entry["reads"]), entry["groups"], entry["token_weights"]
    numbers = np.frombuffer(base64.b64decode(stored["data"]), "<i2")
    result = np.zeros((reads, reads, stored["kept"], groups))
    lower = np.tril_indices(reads)
    result[lower] = numbers.reshape(len(lower[0]), stored["kept"], groups)
    return result * np.array(stored["scale"])[:, None, None, None]
