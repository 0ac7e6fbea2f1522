"""What a network and its stream cost: parameters, arithmetic, and state between sublayers.

Nothing here knows a stream. A stream is built on the meta device, where tensors have shapes but no
numbers, and its own code is run there once, for one token; what is counted is what would be done.
For D channels, L sublayers, n lanes, S sources, G groups, key dimension Dk and b bytes per element
of an activation (floats of the memory take 4), this comes to

    stream          state, bytes per token                          multiplications per token
    preln           b D                                             0
    preln_adapter   b D                                             the maps alone
    hc, mhc         b n D                                           L (n^2 + 2 n) D, and the maps
    denseformer     b D (2 + L / 2)                                 S D at the end of a block
    attnres         b D S, S up to L + 1 (blocks + 1 for block_)    4 S D at a read
    ldm             b D (1 + w) + 4 Dk D + 4 G (Dk^2 + w (2 Dk + 1))
                                                                    (Dk + w) D at a read,
                                                                    Dk (Dk + w) D at a fold

with w the writes that wait in the window; `ldm_delta` and `ldm_outer` lack the covariance Dk^2. To
this each stream adds one multiplication per weight of its maps, and small terms without D.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves
from torch.utils.flop_counter import FlopCounterMode

from depth_memory import streams
from depth_memory.errors import invalid
from depth_memory.streams.adapter import PreLNAdapterConfig
from depth_memory.streams.base import Port, State, Stream
from depth_memory.train.build import build_model
from depth_memory.train.config import ModelSpec
from depth_memory.train.throughput import matmul_weights, training_flops


@dataclass(frozen=True, kw_only=True)
class StreamCounts:
    """What a stream adds to a network, whatever the backbone."""

    parameters: int
    """Of the stream and all its ports."""
    training_flops: int
    """Per token, forward and backward: three times those of the forward pass."""
    state_bytes: int
    """Per token, the most that passes from one sublayer to the next, or to the head."""


@dataclass(frozen=True, kw_only=True)
class BackboneCounts:
    """The network without its stream."""

    parameters: int
    """Shared ones once."""
    training_flops: int
    """Per token, forward and backward."""


def count_stream(
    config: Any, *, width: int, sites: int, dtype: torch.dtype = torch.bfloat16
) -> StreamCounts:
    """Count what a stream costs in a network.

    A multiplication counts with an addition as 2 FLOPs, as in matrix products; sums without one,
    divisions and functions are left out, and the backward pass counts twice the forward. It is the
    arithmetic of the plain PyTorch forms: a kernel may save some.

    Args:
        config: A stream's configuration, or a mapping with its `name`.
        width: Model dimension D.
        sites: Number of sublayers, two per layer.
        dtype: Of the activations.

    Raises:
        UserError: The configuration does not fit the network.
    """
    with torch.device("meta"), torch.no_grad():
        stream = streams.build(config, width, sites)
        ports = [stream.port(site) for site in range(sites)]
        with _flop_counter() as counter:
            sizes, last = _run(stream, ports, torch.empty(1, width, dtype=dtype))
        largest = _largest(ports, sizes, last)
    return StreamCounts(
        parameters=_size(nn.ModuleList([stream, *ports])),
        training_flops=3 * counter.get_total_flops(),
        state_bytes=largest,
    )


def state_bytes(config: Any, *, width: int, sites: int, dtype: torch.dtype = torch.bfloat16) -> int:
    """The state of a stream, as in `StreamCounts`; arguments as in `count_stream`."""
    with torch.device("meta"), torch.no_grad():
        stream = streams.build(config, width, sites)
        ports = [stream.port(site) for site in range(sites)]
        return _largest(ports, *_run(stream, ports, torch.empty(1, width, dtype=dtype)))


def control(config: Any, *, width: int, sites: int) -> PreLNAdapterConfig:
    """The control of a stream: as many new parameters, and no way through the depth.

    Args:
        config: A stream's configuration, or a mapping with its `name`.
        width: Model dimension D.
        sites: Number of sublayers, two per layer.

    Returns:
        The adapter of the least rank with at least as many parameters as the stream; it has less
        than one rank, 2 D per sublayer, more.

    Raises:
        UserError: The stream has no parameters, or does not fit the network.
    """
    wanted = count_stream(config, width=width, sites=sites).parameters
    if wanted == 0:
        raise invalid("stream.name", streams.resolve(config).name, "a stream with parameters")
    each = count_stream(PreLNAdapterConfig(rank=1), width=width, sites=sites).parameters
    return PreLNAdapterConfig(rank=math.ceil(wanted / each))


def count_parameters(config: Any, *, width: int, sites: int) -> int:
    """The parameters of a stream and all its ports; arguments as in `count_stream`."""
    with torch.device("meta"):
        stream = streams.build(config, width, sites)
        return _size(nn.ModuleList([stream, *(stream.port(site) for site in range(sites))]))


@functools.lru_cache
def _plain(spec: ModelSpec, vocab_size: int) -> tuple[int, int]:
    """Parameters, and weights of matrix products, of a network; building one takes a while."""
    with torch.device("meta"):
        model = build_model(spec, vocab_size)
    return _size(model), matmul_weights(model)


def count_backbone(spec: ModelSpec, *, vocab_size: int, length: int) -> BackboneCounts:
    """Count what the network costs without a stream.

    FLOPs are those of `train.throughput`, by which a run states its MFU.

    Args:
        spec: The network.
        vocab_size: Number of token ids.
        length: Tokens per sequence.
    """
    # presets that differ in the stream alone share their backbone
    parameters, linear = _plain(replace(spec, stream={"name": "preln"}), vocab_size)
    attention = spec.heads * spec.head_size
    flops = training_flops(linear, depth=spec.depth, attention=attention, length=length)
    return BackboneCounts(parameters=parameters, training_flops=flops)


def state_size(state: Any) -> int:
    """Bytes of all tensors in a stream's state; an expanded one counts in full."""
    return sum(leaf.nbytes for leaf in tree_leaves(state) if isinstance(leaf, Tensor))


def _run(stream: Stream, ports: Sequence[Port], x: Tensor) -> tuple[list[int], State]:
    """Pass one token through all sublayers, each of which returns its input.

    Returns:
        The sizes of the states between them, and the last state.
    """
    state = stream.start(x)
    sizes = [state_size(state)]
    for port in ports:
        y, state = port.read(state, _identity)
        # an output may wait for the next read, and a read may leave something for its write
        sizes[-1] = min(sizes[-1], state_size(state))
        state = port.write(state, y)
        sizes.append(state_size(state))
    stream.finish(state, _identity)
    return sizes, state


def _largest(ports: Sequence[Port], sizes: list[int], last: State) -> int:
    # the head adds what waits, as a read would
    return max(*sizes[:-1], min(sizes[-1], state_size(ports[-1].read(last, _identity)[1])))


def _identity(x: Tensor) -> Tensor:
    return x


def _flop_counter() -> FlopCounterMode:
    """Counts matrix products, as torch does, and products of elements beside them."""
    aten = torch.ops.aten
    return FlopCounterMode(
        display=False, custom_mapping={aten.mul: _elementwise, aten.pow: _elementwise}
    )


def _elementwise(*shapes: Any, out_shape: Any = None, **options: Any) -> int:
    del shapes, options
    return 2 * math.prod(out_shape)


def _size(module: nn.Module) -> int:
    return sum(p.numel() for p in module.parameters())
