"""Hyper-Connections: n residual streams ("lanes") with learned, input-dependent mixing.

Zhu et al., arXiv 2409.19606. Per sublayer, with lanes H [n, D] and H' = norm(H):

    B   = s_b tanh(H' W_b) + b            how strongly the output enters each lane
    A_m = s_a tanh(H' W_m) + a_m          how the lanes make the input
    A_r = s_a tanh(H' W_r) + a_r          how the lanes mix
    input = A_m' H        H <- A_r' H + B y
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from depth_memory.errors import Range, check_ranges, choose
from depth_memory.ops import mix
from depth_memory.ops._precision import compute_dtype, without_autocast
from depth_memory.ops.mixing.reference import rms_normalised
from depth_memory.streams import _init
from depth_memory.streams.base import (
    Fallback,
    Norm,
    Port,
    Stream,
    StreamModule,
    coefficient,
    is_off,
)

MAX_LANES = 256


@dataclass(frozen=True, kw_only=True)
class HCConfig:
    """Hyper-Connections; the defaults are the paper's dynamic form."""

    name: ClassVar[str] = "hc"
    lanes: Annotated[int, Range(1, MAX_LANES)] = 4
    """Number n of residual streams. Paper: 4."""
    dynamic: bool = True
    """Whether the coefficients depend on the input (DHC) or are learned constants (SHC). The paper
    has both, and mostly uses DHC."""
    norm: Literal["layer", "rms"] = "layer"
    """Norm of the lanes before the coefficients: LayerNorm (paper) or an RMS norm without weight
    (DepthBench)."""
    scale_init: Annotated[float, Range(-1e6, 1e6)] = 0.01
    """Start of s_a and s_b. Paper: 0.01."""
    mix_residual: bool = True
    """True: the output is added to the mixed lanes A_r' H (paper). False: to the unmixed ones."""
    readout: Literal["sum", "norm_sum"] = "sum"
    """Sum the lanes, then norm (paper), or norm each lane, then sum (a revision of DepthBench)."""
    scale_output_init: bool = True
    """Start each sublayer's output projection smaller by sqrt(n). Paper: yes."""

    def __post_init__(self) -> None:
        check_ranges(self, "stream.")
        choose("stream.norm", self.norm, ("layer", "rms"))
        choose("stream.readout", self.readout, ("sum", "norm_sum"))


class Lanes(NamedTuple):
    """n residual streams, and the coefficients with which the next write will mix them."""

    lanes: Float[Tensor, "*tokens n D"]
    post: tuple[Float[Tensor, "*tokens n"], ...]
    mix: tuple[Float[Tensor, "*tokens n n"], ...]


def spread(x: Tensor, lanes: int) -> Lanes:
    """Copy the embedding into every lane."""
    return Lanes(x[..., None, :].expand(*x.shape[:-1], lanes, x.shape[-1]), (), ())


EVENLY = Fallback(True, "the mean of the lanes")


def input_weights(port: Port, weights: Float[Tensor, "*tokens n"]) -> Float[Tensor, "*tokens 1 n"]:
    """With which the lanes make a sublayer's input: as learned, or evenly if it is switched off."""
    weights = torch.full_like(weights, 1.0 / weights.shape[-1]) if is_off(port) else weights
    return weights[..., None, :]


def write_lanes(state: Lanes, y: Tensor) -> Lanes:
    """`mix @ lanes + post y`, as one weighted sum per lane."""
    (post,), (mixing,) = state.post, state.mix
    lanes = mix(mixing, state.lanes, dtype=post.dtype) + post[..., None] * y[..., None, :]
    return Lanes(lanes.to(state.lanes.dtype), (), ())


