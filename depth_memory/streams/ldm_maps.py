"""The learned maps of an LDM stream: what to read, what to write, how much to forget."""

from __future__ import annotations

import math

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F

from depth_memory.ops._precision import compute_dtype
from depth_memory.streams import _init
from depth_memory.streams.base import StreamModule, coefficient
from depth_memory.streams.ldm_config import AbstractLDMConfig
from depth_memory.streams.memory import Observation

LATENT_EPS = 1e-6


class Affine(StreamModule):
    """`x W' + b`, of unit scale at the start for inputs of unit scale, or zero."""

    def __init__(self, inputs: int, outputs: int, *, zero: bool = False):
        super().__init__()
        self.zero = zero
        self.weight = _init.empty(outputs, inputs)
        self.bias = _init.empty(outputs)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.zeros_(self.bias)
        if self.zero:
            nn.init.zeros_(self.weight)
        else:
            nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)

    def forward(self, x: Tensor) -> Tensor:
        """The map of `x`, in the dtype of the weight."""
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class Latent(StreamModule):
    """An affine map of a vector's RMS-normed form, without forming it."""

    def __init__(self, dim: int, rank: int, norm: str):
        super().__init__()
        self.normed = norm == "rms"
        self.weight = _init.empty(rank, dim)
        self.bias = _init.empty(rank)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.normal_(self.weight, std=self.weight.shape[1] ** -0.5)
        nn.init.zeros_(self.bias)

    def forward(self, x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "*tokens r"]:
        """The latent, in the dtype of the weight."""
        product = F.linear(x.to(self.weight.dtype), self.weight)
        if self.normed:
            # the norm scales the product, so that no D-sized normed copy is made
            mean_square = compute(x).square().mean(-1, keepdim=True)
            product = (product * torch.rsqrt(mean_square + LATENT_EPS)).to(self.weight.dtype)
        return product + self.bias

    def complete(self, product: Float[Tensor, "*tokens r"]) -> Float[Tensor, "*tokens r"]:
        """The latent from the normed product that a kernel has formed."""
        return product.to(self.weight.dtype) + self.bias


def normalise(x: Tensor, norm: str) -> Tensor:
    """Scale vectors to length 1 (`unit`), to root mean square 1 (`rms`), or not at all."""
    if norm == "none":
        return x
    unit = F.normalize(x, dim=-1, eps=1e-6)
    return unit if norm == "unit" else unit * math.sqrt(x.shape[-1])


def compute(x: Tensor) -> Tensor:
    """`x` in float32, or float64 if it is."""
    return x.to(compute_dtype((x,)))


class Forgetting(StreamModule):
    """Forgetting per group: `min_retention^(sigmoid(logit) / writes)`, always float32.

    However the logits move, the product over all writes stays above `min_retention`.
    """

    keeps_float32 = True

    def __init__(self, config: AbstractLDMConfig, writes: int):
        super().__init__()
        self.log_floor = math.log(config.min_retention) / writes
        share = math.log(config.retention_init) / math.log(config.min_retention)
        self.logit_init = math.log(share / (1.0 - share))
        self.logit = _init.empty(config.groups, dtype=torch.float32)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.logit, self.logit_init)

    def forward(self) -> Float[Tensor, " G"]:
        """The factors, in (0, 1)."""
        return torch.exp(self.log_floor * compute(self.logit).sigmoid())


class Prior(StreamModule):
    """`alpha I`, the inverse covariance before the first write; alpha fixed or learned."""

    keeps_float32 = True

    def __init__(self, config: AbstractLDMConfig):
        super().__init__()
        self.config = config
        if config.alpha_learned:
            self.log_alpha = _init.empty(config.groups, dtype=torch.float32)
            self.reset_parameters()

    def reset_parameters(self) -> None:
        if self.config.alpha_learned:
            nn.init.constant_(self.log_alpha, math.log(self.config.alpha))

    def forward(self, like: Tensor) -> Float[Tensor, "G Dk Dk"]:
        """The matrices, in the compute dtype of `like` and on its device."""
        config = self.config
        eye = torch.eye(config.key_dim, dtype=compute_dtype((like,)), device=like.device)
        if config.alpha_learned:
            alpha = compute(self.log_alpha).clamp(max=math.log(config.largest_alpha)).exp()
            return alpha[:, None, None] * eye
        return (config.alpha * eye).expand(config.groups, -1, -1)


class Reader(StreamModule):
    """From the stream: a query and a scale (gate times gain) per group."""

    def __init__(self, config: AbstractLDMConfig, dim: int):
        super().__init__()
        self.config = config
        self.latent = Latent(dim, config.read_rank, config.latent_norm)
        zero = config.queries_start_at_zero
        self.query = Affine(config.read_rank, config.groups * config.key_dim, zero=zero)
        self.gate = Affine(config.read_rank, config.groups, zero=True) if config.gate else None
        self.gain = _init.empty(config.groups)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        nn.init.constant_(self.gain, self.config.gain_init)

    def silence_(self) -> None:
        """Read nothing, and be able to learn to: gain 0, and queries that are not 0."""
        nn.init.zeros_(self.gain)
        self.query.zero = False
        self.query.reset_parameters()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Query [*tokens, G, Dk] and scale [*tokens, G], in the compute dtype."""
        return self.ask(self.latent(x))

    def complete(self, product: Tensor) -> tuple[Tensor, Tensor]:
        """As `forward`, from the normed product that a kernel has formed."""
        return self.ask(self.latent.complete(product))

    def ask(self, latent: Tensor) -> tuple[Tensor, Tensor]:
        """Query and scale from the latent."""
        query = compute(self.query(latent)).unflatten(-1, (self.config.groups, -1))
        scale = compute(self.gain).expand(*query.shape[:-1])
        if self.gate is not None:
            scale = scale * compute(self.gate(latent)).sigmoid()
        return coefficient(normalise(query, self.config.query_norm)), coefficient(scale)


class Writer(StreamModule):
    """From what is written (or what was read): a key, and forgetting and importance per group.

    Where nothing was written before, a first-order rule has nothing to forget (`forgets=False`).
    """

    def __init__(self, config: AbstractLDMConfig, dim: int, writes: int, forgets: bool):
        super().__init__()
        self.config = config
        keys = 1 if config.shared_keys else config.groups
        self.latent = Latent(dim, config.write_rank, config.latent_norm)
        self.key = Affine(config.write_rank, keys * config.key_dim)
        weighs = config.importance != "one"
        self.importance = Affine(config.write_rank, config.groups, zero=True) if weighs else None
        learned = forgets and config.forgetting == "learned"
        self.forgetting = Forgetting(config, writes) if learned else None

    def forward(self, x: Tensor) -> Observation:
        """The observation's key, forgetting and importance, in the compute dtype."""
        return self.observe(self.latent(x))

    def complete(self, product: Tensor) -> Observation:
        """As `forward`, from the normed product that a kernel has formed."""
        return self.observe(self.latent.complete(product))

    def observe(self, latent: Tensor) -> Observation:
        """The observation from the latent."""
        key = compute(self.key(latent)).unflatten(-1, (-1, self.config.key_dim))
        importance = key.new_ones(*key.shape[:-2], self.config.groups)
        if self.importance is not None:
            positive = {"sigmoid": torch.sigmoid, "softplus": F.softplus}[self.config.importance]
            importance = positive(compute(self.importance(latent)))
        forgetting = key.new_ones(self.config.groups)
        if self.forgetting is not None:
            forgetting = self.forgetting().to(key.dtype)
        return Observation(normalise(key, self.config.key_norm), forgetting, importance)
