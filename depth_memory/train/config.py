"""The configuration of a run: frozen values, checked before anything is written.

A run is described by one `Run`. Its fields say what is trained (`model`, `data`), how (`optim`,
`schedule`, sizes, precision, seed) and what is kept (`out`, evaluation, checkpoints, loggers). The
meaning of a run does not depend on how it is spread: `rows` counts sequences per optimiser step
over all processes and all micro-batches.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import torch

from depth_memory import streams
from depth_memory.errors import SEEDS, Range, check_ranges, invalid
from depth_memory.streams.base import EPS, MAX_SITES, MAX_WIDTH
from depth_memory.train import serial
from depth_memory.train.loss import CHUNK

Logger = Literal["tensorboard", "wandb", "trackio"]
EvalBy = Literal["windows", "documents"]

MAY_CHANGE = (
    "out",
    "data.directory",
    "data.verify",
    "device",
    "compile",
    "checkpointing",
    "checkpoint_every",
    "replicas",
    "accumulate",
    "loss_chunk",
    "eval_every",
    "eval_by",
    "eval_windows",
    "save_every",
    "keep",
    "async_save",
    "timeout",
    "log_every",
    "loggers",
    "model.stream.impl",
)
"""Fields that a resume may change: where things are, what is reported, and how the same step is
computed. `steps` and `schedule` may change as far as they change no learning rate already used."""

MAX_STEPS = 10**9
RATES = Range(0.0, 10.0, above=True)


@dataclass(frozen=True, kw_only=True)
class ModelSpec:
    """The network; its vocabulary comes with the data."""

    family: Literal["llama", "qwen3"] = "qwen3"
    """Whose attention, MLP and norms; `qwen3` also normalises queries and keys."""
    width: Annotated[int, Range(1, MAX_WIDTH)] = 256
    """Model dimension D."""
    depth: Annotated[int, Range(1, MAX_SITES // 2)] = 6
    """Number of layers, two sublayers each."""
    heads: Annotated[int, Range(1, 4096)] = 4
    """Query heads."""
    kv_heads: Annotated[int, Range(1, 4096)] = 4
    """Key and value heads; divides `heads`."""
    head_dim: Annotated[int | None, Range(2, 4096)] = None
    """Size of a head; width / heads where not given."""
    ffn: Annotated[int, Range(1, 2**20)] = 768
    """Hidden size of the gated MLP."""
    tie_embeddings: bool = True
    """Whether the head is the embedding."""
    rope_theta: Annotated[float, Range(1.0, 1e12)] = 10_000.0
    """Base of the rotary frequencies."""
    norm_eps: Annotated[float, EPS] = 1e-6
    """Epsilon of the RMS norms."""
    init_std: Annotated[float, Range(0.0, 1.0, above=True)] = 0.02
    """Standard deviation of the initial matrices."""
    max_length: Annotated[int, Range(1, 2**24)] = 2048
    """Position limit in tokens."""
    stream: Any = field(default_factory=lambda: streams.resolve({"name": "ldm"}))
    """What carries information across depth: a stream's config, or a dict with its `name`."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "stream", streams.resolve(self.stream))

    def validate(self) -> None:
        """Raise the one-line error of the first field out of range."""
        check_ranges(self, "model.")
        if self.heads % self.kv_heads:
            raise invalid("model.kv_heads", self.kv_heads, f"a divisor of heads = {self.heads}")
        if self.head_dim is None and self.width % self.heads:
            raise invalid("model.heads", self.heads, f"a divisor of width = {self.width}")
        if self.head_size < 2 or self.head_size % 2:
            raise invalid("model.head_dim", self.head_size, "an even number of at least 2")
        with torch.device("meta"):
            streams.build(self.stream, self.width, 2 * self.depth).port(0)

    @property
    def head_size(self) -> int:
        """Size of a head in channels."""
        return self.width // self.heads if self.head_dim is None else self.head_dim


@dataclass(frozen=True, kw_only=True)
class DataSpec:
    """Where the tokens are."""

    directory: Path | None = None
    """A directory written by `depth-memory data`; the embedded corpus where not given."""
    verify: bool = True
    """Whether every shard's checksum is compared before the first step."""