class HC(Stream):
    """n lanes; the output is their sum."""

    def __init__(self, config: HCConfig, dim: int, sites: int):
        super().__init__(config, dim, sites)
        self.output_init_scale = config.lanes**-0.5 if config.scale_output_init else 1.0

    def start(self, x: Tensor) -> Lanes:
        return spread(x, self.config.lanes)

    def finish(self, state: Lanes, norm: Norm) -> Tensor:
        if self.config.readout == "norm_sum":
            return norm(state.lanes).sum(-2)
        ones = torch.ones(1, self.config.lanes, dtype=torch.float32, device=state.lanes.device)
        return norm(mix(ones, state.lanes)[..., 0, :])

    def port(self, site: int) -> Port:
        return HCPort(self.config, self.dim, site)


class Coefficients(StreamModule):
    """Alpha and beta of one sublayer; at the start an ordinary residual in every lane."""

    def __init__(self, config: HCConfig, dim: int, site: int):
        super().__init__()
        self.config, self.site = config, site
        n = config.lanes
        # column 0 of alpha makes the input (A_m), the others mix the lanes (A_r)
        self.static_alpha = _init.empty(n, n + 1 if config.mix_residual else 1)
        self.static_beta = _init.empty(n)
        if config.dynamic:
            self.alpha_proj = _init.empty(self.static_alpha.shape[1], dim)
            self.beta_proj = _init.empty(1, dim)
            self.alpha_scale = _init.empty(1)
            self.beta_scale = _init.empty(1)
            self.norm = nn.LayerNorm(dim) if config.norm == "layer" else None
        self.reset_parameters()

    def reset_parameters(self) -> None:
        n = self.config.lanes
        first = torch.tensor(_init.one_hot(self.site, n))
        pattern = torch.cat([first[:, None], torch.eye(n)], 1)
        _init.set_(self.static_alpha, pattern[:, : self.static_alpha.shape[1]])
        nn.init.ones_(self.static_beta)
        if self.config.dynamic:
            for projection in (self.alpha_proj, self.beta_proj):
                nn.init.zeros_(projection)
            for scale in (self.alpha_scale, self.beta_scale):
                nn.init.constant_(scale, self.config.scale_init)

    def forward(self, lanes: Float[Tensor, "*tokens n D"]) -> tuple[Tensor, Tensor]:
        """Alpha [*tokens, n, 1 + n] and beta [*tokens, n], in the compute dtype."""
        dtype = compute_dtype((lanes,))
        alpha, beta = self.static_alpha.to(dtype), self.static_beta.to(dtype)
        if not self.config.dynamic:
            tokens = lanes.shape[:-2]
            return alpha.expand(*tokens, *alpha.shape), beta.expand(*tokens, *beta.shape)
        normed = rms_normalised(lanes.to(dtype), 1e-8) if self.norm is None else self.norm(lanes)
        with without_autocast(lanes):
            a = nn.functional.linear(normed.to(dtype), self.alpha_proj.to(dtype)).tanh()
            b = nn.functional.linear(normed.to(dtype), self.beta_proj.to(dtype)).tanh()[..., 0]
        return alpha + self.alpha_scale * a, beta + self.beta_scale * b


class HCPort(Port):
    """The mixing of one sublayer."""

    fallback = EVENLY
    variants = 2  # the first port meets lanes that share the memory of the embedding

    def __init__(self, config: HCConfig, dim: int, site: int):
        super().__init__()
        self.config = config
        self.coefficients = Coefficients(config, dim, site)

    def read(self, state: Lanes, norm: Norm) -> tuple[Tensor, Lanes]:
        alpha, beta = (coefficient(c) for c in self.coefficients(state.lanes))
        x = mix(input_weights(self, alpha[..., 0]), state.lanes)[..., 0, :]
        n = self.config.lanes
        identity = torch.eye(n, dtype=alpha.dtype, device=alpha.device)
        mixing = alpha[..., 1:].mT if self.config.mix_residual else identity
        return norm(x), Lanes(state.lanes, (beta,), (mixing,))

    def write(self, state: Lanes, y: Tensor) -> Lanes:
        return write_lanes(state, y)

    def preserve_(self) -> None:
        """The start: an ordinary residual in n equal lanes, up to the eps of the final norm."""
        self.coefficients.reset_parameters()
