"""The memory of an LDM stream in its windowed form: a base, and the writes since it was folded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from depth_memory.ops import (
    Transition,
    delta_transition,
    outer_transition,
    rls_transition,
    window_fold,
    window_read,
)
from depth_memory.streams.base import coefficient


class Observation(NamedTuple):
    """Where and how strongly a value is written."""

    key: Float[Tensor, "*tokens #G Dk"]
    forgetting: Float[Tensor, " G"]
    importance: Float[Tensor, "*tokens G"]


class Memory(NamedTuple):
    """What the writes so far have left; every part is empty at first.

    The base is the memory as it was before the window; `values` are whole vectors as written.
    """

    base: tuple[Float[Tensor, "*tokens G Dv Dk"], ...] = ()
    covariance: tuple[Float[Tensor, "*tokens G Dk Dk"], ...] = ()
    transitions: tuple[Transition, ...] = ()
    values: tuple[Float[Tensor, "*tokens D"], ...] = ()


@dataclass(frozen=True)
class MemoryForm:
    """How a memory is kept: the write rule, the length of the window, groups and precision."""

    rule: str
    window: int
    groups: int
    state_dtype: str

    @property
    def has_covariance(self) -> bool:
        """Whether the rule carries the inverse key covariance."""
        return self.rule == "rls"

    def start(self, covariance: Tensor | None) -> Memory:
        """An empty memory."""
        return Memory(covariance=() if covariance is None else (covariance,))

    def retrieve(
        self, memory: Memory, query: Float[Tensor, "*tokens G Dk"]
    ) -> Float[Tensor, "*tokens G Dv"]:
        """Read the memory, in the compute dtype."""
        base = memory.base[0] if memory.base else None
        return window_read(base, memory.transitions, self._grouped(memory.values), query)

    def store(
        self,
        memory: Memory,
        value: Float[Tensor, "*tokens D"],
        observation: Observation,
    ) -> Memory:
        """Write a value where the observation says; fold the window once it is full."""
        transition, covariance = self._step(memory.covariance, *observation)
        transition = Transition(*(coefficient(part) for part in transition))
        memory = Memory(
            memory.base,
            covariance,
            (*memory.transitions, transition),
            (*memory.values, value),
        )
        return self._fold(memory) if len(memory.values) >= self.window else memory

    def _step(
        self,
        covariance: tuple[Tensor, ...],
        key: Tensor,
        forgetting: Tensor,
        importance: Tensor,
    ) -> tuple[Transition, tuple[Tensor, ...]]:
        if self.rule == "rls":
            transition, P = rls_transition(covariance[0], key, forgetting, importance)
            return transition, (P,)
        step = {"delta": delta_transition, "outer": outer_transition}[self.rule]
        return step(key, forgetting, importance), ()

    def _fold(self, memory: Memory) -> Memory:
        base = memory.base[0] if memory.base else None
        folded = window_fold(base, memory.transitions, self._grouped(memory.values))
        if self.state_dtype == "bfloat16" and folded.dtype == torch.float32:
            folded = folded.to(torch.bfloat16)
        return Memory((folded,), memory.covariance)

    def _grouped(self, values: tuple[Tensor, ...]) -> list[Tensor]:
        return [value.unflatten(-1, (self.groups, -1)) for value in values]
