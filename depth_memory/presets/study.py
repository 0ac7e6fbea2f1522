"""The quality study: every method at equal parameters, on one GPU, in minutes each.

Its protocol is docs/study.md. All networks have one budget of weights beside the embedding, that of
PreLN 12 x 512 with the usual MLP: whatever a stream brings, the MLP gives up.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from depth_memory import streams
from depth_memory.presets import counts
from depth_memory.presets.recipes import LDM, llama, recipe
from depth_memory.train import serial
from depth_memory.train.config import DataSpec, ModelSpec, Run

STEPS, ROWS, LENGTH = 1600, 32, 512
"""26.2M tokens."""
DATA = Path("data/study")
VOCAB_SIZE = 16_384
RATES = (1e-3, 2e-3, 4e-3)
GAINS = (0.3, 1.0, 3.0, 10.0)


class Shape(NamedTuple):
    """A network without its MLP's size."""

    depth: int
    width: int
    heads: int


WORKHORSE = Shape(12, 512, 8)
SHAPES = {"12x512": WORKHORSE, "24x360": Shape(24, 360, 6), "48x256": Shape(48, 256, 4)}
BUDGET = 12 * (4 * 512 * 512 + 3 * 512 * 1376)

MULTIPLE = 8
"""Of the MLP's size: what matrix units take without padding."""

METHODS: dict[str, dict[str, Any]] = {
    "preln": {"name": "preln"},
    "hc": {"name": "hc"},
    "mhc": {"name": "mhc"},
    "mhc-zero": {"name": "mhc", "init": "zero"},
    "denseformer": {"name": "denseformer"},
    "attnres": {"name": "attnres"},
    "block_attnres": {"name": "block_attnres"},
    **{rule: {"name": rule} for rule in LDM},
    **{f"{rule}-alone": {"name": rule, "residual": False} for rule in LDM},
}
"""What is compared, each at its own best rate."""


def matched(shape: Shape, stream: Any, budget: int = BUDGET) -> ModelSpec:
    """The network of a shape whose MLP makes room for what the stream brings.

    Args:
        shape: Depth, width and heads.
        stream: A stream's configuration, or a mapping with its `name`.
        budget: Weights of all layers and the stream together, norms apart; it is met to half of
            what 8 hidden channels of all MLPs cost, 0.3%.
    """
    depth, width, heads = shape
    brought = counts.count_parameters(stream, width=width, sites=2 * depth)
    ffn = _channels(shape, budget - brought - depth * 4 * width * width)
    fields: dict[str, Any] = {"heads": heads, "kv_heads": heads, "tie_embeddings": True}
    return llama(width, depth, ffn, stream, max_length=LENGTH, **fields)


def widened(shape: Shape, stream: Any) -> ModelSpec:
    """PreLN with the arithmetic of a stream at equal parameters: the control for compute."""
    depth, width, _ = shape
    costs = counts.count_stream(stream, width=width, sites=2 * depth).training_flops
    # a weight of a matrix product costs 6 FLOPs per token, forward and backward
    more = _channels(shape, costs / 6)
    plain = matched(shape, {"name": "preln"})
    return replace(plain, ffn=matched(shape, stream).ffn + more)


def _channels(shape: Shape, weights: float) -> int:
    """How many hidden channels of every layer's MLP have about so many weights."""
    return MULTIPLE * round(weights / (3 * shape.width * shape.depth) / MULTIPLE)


def study_preln() -> Run:
    """PreLN, 12 x 512, 26M tokens: what the runs of the study start from."""
    model = matched(WORKHORSE, {"name": "preln"})
    run = recipe("study", model, lr=2e-3, steps=STEPS, rows=ROWS, length=LENGTH, accumulate=1)
    data = DataSpec(directory=DATA)
    return replace(run, data=data, eval_every=0, eval_windows=1024, save_every=0, keep=1)


def point(model: ModelSpec) -> dict[str, Any]:
    """The fields that make `study-preln` a run of this network, for the axis of a sweep."""
    network, plain = serial.encode(model), serial.encode(study_preln().model)
    stream, usual = (streams.as_dict(c) for c in (model.stream, type(model.stream)()))
    changes = {k: v for k, v in network.items() if k != "stream" and v != plain[k]}
    changes |= {f"stream.{k}": v for k, v in stream.items() if v != usual[k]}
    return {"stream": model.stream.name, **{f"model.{k}": v for k, v in changes.items()}}


def study_rules() -> dict[str, Any]:
    """Least squares, delta rule and outer product, each over learning rate x gain."""
    rules = {rule: point(matched(WORKHORSE, {"name": rule})) for rule in LDM}
    axes = {"rule": rules, "model.stream.gain_init": list(GAINS), "optim.lr": list(RATES)}
    return {"preset": "study-preln", "axes": axes}


def study_methods() -> dict[str, Any]:
    """Every method and both controls over three learning rates."""
    methods = {name: point(matched(WORKHORSE, stream)) for name, stream in METHODS.items()}
    methods["preln-qk"] = {**methods["preln"], "model.family": "qwen3"}
    methods["preln-wide"] = point(widened(WORKHORSE, {"name": "ldm"}))
    return {"preset": "study-preln", "axes": {"method": methods, "optim.lr": list(RATES)}}


def study_depth() -> dict[str, Any]:
    """Five methods at three depths with equal parameters, over three learning rates."""
    points = {
        f"{shape}-{name}": point(matched(SHAPES[shape], METHODS[name]))
        for shape in SHAPES
        for name in ("preln", "hc", "mhc", "block_attnres", "ldm")
    }
    return {"preset": "study-preln", "axes": {"point": points, "optim.lr": list(RATES)}}


STUDY_FAMILIES = (study_rules, study_methods, study_depth)
