"""LDM by kernels for few tokens without gradients, as in decoding: what counts is the launches.

A write waits for the next read, which takes both in two launches (`ops/exchange/step.py`). The
memory is then that of the recurrence, in float32 whatever `window` and `state_dtype` say: both are
about what moves for many tokens.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor

from depth_memory.ops import _impl
from depth_memory.streams.base import Norm, Stream
from depth_memory.streams.ldm_config import AbstractLDMConfig
from depth_memory.streams.ldm_fused import gives_way, obstacle, rms_parameters, rows_of
from depth_memory.streams.ldm_maps import Affine, Latent, Reader, Writer

if TYPE_CHECKING:
    # at run time only where kernels run: they need Triton, which is not everywhere
    from depth_memory.ops.exchange.step import Map, Maps
    from depth_memory.streams.ldm import LDM

TOKENS = 128
"""Above it, what moves decides and no longer the launches."""


class Stepping(NamedTuple):
    """The residual stream, the memory, and a value that waits to be written, with its writer."""

    h: Float[Tensor, "*tokens D"]
    add: tuple[Float[Tensor, "N D"], ...]
    """What `h` still has to gain."""
    value: tuple[Float[Tensor, "N D"], ...]
    """Up to two parts of a value."""
    memory: tuple[Float[Tensor, "N D Dk"], ...]
    covariance: tuple[Float[Tensor, "N G Dk Dk"], ...]
    waiting: tuple[Writer, ...]
    """What says where the value goes, once it is whole."""
    config: AbstractLDMConfig


def applies(stream: Stream, x: Tensor) -> bool:
    """Whether these kernels carry this stream for `x`; it is never wrong that they do not."""
    config: AbstractLDMConfig = stream.config
    if torch.is_grad_enabled() or x.numel() > TOKENS * x.shape[-1]:
        return False
    if gives_way(stream) or obstacle(stream, x.device) is not None:
        return False
    # the parameters of a port may be sharded away before the next one reads
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        return False
    if _impl.resolve("step", config.impl, x.device) != "triton":
        return False
    from depth_memory.ops.exchange.step import fits

    return fits(config.groups, config.key_dim, (config.read_rank, config.write_rank))


def begin(stream: LDM, x: Tensor) -> Stepping:
    """The state once the embedding waits to be written."""
    config: AbstractLDMConfig = stream.config
    covariance: tuple[Tensor, ...] = ()
    if stream.prior is not None:
        shape = (x.numel() // x.shape[-1], config.groups, config.key_dim, config.key_dim)
        covariance = (stream.prior(x).expand(shape).contiguous(),)
    return Stepping(x, (), (rows_of(x),), (), covariance, (stream.embedding_writer,), config)


def read(state: Stepping, reader: Reader | None, norm: Norm) -> tuple[Tensor, Stepping]:
    """Write what waits, read, and norm; without a reader, add and norm."""
    if reader is None:
        return _add_norm(state, norm)
    from depth_memory.ops.exchange import step
    from depth_memory.ops.exchange.read import Norm as Parameters

    h, add, value, memory, covariance, (writer,), config = state
    weight, eps = rms_parameters(norm, h)
    total, x, M, P = step.step(
        step.Values(rows_of(h), _nth(add, 0), value[0], _nth(value, 1)),
        step.State(_nth(memory, 0), _nth(covariance, 0)),
        _maps(writer, reader),
        step.Form.of(config),
        None if weight is None else Parameters(weight, eps),
    )
    covariance = () if P is None else (P,)
    state = Stepping(total.view(h.shape), (), (), (M,), covariance, (), config)
    x = x.view(h.shape)
    return (norm(x) if weight is None else x), state


def write(state: Stepping, y: Tensor, writer: Writer | None) -> Stepping:
    """Keep `y` until the next read; the one before has added what there was."""
    y = rows_of(y.to(state.h.dtype))
    waiting = () if writer is None else (writer,)
    return state._replace(add=(y,), value=(*state.value, y), waiting=waiting)


def _add_norm(state: Stepping, norm: Norm) -> tuple[Tensor, Stepping]:
    """The normed input of a sublayer that reads no memory; the value goes on waiting."""
    from depth_memory.ops.exchange.norm import add_norm_forward
    from depth_memory.ops.exchange.read import Norm as Parameters

    h, y = state.h, state.add[0]
    weight, eps = rms_parameters(norm, h)
    if weight is None:
        state = state._replace(h=h + y.view(h.shape), add=())
        return norm(state.h), state
    total, x = add_norm_forward(rows_of(h), y, Parameters(weight, eps))
    return x.view(h.shape), state._replace(h=total.view(h.shape), add=())


def _maps(writer: Writer, reader: Reader) -> Maps:
    from depth_memory.ops.exchange.step import Maps

    forgetting = writer.forgetting
    return Maps(
        write_latent=_map(writer.latent),
        key=_map(writer.key),
        importance=None if writer.importance is None else _map(writer.importance),
        forgetting=None if forgetting is None else forgetting.logit,
        log_floor=0.0 if forgetting is None else forgetting.log_floor,
        read_latent=_map(reader.latent),
        query=_map(reader.query),
        gate=None if reader.gate is None else _map(reader.gate),
        gain=reader.gain,
    )


def _map(module: Affine | Latent) -> Map:
    from depth_memory.ops.exchange.step import Map

    return Map(module.weight, module.bias)


def _nth(parts: tuple[Tensor, ...], n: int) -> Tensor | None:
    """What is there at that place, if anything."""
    return parts[n] if n < len(parts) else None
