"""Manifold-constrained Hyper-Connections: lanes mixed by a doubly stochastic matrix.

Xie et al., arXiv 2512.24880. Per sublayer, with lanes X [n, D] and x' = rms(vec X):

    pre  = sigmoid(a_pre x' phi_pre + b_pre)             [n]
    post = 2 sigmoid(a_post x' phi_post + b_post)        [n]
    res  = sinkhorn(a_res mat(x' phi_res) + b_res)       [n, n]
    input = pre X         X <- res X + post' y
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from depth_memory.errors import Range, UserError, check_ranges, choose
from depth_memory.ops import mix, sinkhorn
from depth_memory.ops._precision import compute_dtype, without_autocast
from depth_memory.ops.mixing.reference import rms_normalised
from depth_memory.streams import _init
from depth_memory.streams.base import (
    RESIDUAL,
    Norm,
    Port,
    Stream,
    StreamModule,
    coefficient,
    is_off,
)
from depth_memory.streams.hc import EVENLY, MAX_LANES, Lanes, input_weights, spread, write_lanes

GAP = 8.0
RMS_EPS = 1e-20


@dataclass(frozen=True, kw_only=True)
class MHCConfig:
    """mHC. The paper leaves the start of phi and b and the readout open; see each field."""

    name: ClassVar[str] = "mhc"
    lanes: Annotated[int, Range(1, MAX_LANES)] = 4
    """Number n of residual streams. Paper: 4."""
    iterations: Annotated[int, Range(1, 1000)] = 20
    """Sinkhorn iterations. Paper: 20."""
    alpha_init: Annotated[float, Range(-1e6, 1e6)] = 0.01
    """Start of the three gating factors. Paper: 0.01."""
    init: Literal["gap", "zero"] = "gap"
    """`gap`: phi 0 and biases of +-8, nearly an ordinary residual at the start (DepthBench).
    `zero`: biases 0 and phi ~ N(0, 0.02), which mixes the lanes evenly at the start."""
    exact_sums: Literal["rows", "columns"] = "rows"
    """Which sums of `res` are exact: over the lanes it reads, as in the paper, which normalises
    rows last; or over those it writes, as some public code does. The other sums are approximate."""
    readout: Literal["mean", "sum", "head"] = "mean"
    """What the final norm sees: the mean or the sum of the lanes, or a learned sigmoid mixture of
    them (the head of DeepSeek-V4)."""
    scale_output_init: bool = False
    """Start each sublayer's output projection smaller by sqrt(n); DepthBench does, the paper is
    silent."""

    def __post_init__(self) -> None:
        check_ranges(self, "stream.")
        choose("stream.init", self.init, ("gap", "zero"))
        choose("stream.exact_sums", self.exact_sums, ("rows", "columns"))
        choose("stream.readout", self.readout, ("mean", "sum", "head"))


class Controller(StreamModule):
    """`a (rms(vec X) phi) + b` for each of several outputs, always in float32 or better."""

    keeps_float32 = True

    def __init__(self, config: MHCConfig, dim: int, bias: list[float], parts: tuple[int, ...]):
        super().__init__()
        self.config, self.parts, self.bias_init = config, list(parts), bias
        self.phi = _init.empty(config.lanes * dim, sum(parts), dtype=torch.float32)
        self.alpha = _init.empty(len(parts), dtype=torch.float32)
        self.bias = _init.empty(sum(parts), dtype=torch.float32)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.alpha, self.config.alpha_init)
        if self.config.init == "gap":
            nn.init.zeros_(self.phi)
            _init.set_(self.bias, self.bias_init)
        else:
            nn.init.normal_(self.phi, std=0.02)
            nn.init.zeros_(self.bias)

    def forward(self, lanes: Float[Tensor, "*tokens n D"]) -> list[Tensor]:
        """One tensor of logits per output, each [*tokens, part]."""
        dtype = compute_dtype((lanes,))
        with without_autocast(lanes):
            product = rms_normalised(lanes.flatten(-2).to(dtype), RMS_EPS) @ self.phi.to(dtype)
        projected, biases = product.split(self.parts, -1), self.bias.split(self.parts)
        return [a * x + b for a, x, b in zip(self.alpha, projected, biases, strict=True)]


class MHC(Stream):
    """n lanes; the output is their mean, their sum, or a learned mixture."""

    def __init__(self, config: MHCConfig, dim: int, sites: int):
        super().__init__(config, dim, sites)
        self.output_init_scale = config.lanes**-0.5 if config.scale_output_init else 1.0
        self.fallback = EVENLY if config.readout == "head" else RESIDUAL
        if config.readout == "head":
            n = config.lanes
            self.controller = Controller(config, dim, [0.0] * n, (n,))

    def start(self, x: Tensor) -> Lanes:
        return spread(x, self.config.lanes)

    def finish(self, state: Lanes, norm: Norm) -> Tensor:
        return norm(mix(coefficient(self._readout(state.lanes)), state.lanes)[..., 0, :])

    def _readout(self, lanes: Tensor) -> Tensor:
        """The weights of the lanes in the output, [..., 1, n]."""
        n = self.config.lanes
        if self.config.readout == "head" and not is_off(self):
            return self.controller(lanes)[0].sigmoid()[..., None, :]
        weight = 1.0 if self.config.readout == "sum" else 1.0 / n
        dtype = compute_dtype((lanes,))
        return torch.full((1, n), weight, dtype=dtype, device=lanes.device)

    def port(self, site: int) -> Port:
        return MHCPort(self.config, self.dim, site)

    def preserve_(self) -> None:
        if self.config.readout == "head":
            raise UserError("stream.readout: got 'head'; allowed: mean, sum, to keep a function")


class MHCPort(Port):
    """The mixing of one sublayer."""

    fallback = EVENLY
    variants = 2  # as in hc.py

    def __init__(self, config: MHCConfig, dim: int, site: int):
        super().__init__()
        self.config = config
        n = config.lanes
        pre = _init.one_hot(site, n, on=GAP, off=-GAP)
        res = [x for row in range(n) for x in _init.one_hot(row, n, on=0.0, off=-GAP)]
        bias = [*pre, *[0.0] * n, *res]
        self.controller = Controller(config, dim, bias, (n, n, n * n))

    def _coefficients(self, lanes: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        pre, post, res = self.controller(lanes)
        res = res.unflatten(-1, (self.config.lanes, self.config.lanes))
        if self.config.exact_sums == "columns":
            res = sinkhorn(res.mT, self.config.iterations).mT
        else:
            res = sinkhorn(res, self.config.iterations)
        return pre.sigmoid(), 2.0 * post.sigmoid(), res

    def read(self, state: Lanes, norm: Norm) -> tuple[Tensor, Lanes]:
        pre, post, res = (coefficient(c) for c in self._coefficients(state.lanes))
        x = mix(input_weights(self, pre), state.lanes)[..., 0, :]
        return norm(x), Lanes(state.lanes, (post,), (res,))

    def write(self, state: Lanes, y: Tensor) -> Lanes:
        return write_lanes(state, y)

    def preserve_(self) -> None:
        """`gap` is nearly an ordinary residual (to about 1e-3); `zero` is not one."""
        if self.config.init != "gap":
            raise UserError("stream.init: got 'zero'; allowed: gap, to keep a function")
        self.controller.reset_parameters()
