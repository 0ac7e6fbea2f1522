"""The choices of Linear Depth Memory, with what its sources fix and what is ours."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from depth_memory.errors import Range, check_ranges, choose, invalid
from depth_memory.streams.base import MAX_RANK, MAX_SITES

CHOICES = {
    "sites": ("sublayer", "block"),
    "state_dtype": ("float32", "bfloat16"),
    "forgetting": ("learned", "one"),
    "importance": ("sigmoid", "softplus", "one"),
    "key_norm": ("unit", "rms", "none"),
    "query_norm": ("unit", "rms", "none"),
    "query_init": ("auto", "zero", "normal"),
    "latent_input": ("output", "input"),
    "latent_norm": ("rms", "none"),
    "impl": ("auto", "reference", "triton"),
}
MAX_CONDITION = 1e6
"""Largest alpha / min_retention: beyond it float32 cannot keep P positive over many writes."""

CARRIED = {
    "embedding_write": True,
    "final_read": True,
    "residual": True,
    "latent_input": "output",
    "latent_norm": "rms",
}
"""Fields that have one value where kernels carry the stream."""

WINDOWS = Range(1, MAX_SITES)


@dataclass(frozen=True, kw_only=True)
class AbstractLDMConfig:
    """Fields shared by least squares and its two ablations, which differ in the write alone."""

    name: ClassVar[str]
    key_dim: Annotated[int, Range(1, 1024)] = 8
    """Width Dk of keys and queries; the memory holds Dk x D numbers per token. The source compares
    4 with a larger, unnamed value."""
    groups: Annotated[int, Range(1, 4096)] = 4
    """Number G of independent memories, each for D / G channels. The source groups; G is ours."""
    read_rank: Annotated[int, Range(1, MAX_RANK)] = 32
    """Width of the latent from which queries and gates come. The source names it, not its size."""
    write_rank: Annotated[int, Range(1, MAX_RANK)] = 32
    """Width of the latent from which keys and importances come; as above."""
    alpha: Annotated[float, Range(1e-12, MAX_CONDITION)] = 1.0
    """Inverse strength of the ridge, P = alpha I before the first write. The source names it. P
    grows to alpha / min_retention where no key points, which may not exceed 1e6."""
    alpha_learned: bool = False
    """Learn alpha, per group, in log space, below the same limit (least squares alone). Ours."""
    shared_keys: bool = True
    """One key for all groups (source), or one per group."""
    residual: bool = True
    """Keep the ordinary residual stream beside the memory (source). Without it the embedding is
    always written, the head always reads, and the read latent sees the last output."""
    sites: Literal["sublayer", "block"] = "sublayer"
    """Read and write at every sublayer; or read before attention and write attention plus MLP once
    after the MLP, which sees the residual stream. Ours; the source speaks of layers."""
    window: Annotated[int | Literal["auto"], WINDOWS] = "auto"
    """Writes that wait before they are folded into the memory: 1 is the recurrence, at least the
    number of writes the dual form. It changes nothing but rounding while the memory is float32.
    `auto` becomes a number when the stream is built. The source writes one by one; waiting is
    ours."""
    state_dtype: Literal["float32", "bfloat16"] = "float32"
    """Precision of the folded memory; everything else that decides stays float32. Ours."""
    min_retention: Annotated[float, Range(1e-12, 1.0, below=True)] = 1e-3
    """Lower bound of the product of all forgetting factors, which bounds the error of float32.
    The source learns the factors and names no bound; it is ours."""
    retention_init: Annotated[float, Range(1e-12, 1.0, below=True)] = 0.9
    """That product at the start of training. Ours."""
    forgetting: Literal["learned", "one"] = "learned"
    """Forgetting per group and layer, learned (source), or none."""
    embedding_write: bool = True
    """Write the embedding into the memory before the first sublayer. Ours."""
    final_read: bool = True
    """Read the memory once more before the final norm. Ours."""
    gain_init: Annotated[float, Range(-1e6, 1e6)] = 10.0
    """Start of the learned gain of a read, per group; the gate beside it starts at 1/2. A read is
    an average of what was written where `h` is a sum: it needs a gain to count. Ours."""
    gate: bool = True
    """Gate each group's read by a sigmoid of the read latent (source)."""
    importance: Literal["sigmoid", "softplus", "one"] = "sigmoid"
    """Map from the write latent to the importance of an observation, or the constant 1. The source
    weighs observations; the map is ours."""
    key_norm: Literal["unit", "rms", "none"] = "unit"
    """Normalise keys to length 1, to root mean square 1, or not; unit keys bound the error of
    float32, and the delta rule needs them. Ours."""
    query_norm: Literal["unit", "rms", "none"] = "none"
    """The same for queries, which need not be bounded. Ours."""
    query_init: Literal["auto", "zero", "normal"] = "auto"
    """Start of the map to queries: 0, so that every read is silent at first and the network starts
    as an ordinary residual; or of unit scale. `auto` is 0 unless queries are normalised or there
    is no residual stream. Ours."""
    latent_input: Literal["output", "input"] = "output"
    """What the write latent sees: the sublayer's output, or its normed input. Ours."""
    latent_norm: Literal["rms", "none"] = "rms"
    """Norm, without a weight, of what the latents see. Ours."""
    impl: Literal["auto", "reference", "triton"] = "auto"
    """What runs: kernels where they are measured (in training on a GPU) and can carry the stream,
    else the reference; or one of the two."""

    def __post_init__(self) -> None:
        for field, options in CHOICES.items():
            choose(f"stream.{field}", getattr(self, field), options)
        if self.window != "auto" and (
            isinstance(self.window, str) or not WINDOWS.allows(self.window)
        ):
            raise invalid("stream.window", self.window, f"auto, or {WINDOWS}")
        check_ranges(self, "stream.")
        if self.alpha > self.largest_alpha:
            allowed = f"above 0, at most 1e6 * min_retention = {self.largest_alpha:g}"
            raise invalid("stream.alpha", self.alpha, allowed)
        if self.query_init == "zero" and not self._may_be_silent:
            allowed = "auto or normal, where queries are normalised or nothing else is read"
            raise invalid("stream.query_init", self.query_init, allowed)
        if self.retention_init <= self.min_retention:
            allowed = f"between min_retention ({self.min_retention:g}) and 1, exclusive"
            raise invalid("stream.retention_init", self.retention_init, allowed)
        if not self.residual:
            object.__setattr__(self, "embedding_write", True)
            object.__setattr__(self, "final_read", True)
        if self.impl == "triton" and self.beyond_kernels is not None:
            raise invalid("stream.impl", self.impl, f"auto, reference ({self.beyond_kernels})")

    @property
    def largest_alpha(self) -> float:
        """The alpha with which P stays positive in float32 at the lowest forgetting."""
        return MAX_CONDITION * self.min_retention

    @property
    def beyond_kernels(self) -> str | None:
        """The choice that kernels cannot carry, in words; None if there is none."""
        for field, value in CARRIED.items():
            if getattr(self, field) != value:
                return f"{field} is not {value}"
        return None

    @property
    def queries_start_at_zero(self) -> bool:
        """What `query_init` stands for."""
        return self.query_init == "zero" or (self.query_init == "auto" and self._may_be_silent)

    @property
    def _may_be_silent(self) -> bool:
        """A zero query has no direction, and without the residual a silent read is all there is."""
        return self.query_norm == "none" and self.residual

    def refuse_alpha(self) -> None:
        """Raise if alpha is to be learned where the rule has no covariance."""
        if self.alpha_learned:
            raise invalid(
                "stream.alpha_learned", True, f"False for {self.name}, which has no alpha"
            )

    def check_shape(self, dim: int, sites: int) -> None:
        """Raise unless the groups divide the width, and blocks have two sublayers."""
        if dim % self.groups:
            raise invalid("stream.groups", self.groups, f"a divisor of the width {dim}")
        if self.sites == "block" and sites % 2:
            raise invalid("stream.sites", self.sites, f"sublayer, for an odd number ({sites})")

    def writes(self, sites: int) -> int:
        """How many writes a network of `sites` sublayers makes, the embedding's included."""
        outputs = sites if self.sites == "sublayer" else sites // 2
        # nothing reads after the last sublayer unless the head does
        return max(outputs + self.embedding_write - (not self.final_read), 1)


