"""LDM by kernels: the same streams, with the D-sized work between two sublayers fused.

A write computes where its value goes and leaves the rest to the next read, which adds, folds,
retrieves and norms. What the passes of one depth share is on a tape (`ops/exchange/tape.py`).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import torch
from jaxtyping import Float
from torch import Tensor, nn

from depth_memory.errors import UserError, invalid
from depth_memory.ops import _impl
from depth_memory.ops._precision import compute_dtype
from depth_memory.streams.base import Norm, Stream, is_observed
from depth_memory.streams.ldm_config import AbstractLDMConfig
from depth_memory.streams.ldm_maps import Reader, Writer
from depth_memory.streams.memory import Observation

if TYPE_CHECKING:
    # at run time only where kernels run: they need Triton, which is not everywhere
    from depth_memory.ops.exchange.tape import Layout, Tape
    from depth_memory.streams.ldm import LDM


class Exchange(NamedTuple):
    """The residual stream and what is on its way: outputs that have not been added to it yet."""

    h: Float[Tensor, "*tokens D"]
    outputs: tuple[Float[Tensor, "*tokens D"], ...]
    covariance: Float[Tensor, "N G Dk Dk"]
    token: Float[Tensor, ""]
    tape: Tape
    step: int
    """Which state of its pass this is."""


PLAIN_NORMS = ("RMSNorm", "LlamaRMSNorm", "Qwen3RMSNorm")
"""Names of torch's and transformers' modules that compute `weight * x / rms(x)`."""


def applies(stream: Stream, x: Tensor) -> bool:
    """Whether kernels carry this stream for `x`.

    `auto` takes them where gradients are wanted: there they are measured to be right and faster.
    Without gradients it keeps to the reference, which is bit for bit the plain model after a graft.

    Raises:
        UserError: The configuration asks for kernels that cannot run.
    """
    config: AbstractLDMConfig = stream.config
    if gives_way(stream) or (config.impl == "auto" and not torch.is_grad_enabled()):
        return False
    against = obstacle(stream, x.device)
    if config.impl == "triton" and against is not None:
        raise invalid("stream.impl", config.impl, f"auto, reference ({against})")
    return against is None and _impl.resolve("exchange", config.impl, x.device) == "triton"


def gives_way(stream: Stream) -> bool:
    """Whether the reference runs, whatever kernels could do."""
    asked = stream.config.impl == "reference"
    return asked or torch.compiler.is_compiling() or is_observed()


def obstacle(stream: Stream, device: torch.device) -> str | None:
    """Why kernels cannot carry this stream on `device`, or None if they can."""
    if any("forward" in vars(module) for module in stream.modules()):
        # accelerate's hooks bring weights from elsewhere; a kernel would not call them
        return "another library has replaced the forward of its modules"
    return stream.config.beyond_kernels or _impl.obstacle("exchange", device)


def layout(config: AbstractLDMConfig, writes: int, window: int, dtype: torch.dtype) -> Layout:
    """Sizes of the tape for a stream of `writes` writes whose windows are folded at `window`."""
    from depth_memory.ops.exchange.tape import Layout

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


def begin(stream: LDM, x: Tensor) -> Exchange:
    """The state once the embedding has been written."""
    from depth_memory.ops.exchange.nodes import Store
    from depth_memory.ops.exchange.tape import Tape

    sizes = layout(stream.config, stream.writes, stream.form.window, x.dtype)
    prior = None if stream.prior is None else stream.prior(x)
    writer = stream.embedding_writer
    tape = Tape(sizes, torch.is_grad_enabled())
    tape.open(rows_of(x))
    value, latent = Store.apply(tape, rows_of(x), None, _weight(writer, x))
    token = x.new_zeros(())
    N, K = value.shape[0], sizes.key_dim
    covariance = token if prior is None else prior.expand(N, sizes.groups, K, K).contiguous()
    covariance, token = _observe(tape, writer.complete(latent), covariance, token)
    return Exchange(value.view(x.shape), (), covariance, token, tape, 0)


def read(state: Exchange, reader: Reader | None, norm: Norm) -> tuple[Tensor, Exchange]:
    """Add what is on its way to the residual stream; read, and norm. Without a reader, norm."""
    if reader is None:
        return _add_norm(state, norm)
    from depth_memory.ops.exchange.nodes import Advance, Retrieve
    from depth_memory.ops.exchange.tape import Read

    h, outputs, covariance, token, tape, _ = state
    step = _next(state)
    reading = Read()
    value = rows_of(outputs[0]) if outputs else None
    rows, latent = Advance.apply(tape, reading, rows_of(h), value, _weight(reader, h))
    query, scale = reader.complete(latent)
    weight, eps = rms_parameters(norm, h)
    x = Retrieve.apply(tape, reading, rows, query, scale, token, weight, eps).view(h.shape)
    state = Exchange(rows.view(h.shape), (), covariance, token, tape, step)
    return (norm(x) if weight is None else x), state


def _add_norm(state: Exchange, norm: Norm) -> tuple[Tensor, Exchange]:
    """The normed input of a sublayer that reads no memory; nothing is added for good."""
    from depth_memory.ops.exchange.nodes import AddNorm

    h, outputs, covariance, token, tape, step = state
    weight, eps = rms_parameters(norm, h)
    if weight is None:
        return norm(h + outputs[0]), state
    x, rows, y = AddNorm.apply(rows_of(h), rows_of(outputs[0]), weight, eps)
    pending = (y.view(h.shape),)
    state = Exchange(rows.view(h.shape), pending, covariance, token, tape, step)
    return x.view(h.shape), state


def write(state: Exchange, y: Tensor, writer: Writer | None) -> Exchange:
    """Keep `y`, together with what was kept before; say where it is written."""
    from depth_memory.ops.exchange.nodes import Store

    h, outputs, covariance, token, tape, step = state
    y = y.to(h.dtype)
    if writer is None:
        return Exchange(h, (y,), covariance, token, tape, step)
    step = _next(state)
    first, second = (outputs[0], y) if outputs else (y, None)
    second = None if second is None else rows_of(second)
    value, latent = Store.apply(tape, rows_of(first), second, _weight(writer, h))
    covariance, token = _observe(tape, writer.complete(latent), covariance, token)
    return Exchange(h, (value.view(h.shape),), covariance, token, tape, step)


def rms_parameters(norm: Norm, like: Tensor) -> tuple[Tensor | None, float]:
    """Weight and epsilon of a plain RMS norm; no weight if `norm` is or does anything else."""
    if not isinstance(norm, nn.Module) or type(norm).__name__ not in PLAIN_NORMS:
        return None, 0.0
    hooks = (norm._forward_pre_hooks, norm._forward_hooks)
    hooks += (norm._backward_pre_hooks, norm._backward_hooks)
    eps = getattr(norm, "variance_epsilon", getattr(norm, "eps", None))
    weight = norm.weight
    if any(hooks) or "forward" in vars(norm) or not isinstance(eps, float):
        return None, 0.0
    if not isinstance(weight, Tensor) or weight.shape != like.shape[-1:]:
        return None, 0.0
    alike = weight.dtype == like.dtype and weight.device == like.device
    return (weight, eps) if alike else (None, 0.0)


def _next(state: Exchange) -> int:
    """The number of the state that follows.

    Raises:
        UserError: Another state has followed already, and the tape has gone on with it.
    """
    if state.step != state.tape.steps:
        raise UserError(
            "stream.impl: kernels run a layer once; allowed: reference, to run it again"
        )
    state.tape.steps += 1
    return state.tape.steps


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


def rows_of(x: Float[Tensor, "*tokens D"]) -> Float[Tensor, "N D"]:
    """The tokens one below the other, as kernels take them."""
    return x.reshape(-1, x.shape[-1]).contiguous()


def _weight(map: Reader | Writer, like: Tensor) -> Tensor:
    return map.latent.weight.to(like.dtype).contiguous()
