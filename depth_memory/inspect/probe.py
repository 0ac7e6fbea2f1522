"""One forward pass with every sublayer's input, output, reads and writes recorded."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from depth_memory.errors import invalid
from depth_memory.models.trunk import DepthModel
from depth_memory.streams import frozen_coefficients
from depth_memory.streams.ldm_maps import Reader, Writer
from depth_memory.streams.memory import Observation


@dataclass
class Probe:
    """What one forward pass showed.

    Source 0 is the embedding and source s the output of sublayer s - 1; read l is the input of
    sublayer l before its norm, and the last read is what the final norm sees.
    """

    trunk: DepthModel
    input_ids: Tensor
    sources: list[Tensor] = field(default_factory=list)
    reads: list[Tensor] = field(default_factory=list)
    observations: dict[str, Observation] = field(default_factory=dict)
    gates: dict[str, Tensor] = field(default_factory=dict)


@contextmanager
def hooked(probe: Probe) -> Generator[None]:
    """Record into `probe`, with sublayer outputs as leaves: only the stream connects them."""
    trunk = probe.trunk

    def source(_: nn.Module, __: Any, output: Any) -> Any:
        # attention returns its output first, the embedding and the MLP return theirs alone
        y = output[0] if isinstance(output, tuple) else output
        leaf = y.detach().requires_grad_()
        probe.sources.append(leaf)
        return (leaf, *output[1:]) if isinstance(output, tuple) else leaf

    def read(_: nn.Module, inputs: tuple[Tensor, ...]) -> None:
        probe.reads.append(inputs[0])

    with ExitStack() as stack:
        for layer in trunk.layers:
            for name in ("self_attn", "mlp"):
                body = layer.get_submodule(name)
                stack.callback(body.register_forward_hook(source).remove)
            for name in ("input_layernorm", "post_attention_layernorm"):
                norm = layer.get_submodule(name)
                stack.callback(norm.register_forward_pre_hook(read).remove)
        stack.callback(trunk.embed_tokens.register_forward_hook(source).remove)
        stack.callback(trunk.norm.register_forward_pre_hook(read).remove)
        for name, module in trunk.named_modules():
            for remove in _hook_maps(name, module, probe):
                stack.callback(remove)
        yield


def _hook_maps(name: str, module: nn.Module, probe: Probe) -> list[Callable[[], None]]:
    """Hooks on the learned maps of a memory stream; other modules have none."""

    def written(_: nn.Module, __: Any, output: Observation) -> None:
        probe.observations[name] = output

    def gated(_: nn.Module, __: Any, output: Tensor) -> None:
        probe.gates[name] = output.detach().sigmoid()

    if isinstance(module, Writer):
        return [module.register_forward_hook(written).remove]
    if isinstance(module, Reader) and module.gate is not None:
        return [module.gate.register_forward_hook(gated).remove]
    return []


def run(model: nn.Module, input_ids: Tensor) -> Probe:
    """Probe a model of this package on token ids [batch, length].

    The model is run as in evaluation, with its mixing coefficients held fixed for the gradients
    of `retrieval_map`; its parameters and its mode are left as they were.

    Raises:
        UserError: The model has no stream, there are no tokens, or a number is not finite, which
            names the first place in depth.
    """
    trunk = trunk_of(model)
    if input_ids.numel() == 0:
        raise invalid("tokens", 0, "at least one")
    probe = Probe(trunk, input_ids)
    with evaluating(model), frozen_coefficients(), hooked(probe), torch.enable_grad():
        trunk(input_ids=input_ids, use_cache=False)
    _check_finite(probe)
    return probe


def trunk_of(model: nn.Module) -> DepthModel:
    """The part of a model that has the stream.

    Raises:
        UserError: The model has no stream.
    """
    trunk = next((module for module in model.modules() if isinstance(module, DepthModel)), None)
    if trunk is None:
        raise invalid("model", type(model).__name__, "a model with a stream")
    return trunk


@contextmanager
def evaluating(model: nn.Module) -> Generator[None]:
    """Evaluation mode, and afterwards the mode that was."""
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def names(sites: int) -> tuple[list[str], list[str]]:
    """The names of the reads and of the sources of a network of `sites` sublayers."""
    sublayers = [f"{'mlp' if site % 2 else 'attention'} {site // 2}" for site in range(sites)]
    return [*sublayers, "output"], ["embedding", *sublayers]


def _check_finite(probe: Probe) -> None:
    reads, sources = names(len(probe.sources) - 1)
    for depth, read in enumerate(probe.reads):
        source, into = f"{sources[depth]}: output", f"{reads[depth]}: input"
        for place, values in ((source, probe.sources[depth]), (into, read)):
            bad = values.detach()[~values.detach().isfinite()]
            if bad.numel():
                raise invalid(place, bad[0].item(), "finite numbers")