@dataclass(frozen=True, kw_only=True)
class OptimSpec:
    """AdamW, or Muon for the backbone's matrices beside it."""

    name: Literal["adamw", "muon"] = "adamw"
    """`muon` updates the matrices of attention and MLP by Muon; embeddings, head, norms and
    everything of the stream stay with AdamW."""
    lr: Annotated[float, RATES] = 1e-3
    """Peak learning rate."""
    betas: Annotated[tuple[float, float], Range(0.0, 1.0, below=True)] = (0.9, 0.95)
    """Decay of the first and second moment."""
    eps: Annotated[float, EPS] = 1e-8
    """Added to the root of the second moment."""
    weight_decay: Annotated[float, Range(0.0, 1e3)] = 0.1
    """Decoupled weight decay, per unit of learning rate."""
    decay: Literal["matrices", "all"] = "matrices"
    """What decays: matrices that are not embeddings, or everything. What a stream excludes from
    decay never does."""
    clip: Annotated[float, Range(0.0, 1e9)] = 1.0
    """Largest norm of the whole gradient; 0 leaves it alone."""
    stream_lr: Annotated[float | None, RATES] = None
    """Peak learning rate of what belongs to the stream and not to the backbone; `lr` where not
    given. The schedule scales both."""
    muon_lr: Annotated[float | None, RATES] = None
    """Peak learning rate of what Muon updates; `lr` where not given. An update is scaled to the
    size of one by AdamW, so that the same rate does for both."""
    muon_momentum: Annotated[float, Range(0.0, 1.0, below=True)] = 0.95
    """Decay of Muon's momentum, which is Nesterov's."""

    def validate(self) -> None:
        """Raise the one-line error of the first field out of range."""
        check_ranges(self, "optim.")
        if self.name != "muon" and self.muon_lr is not None:
            raise invalid("optim.muon_lr", self.muon_lr, "none, unless optim.name is muon")


@dataclass(frozen=True, kw_only=True)
class ScheduleSpec:
    """The learning rate over the steps, as a factor of its peak."""

    kind: Literal["cosine", "wsd"] = "cosine"
    """`cosine` falls from the end of the warmup to the last step; `wsd` (warmup, stable, decay)
    holds the peak and falls linearly at the end."""
    warmup: Annotated[int, Range(0, MAX_STEPS)] = 100
    """Steps of linear rise from 0."""
    decay: Annotated[float, Range(0.0, 1.0)] = 0.2
    """Fraction of all steps in which `wsd` falls; `cosine` does not use it."""
    floor: Annotated[float, Range(0.0, 1.0)] = 0.1
    """The factor of the last step."""

    def validate(self, steps: int) -> None:
        """Raise the one-line error of the first field out of range for a run of `steps`."""
        check_ranges(self, "schedule.")
        if self.warmup > steps:
            raise invalid("schedule.warmup", self.warmup, f"0 to steps = {steps}")
        if self.kind == "wsd" and self.warmup + round(self.decay * steps) > steps:
            raise invalid("schedule.decay", self.decay, "warmup + decay * steps within steps")


