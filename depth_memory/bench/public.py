"""The peers by the best public kernels, each in its own package: what ours are measured against.

Only the sums over depth are theirs; parameters, state and backbone are those of our streams. They
are made for a GPU and called outside of compiled code, as their autograd functions are.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Mapping
from typing import Any, NamedTuple, cast

import torch
from torch import Tensor, nn

from depth_memory.errors import choose, invalid
from depth_memory.streams.attnres import AttnResPort, DepthQuery, Sources
from depth_memory.streams.base import Norm, is_off
from depth_memory.streams.hc import Lanes
from depth_memory.streams.mhc import RMS_EPS, MHCPort

LIGER = "liger_kernel.transformers.functional"


def _function(module: str, name: str) -> Any:
    """A function of a package that need not be installed."""
    return getattr(importlib.import_module(module), name)


class FlaQuery(DepthQuery):
    """Attention over depth by `fla-core` (MIT): one kernel per read. Final."""

    @torch.compiler.disable
    def forward(self, sources: tuple[Tensor, ...]) -> Tensor:
        fused = _function("fla.ops.attnres", "fused_attnres")
        return fused(self.query, sources, self.key_norm, rms_eps=self.eps)


class FlaPort(AttnResPort):
    """The same with the norm of the sublayer in the kernel. Final."""

    @torch.compiler.disable
    def read(self, state: Sources, norm: Norm) -> tuple[Tensor, Sources]:
        if self.attend is None or is_off(self):
            return super().read(state, norm)
        if self.starts_block:
            state = Sources(state.all, ())
        own, fused = self.attend, _function("fla.ops.attnres", "fused_attnres")
        weight = cast(nn.Module, norm).get_parameter("weight")
        return fused(own.query, state.all, own.key_norm, weight, rms_eps=own.eps), state


class FastQuery(DepthQuery):
    """Attention over depth by `fast-attnres` (MIT), bfloat16 only. Final."""

    @torch.compiler.disable
    def forward(self, sources: tuple[Tensor, ...]) -> Tensor:
        fused = _function("attnres", "attnres")
        return fused(sources, (self.query * self.key_norm).bfloat16(), eps=self.eps)


class LigerPort(MHCPort):
    """mHC by `liger-kernel` (BSD-2), whose columns are exact as with `exact_sums`. Final."""

    @torch.compiler.disable
    def read(self, state: Lanes, norm: Norm) -> tuple[Tensor, Lanes]:
        own, lanes = self.controller, state.lanes
        pre, post, res = _function(LIGER, "liger_mhc_coeffs")(
            lanes,
            own.phi.to(lanes.dtype),
            own.bias,
            *own.alpha.unbind(),
            tmax=self.config.iterations,
            rms_eps=RMS_EPS,
        )
        x = _function(LIGER, "liger_mhc_pre")(lanes, pre)
        return norm(x), Lanes(lanes, (post,), (res,))

    @torch.compiler.disable
    def write(self, state: Lanes, y: Tensor) -> Lanes:
        (post,), (res,) = state.post, state.mix
        mixed = _function(LIGER, "liger_mhc_post_res")(state.lanes, y, post, res)
        return Lanes(mixed, (), ())


class Package(NamedTuple):
    """A package of public kernels."""

    name: str
    """By which it is installed."""
    module: str
    """By which it is imported."""
    streams: tuple[str, ...]
    """Those that it has kernels for."""
    instead: dict[type[nn.Module], type[nn.Module]]
    """Which class takes the place of which."""


ATTENTION = ("attnres", "block_attnres")
KERNELS: Mapping[str, Package] = {
    "fla": Package("fla-core", "fla", ATTENTION, {DepthQuery: FlaQuery, AttnResPort: FlaPort}),
    "fast_attnres": Package("fast-attnres", "attnres", ATTENTION, {DepthQuery: FastQuery}),
    "liger": Package("liger-kernel", "liger_kernel", ("mhc",), {MHCPort: LigerPort}),
}


def check(kernels: str, stream: str) -> None:
    """Refuse kernels that do not exist, or not for this stream, or are not installed.

    Raises:
        UserError: One line that says so.
    """
    choose("--method: kernels", kernels, tuple(KERNELS))
    package = KERNELS[kernels]
    if stream not in package.streams:
        raise invalid(f"--method: kernels {kernels}", stream, ", ".join(package.streams))
    if importlib.util.find_spec(package.module) is None:
        allowed = f"what is installed: pip install {package.name}"
        raise invalid("--method: kernels", kernels, allowed)


def install_(model: nn.Module, kernels: str) -> None:
    """Let a model's stream compute by public kernels, in place; its parameters stay."""
    instead = KERNELS[kernels].instead
    for module in model.modules():
        if type(module) in instead:
            module.__class__ = instead[type(module)]
