"""Every stream with every named option, and a small network to run one in."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

from depth_memory import streams
from depth_memory.ops.exchange.tape import Tape

D, SITES = 12, 6
LDM = {"key_dim": 3, "groups": 2, "read_rank": 4, "write_rank": 4}


def ldm(rule: str = "ldm", **options: Any) -> dict[str, Any]:
    return {"name": rule, **LDM, **options}


PEERS: dict[str, dict[str, Any]] = {
    "preln": {"name": "preln"},
    "preln_adapter": {"name": "preln_adapter", "rank": 3},
    "hc": {"name": "hc"},
    "hc-static": {"name": "hc", "dynamic": False, "lanes": 3},
    "hc-rms": {"name": "hc", "norm": "rms", "scale_init": 0.1},
    "hc-unmixed": {"name": "hc", "mix_residual": False, "scale_output_init": False},
    "hc-static-unmixed": {"name": "hc", "dynamic": False, "mix_residual": False},
    "hc-norm-sum": {"name": "hc", "readout": "norm_sum", "lanes": 2},
    "hc-one-lane": {"name": "hc", "lanes": 1},
    "mhc": {"name": "mhc"},
    "mhc-zero": {"name": "mhc", "init": "zero", "lanes": 3, "scale_output_init": True},
    "mhc-columns": {"name": "mhc", "exact_sums": "columns", "iterations": 3},
    "mhc-sum": {"name": "mhc", "readout": "sum", "alpha_init": 0.1},
    "mhc-head": {"name": "mhc", "readout": "head"},
    "denseformer": {"name": "denseformer"},
    "denseformer-dilated": {"name": "denseformer", "dilation": 2},
    "denseformer-sparse": {"name": "denseformer", "dilation": 2, "period": 3},
    "attnres": {"name": "attnres"},
    "attnres-eps": {"name": "attnres", "eps": 1e-2},
    "block_attnres": {"name": "block_attnres"},
    "block_attnres-2": {"name": "block_attnres", "blocks": 2, "eps": 1e-5},
    "block_attnres-attention": {"name": "block_attnres", "blocks": 4, "boundary": "attention"},
}

MEMORIES: dict[str, dict[str, Any]] = {
    "ldm": ldm(),
    "ldm-keys": ldm(shared_keys=False, impl="reference"),
    "ldm-kernels": ldm(sites="block", window=2, impl="triton"),
    "ldm-alone": ldm(residual=False),
    "ldm-block": ldm(sites="block"),
    "ldm-block-alone": ldm(sites="block", residual=False),
    "ldm-block-bare": ldm(sites="block", embedding_write=False, final_read=False),
    "ldm-1": ldm(window=1),
    "ldm-2": ldm(window=2),
    "ldm-bfloat16": ldm(window=2, state_dtype="bfloat16"),
    "ldm-keep": ldm(forgetting="one"),
    "ldm-floor": ldm(min_retention=0.1, retention_init=0.5),
    "ldm-no-embedding": ldm(embedding_write=False),
    "ldm-no-final": ldm(final_read=False),
    "ldm-bare": ldm(embedding_write=False, final_read=False, window=2),
    "ldm-ungated": ldm(gate=False, gain_init=0.5),
    "ldm-softplus": ldm(importance="softplus"),
    "ldm-equal": ldm(importance="one"),
    "ldm-rms": ldm(key_norm="rms", query_norm="rms", alpha=0.5),
    "ldm-raw": ldm(key_norm="none", query_init="normal"),
    "ldm-unit": ldm(query_norm="unit"),
    "ldm-silent": ldm(query_init="zero"),
    "ldm-input": ldm(latent_input="input"),
    "ldm-block-input": ldm(sites="block", latent_input="input", window=2),
    "ldm-latent": ldm(latent_norm="none"),
    "ldm-alpha": ldm(alpha_learned=True, shared_keys=False),
    "ldm_delta": ldm("ldm_delta"),
    "ldm_delta-alone": ldm("ldm_delta", residual=False, window=2),
    "ldm_delta-block": ldm("ldm_delta", sites="block", embedding_write=False, window=1),
    "ldm_outer": ldm("ldm_outer"),
    "ldm_outer-alone": ldm("ldm_outer", residual=False, shared_keys=False, window=2),
    "ldm_outer-block": ldm("ldm_outer", sites="block", embedding_write=False),
}

CASES = {**PEERS, **MEMORIES}


def norm(x: Tensor) -> Tensor:
    return F.rms_norm(x, x.shape[-1:], eps=1e-6)


def identity(x: Tensor) -> Tensor:
    return x


class Network(nn.Module):
    """A stream, its ports, and between each read and write a fixed body that mixes channels."""

    def __init__(
        self,
        config: dict[str, Any],
        *,
        dim: int = D,
        sites: int = SITES,
        dtype: torch.dtype = torch.float64,
    ):
        super().__init__()
        self.stream = streams.build(config, dim, sites)
        self.ports = nn.ModuleList(self.stream.port(site) for site in range(sites))
        bodies = torch.randn(sites, dim, dim, dtype=torch.float64) * (2 / dim) ** 0.5
        self.register_buffer("bodies", bodies)
        self.to(dtype)

    def body(self, site: int, x: Tensor) -> Tensor:
        return torch.tanh(x @ self.bodies[site])

    def forward(
        self,
        x: Tensor,
        *,
        norm: Callable[[Tensor], Tensor] = norm,
        each: Callable[[Tensor], Tensor] = identity,
        checkpointed: bool = False,
    ) -> Tensor:
        """The output; `each` sees, and may replace, every vector that is written."""
        state = self.stream.start(each(x))
        for site, port in enumerate(self.ports):
            z, state = port.read(state, norm)
            if checkpointed:
                y = checkpoint(self.body, site, z, use_reentrant=False)
            else:
                y = self.body(site, z)
            state = port.write(state, each(y))
        return self.stream.finish(state, norm)

    def states(self, x: Tensor) -> Iterator[Any]:
        """The state before the first sublayer, and after each read and each write."""
        state = self.stream.start(x)
        yield state
        for site, port in enumerate(self.ports):
            z, state = port.read(state, norm)
            yield state
            state = port.write(state, self.body(site, z))
            yield state


class Inputs:
    """A norm that keeps what it is given."""

    def __init__(self) -> None:
        self.seen: list[Tensor] = []

    def __call__(self, x: Tensor) -> Tensor:
        self.seen.append(x)
        return norm(x)


def inputs_of(network: Network, x: Tensor) -> list[Tensor]:
    """What each sublayer's norm, and the final one, is given."""
    inputs = Inputs()
    network(x, norm=inputs)
    return inputs.seen