@dataclass(frozen=True, kw_only=True)
class LDMConfig(AbstractLDMConfig):
    """Linear Depth Memory: recursive least squares over depth."""

    name: ClassVar[str] = "ldm"


@dataclass(frozen=True, kw_only=True)
class LDMDeltaConfig(AbstractLDMConfig):
    """Ablation: one gradient step per write instead of the solution (the delta rule)."""

    name: ClassVar[str] = "ldm_delta"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_alpha()
        # a step of more than 1 along a key overshoots, and grows with depth
        if self.key_norm != "unit":
            raise invalid("stream.key_norm", self.key_norm, "unit, for the delta rule")
        if self.importance == "softplus":
            raise invalid(
                "stream.importance", self.importance, "sigmoid or one, for the delta rule"
            )


@dataclass(frozen=True, kw_only=True)
class LDMOuterConfig(AbstractLDMConfig):
    """Ablation: a sum of outer products, without correction for overlapping keys."""

    name: ClassVar[str] = "ldm_outer"

    def __post_init__(self) -> None:
        super().__post_init__()
        self.refuse_alpha()


def auto_window(key_dim: int, writes: int) -> int:
    """The window with the least D-sized traffic of a training step, in passes over one vector.

    With K = Dk rows and a window of n, per write: the read visits the rows and half a window, and
    so does its gradient; so does the gradient of the value, which gathers what the reads and the
    fold send back. Every n-th write folds: K + n passes in and K out, and for its gradients the
    same and K + n once more. Past the last write nothing is ever folded.
    """

    def passes(n: int) -> float:
        if n >= writes:
            return 3 * (writes + 1) / 2
        return 3 * key_dim + 3 * (n - 1) / 2 + (5 * key_dim + 3 * n) / n

    return min(range(1, writes + 1), key=passes)
