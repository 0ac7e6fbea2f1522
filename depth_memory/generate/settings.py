"""What is asked of a generation, apart from model and prompts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from depth_memory.errors import SEEDS, Range, check_ranges, choose, invalid

TEMPERATURES = Range(1e-3, 1e3)
"""Of sampling; 0 is none."""
CACHES = ("auto", "dynamic", "static")


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How prompts are continued.

    Tokens are chosen in this order: the repetition penalty, then, unless the most probable one is
    taken, temperature, top-k, top-p, min-p. The last three, temperature and penalty are
    transformers' own.

    Raises:
        UserError: A value is out of its range, or two contradict each other.
    """

    tokens: Annotated[int, Range(1, 10**6)] = 100
    """At most, for each continuation."""
    temperature: Annotated[float, Range(0.0, TEMPERATURES.most)] = 0.8
    """0 takes the most probable token, 1 samples as the model says."""
    top_k: Annotated[int, Range(0, 10**6)] = 0
    """Sample among so many of the most probable tokens; 0 among all."""
    top_p: Annotated[float, Range(0.0, 1.0, above=True)] = 1.0
    """Sample among the fewest most probable tokens with at least this total."""
    min_p: Annotated[float, Range(0.0, 1.0)] = 0.0
    """Sample among tokens at least this probable relative to the most probable one."""
    repetition_penalty: Annotated[float, Range(1e-3, 1e3)] = 1.0
    """Divides positive logits of tokens already there, prompt included, and multiplies negative."""
    samples: Annotated[int, Range(1, 10**6)] = 1
    """Continuations of each prompt."""
    stop: tuple[str, ...] = ()
    """Texts before which a continuation ends."""
    seed: Annotated[int, SEEDS] = 0
    """Sample j of prompt i draws from a generator of its own, of this seed, i and j."""
    batch: Annotated[int, Range(1, 10**6)] = 8
    """Rows at a time."""
    cache: str = "auto"
    """Of keys and values: `dynamic` grows with the text, `static` is allocated for its longest.
    `auto` is static on a GPU where the decoding step can be captured, else dynamic."""
    graph: bool | None = None
    """Whether a step on a static cache is replayed as a CUDA graph; `None` where it can be."""

    def __post_init__(self) -> None:
        check_ranges(self)
        if 0 < self.temperature < TEMPERATURES.least:
            raise invalid("temperature", self.temperature, f"0, or {TEMPERATURES}")
        if self.samples > 1 and self.greedy:
            raise invalid("samples", self.samples, "1 where the most probable token is taken")
        if not isinstance(self.stop, tuple | list):
            raise invalid("stop", self.stop, "a tuple of texts")
        if "" in self.stop:
            raise invalid("stop", "", "a text that is not empty")
        choose("cache", self.cache, CACHES)

    @property
    def greedy(self) -> bool:
        """Whether the most probable token is taken."""
        return self.temperature == 0