@dataclass(frozen=True, kw_only=True)
class Run:
    """One training run, whole: a value that can be saved, compared and repeated."""

    model: ModelSpec = field(default_factory=ModelSpec)
    data: DataSpec = field(default_factory=DataSpec)
    optim: OptimSpec = field(default_factory=OptimSpec)
    schedule: ScheduleSpec = field(default_factory=ScheduleSpec)
    origin: Path | None = None
    """A saved model to go on from, which `model` then describes; `--from` sets both. Its directory
    is read when the run begins, and not again."""
    freeze: Literal["none", "backbone"] = "none"
    """What is not trained: nothing, or all that does not belong to the stream."""
    steps: Annotated[int, Range(1, MAX_STEPS)] = 1000
    """Optimiser steps."""
    rows: Annotated[int, Range(1, 2**20)] = 32
    """Sequences per optimiser step, over all processes and micro-batches."""
    length: Annotated[int, Range(1, 2**24)] = 256
    """Tokens predicted per sequence."""
    accumulate: Annotated[int, Range(1, 2**20)] = 1
    """Micro-batches per step and process; changes memory and rounding, nothing else."""
    precision: Literal["float32", "bfloat16"] = "float32"
    """What the network computes in. The optimiser's weights and moments are float32 in both."""
    loss_chunk: Annotated[int, Range(0, 2**30)] = CHUNK
    """Tokens of a micro-batch whose logits exist at a time; 0 for all of them. Changes memory and
    rounding, nothing else."""
    checkpointing: bool = False
    """Whether activations are recomputed in the backward pass."""
    checkpoint_every: Annotated[int, Range(1, MAX_SITES)] = 1
    """With `checkpointing`: of how many layers one is recomputed."""
    replicas: Annotated[int, Range(1, 2**20)] = 1
    """Copies of the network among the processes, each spread over an equal share of them (HSDP). On
    several machines, as many as machines keep all but gradients within one."""
    compile: bool = False
    """Whether each layer's parts are compiled; pays on a GPU."""
    device: Literal["auto", "cpu", "cuda"] = "auto"
    """`auto` takes a GPU where there is one."""
    seed: Annotated[int, SEEDS] = 0
    """Start of every random number; data order and dropout are functions of it and the step."""
    out: Path = Path("runs/default")
    """Directory of this run and of no other."""
    eval_every: Annotated[int, Range(0, MAX_STEPS)] = 200
    """Steps between evaluations; 0 evaluates at the end only."""
    eval_by: EvalBy = "windows"
    """What is predicted in an evaluation: `windows` over the documents one after the other, or the
    first `length` tokens of each of the `documents`, which is DepthBench's definition."""
    eval_windows: Annotated[int | None, Range(1, 2**40)] = None
    """How many validation windows of `length`, or documents, are read; all where not given."""
    save_every: Annotated[int, Range(0, MAX_STEPS)] = 200
    """Steps between checkpoints; 0 saves at the end only."""
    keep: Annotated[int, Range(1, MAX_STEPS)] = 2
    """How many of the newest checkpoints stay."""
    async_save: bool = False
    """Whether checkpoints are written beside the steps, from a copy in the memory of the first
    process, which takes three times the bytes of the float32 weights."""
    timeout: Annotated[float, Range(1, 10**6)] = 1800.0
    """Seconds that a step of several processes may take before one is taken to hang, which ends the
    run. What they wait for between steps, such as a checkpoint, may take twice that."""
    log_every: Annotated[int, Range(1, MAX_STEPS)] = 1
    """Steps between records in `metrics.jsonl`."""
    loggers: tuple[Logger, ...] = ()
    """Where metrics go beside `metrics.jsonl`."""

    def validate(self) -> None:
        """Check every field.

        Raises:
            UserError: One line with the first field out of range, its value and what is allowed.
        """
        serial.decode(Run, serial.encode(self))
        self.model.validate()
        self.optim.validate()
        check_ranges(self)
        if self.freeze != "none" and self.origin is None:
            raise invalid("freeze", self.freeze, "none, for a model that is not trained yet")
        self.schedule.validate(self.steps)
        if self.length > self.model.max_length:
            limit = f"1 to the position limit model.max_length = {self.model.max_length}"
            raise invalid("length", self.length, limit)
        if self.eval_by == "documents" and self.length < 2:
            raise invalid("length", self.length, "at least 2 with eval_by = documents")
        if self.rows % self.accumulate:
            raise invalid("accumulate", self.accumulate, f"a divisor of rows = {self.rows}")

    def rows_per_process(self, size: int) -> int:
        """Sequences per step of one of `size` processes.

        Raises:
            UserError: `rows` cannot be spread evenly over processes and micro-batches.
        """
        if self.rows % (size * self.accumulate):
            parts = f"{size} processes x accumulate = {self.accumulate}"
            raise invalid("rows", self.rows, f"a multiple of {parts}")
        return self.rows // size

    def as_dict(self) -> dict[str, Any]:
        """The configuration as JSON values; `from_dict` gives back an equal `Run`."""
        return serial.encode(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> Run:
        """The run that `as_dict` described.

        Raises:
            UserError: A field is unknown or has a value of the wrong kind.
        """
        return serial.decode(cls, values)
