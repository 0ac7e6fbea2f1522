"""LDM by kernels: the same streams, with the D-sized work between two sublayers fused.

A write computes where its value goes and leaves the rest to the next read, which adds, folds,
retrieves and norms. What the passes of one depth share is on a tape (`ops/exchange/tape.py`).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from depth_memory.ops import _impl
from depth_memory.ops._precision import compute_dtype
from depth_memory.ops.exchange.tape import Layout, Read, Tape
from depth_memory.streams.base import Norm, coefficients_are_frozen
from depth_memory.streams.ldm_config import AbstractLDMConfig
from depth_memory.streams.ldm_maps import Reader, Writer
from depth_memory.streams.memory import Observation


class Exchange(NamedTuple):
    """The residual stream and what is on its way: outputs that have not been added to it yet."""

    h: Float[Tensor, "*tokens D"]
    outputs: tuple[Float[Tensor, "*tokens D"], ...]
    covariance: Float[Tensor, "N G Dk Dk"]
    token: Float[Tensor, ""]
    tape: Tape


def obstacle(config: AbstractLDMConfig, x: Tensor) -> str | None:
    """Why the kernels cannot carry this stream for `x`, or None if they can."""
    wanted = {
        "embedding_write": True,
        "final_read": True,
        "residual": True,
        "latent_norm": "rms",
        "latent_input": "output",
    }
    for field, value in wanted.items():
        if getattr(config, field) != value:
            return f"{field} is not {value}"
    if torch.compiler.is_compiling() or coefficients_are_frozen():
        return "the plain path is traced"
    return _impl.obstacle("exchange", x.device)


def applies(config: AbstractLDMConfig, x: Tensor) -> bool:
    """Whether the kernels carry this stream for `x`.

    Raises:
        UserError: The configuration asks for kernels that cannot run.
    """
    if config.impl == "reference" or (config.impl == "auto" and obstacle(config, x) is not None):
        return False
    return _impl.resolve("exchange", config.impl, x.device) == "triton"


def layout(config: AbstractLDMConfig, writes: int, window: int, dtype: torch.dtype) -> Layout:
    """Sizes of the tape for a stream of `writes` writes whose windows are folded at `window`."""
    wide = compute_dtype((torch.empty(0, dtype=dtype),))
    half = config.state_dtype == "bfloat16" and wide == torch.float32
    return Layout(
        window=min(window, writes),
        groups=config.groups,
        key_dim=config.key_dim,
        keys=1 if config.shared_keys else config.groups,
        erases=config.name != "ldm_outer",
        keeps=config.name != "ldm",
        folds=window <= writes,
        state_dtype=torch.bfloat16 if half else wide,
    )


def begin(x: Tensor, sizes: Layout, prior: Tensor | None, writer: Writer) -> Exchange:
    """The state once the embedding has been written."""
    from depth_memory.ops.exchange.nodes import Store

    tape = Tape(sizes, torch.is_grad_enabled())
    tape.open(_rows(x), None, None)
    value, latent = Store.apply(tape, _rows(x), None, _weight(writer, x))
    token = x.new_zeros(())
    N, K = value.shape[0], sizes.key_dim
    covariance = token if prior is None else prior.expand(N, sizes.groups, K, K).contiguous()
    covariance, token = _observe(tape, writer.complete(latent), covariance, token)
    return Exchange(value.view(x.shape), (), covariance, token, tape)


def exchange(state: Exchange, reader: Reader, norm: Norm) -> tuple[Tensor, Exchange]:
    """Add what is on its way to the residual stream; read, and norm."""
    from depth_memory.ops.exchange.nodes import Advance, Retrieve

    h, outputs, covariance, token, tape = state
    read = Read()
    value = _rows(outputs[0]) if outputs else None
    rows, latent = Advance.apply(tape, read, _rows(h), value, _weight(reader, h))
    query, scale = reader.complete(latent)
    weight, eps = rms_parameters(norm, h)
    x = Retrieve.apply(tape, read, rows, query, scale, token, weight, eps).view(h.shape)
    state = Exchange(rows.view(h.shape), (), covariance, token, tape)
    return (norm(x) if weight is None else x), state


def add_norm(state: Exchange, norm: Norm) -> tuple[Tensor, Exchange]:
    """The normed input of a sublayer that reads no memory; nothing is added for good."""
    from depth_memory.ops.exchange.nodes import AddNorm

    h, outputs, covariance, token, tape = state
    weight, eps = rms_parameters(norm, h)
    if weight is None:
        return norm(h + outputs[0]), state
    x, rows, y = AddNorm.apply(_rows(h), _rows(outputs[0]), weight, eps)
    pending = Exchange(rows.view(h.shape), (y.view(h.shape),), covariance, token, tape)
    return x.view(h.shape), pending


def write(state: Exchange, y: Tensor, writer: Writer | None) -> Exchange:
    """Keep `y`, together with what was kept before; say where it is written."""
    from depth_memory.ops.exchange.nodes import Store

    h, outputs, covariance, token, tape = state
    y = y.to(h.dtype)
    if writer is None:
        return Exchange(h, (y,), covariance, token, tape)
    first, second = (outputs[0], y) if outputs else (y, None)
    second = None if second is None else _rows(second)
    value, latent = Store.apply(tape, _rows(first), second, _weight(writer, h))
    covariance, token = _observe(tape, writer.complete(latent), covariance, token)
    return Exchange(h, (value.view(h.shape),), covariance, token, tape)


def rms_parameters(norm: Norm, like: Tensor) -> tuple[Tensor | None, float]:
    """Weight and epsilon of a plain RMS norm; no weight if `norm` is anything else."""
    kind = type(norm).__name__
    if not isinstance(norm, nn.Module) or not kind.endswith("RMSNorm") or norm._forward_hooks:
        return None, 0.0
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weight = getattr(norm, "weight", None)
    if not isinstance(eps, float) or weight is None or weight.dtype != like.dtype:
        return None, 0.0
    return weight, eps


def _observe(
    tape: Tape, observation: Observation, covariance: Tensor, token: Tensor
) -> tuple[Tensor, Tensor]:
    from depth_memory.ops.exchange.nodes import Note, Observe

    key, forgetting, importance = observation
    key, importance = key.contiguous(), importance.contiguous()
    sizes = tape.layout
    if not sizes.keeps:
        return Observe.apply(tape, covariance, key, forgetting, importance, token)
    gain = (importance[..., None] * key).expand(-1, sizes.groups, -1)
    return covariance, Note.apply(tape, gain, key, forgetting, token)


def _rows(x: Tensor) -> Tensor:
    return x.reshape(-1, x.shape[-1]).contiguous()


def _weight(map: Reader | Writer, like: Tensor) -> Tensor:
    return map.latent.weight.to(like.dtype).contiguous()