def randomised(network: Network, scale: float = 0.3) -> Network:
    """`network`, with every parameter moved away from its start."""
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(scale * torch.randn_like(parameter))
    return network


def tensors(state: Any) -> list[Tensor]:
    """Every tensor of a state, in order; a tape and a number are none of them."""
    if isinstance(state, Tensor):
        return [state]
    if isinstance(state, Tape | int):
        return []
    assert isinstance(state, tuple), f"a state may not hold a {type(state).__name__}"
    return [tensor for part in state for tensor in tensors(part)]


def mapped(state: Any, function: Callable[[Tensor], Tensor]) -> Any:
    """A state of the same structure, with `function` applied to each tensor."""
    if isinstance(state, Tensor):
        return function(state)
    parts = (mapped(part, function) for part in state)
    return type(state)(*parts) if hasattr(state, "_fields") else tuple(parts)


def weighted(y: Tensor) -> Tensor:
    """A scalar to differentiate that weighs every entry differently."""
    return (y * torch.cos(torch.arange(y.numel(), device=y.device).view(y.shape) * 1.7)).sum()


def gradients(network: Network, x: Tensor, **options: Any) -> tuple[Tensor, list[Tensor]]:
    """The output, and the gradients of the input and of every parameter."""
    x = x.detach().clone().requires_grad_()
    y = network(x, **options)
    return y.detach(), list(torch.autograd.grad(weighted(y), [x, *network.parameters()]))
