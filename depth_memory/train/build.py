"""From a configuration to a network with its first weights."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING

import torch
from torch.utils.checkpoint import checkpoint

from depth_memory import streams
from depth_memory.errors import invalid
from depth_memory.train import parallel, precision
from depth_memory.train.config import ModelSpec, Run
from depth_memory.train.precision import Weights

if TYPE_CHECKING:
    from depth_memory.models import DepthForCausalLM
    from depth_memory.models.config import DepthConfig


def build_model(spec: ModelSpec, vocab_size: int, end_id: int | None = None) -> DepthForCausalLM:
    """A causal language model in float32 on torch's default device.

    Args:
        spec: The network; its first weights are drawn from torch's global generator.
        vocab_size: Number of token ids.
        end_id: The id that ends a text, for generation.
    """
    from depth_memory import models

    return models.build_model(
        spec.family,
        streams.as_dict(spec.stream),
        vocab_size=vocab_size,
        hidden_size=spec.width,
        intermediate_size=spec.ffn,
        num_hidden_layers=spec.depth,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.kv_heads,
        head_dim=spec.head_size,
        max_position_embeddings=spec.max_length,
        rms_norm_eps=spec.norm_eps,
        initializer_range=spec.init_std,
        tie_word_embeddings=spec.tie_embeddings,
        rope_parameters={"rope_type": "default", "rope_theta": spec.rope_theta},
        bos_token_id=None,
        eos_token_id=end_id,
        pad_token_id=None,
    ).float()


def build_from(config: DepthConfig) -> DepthForCausalLM:
    """The network that a configuration describes, in float32, with fresh weights."""
    from depth_memory import models

    return models.class_for(models.family_name(config))(config).float()


def prepare(
    run: Run,
    vocab_size: int,
    end_id: int,
    world: parallel.World,
    config: DepthConfig | None = None,
    *,
    fresh: bool = True,
) -> tuple[DepthForCausalLM, Weights]:
    """The network of a run at its start, on its device, in its precision, spread over `world`.

    The first weights depend on `run.model` and `run.seed` alone. Several processes never hold them
    all: each module starts by itself, on the CPU, and is spread before the next one.

    Args:
        run: The run.
        vocab_size: Number of token ids.
        end_id: The id that ends a text, for generation.
        world: The processes.
        config: Of a pretrained network, which then takes the place of `run.model` and of the two
            numbers; its weights are still to be loaded.
        fresh: Whether the first weights are wanted: without it they may be any, to be loaded over.

    Returns:
        The network to call, and the float32 weights: those to optimise, and frozen ones.

    Raises:
        UserError: Nothing is left to train, the stream cannot run on the device, or the processes
            cannot be divided among `run.replicas`.
    """
    _check_stream(run, world.device)
    torch.manual_seed(run.seed)

    def make() -> DepthForCausalLM:
        return build_model(run.model, vocab_size, end_id) if config is None else build_from(config)

    dtype = precision.DTYPES[run.precision]
    mesh = parallel.mesh_of(world, run.replicas)
    if mesh is not None:
        from depth_memory.models import deferred

        model, starts = deferred.build(make, fresh=fresh)
        _arrange_(model, run)
        parallel.shard_(model, mesh, dtype)
        parallel.place_(model, world.device)
        deferred.start(model, starts, parallel.fill_)
        return model, precision.whole(model)
    model = make().to(world.device)
    _arrange_(model, run)
    if dtype is not torch.float32:
        return model, precision.rounded_(model, dtype)
    return model, precision.whole(model)


def _check_stream(run: Run, device: torch.device) -> None:
    """What cannot run here says so before a directory is made for it."""
    with torch.no_grad():
        stream = streams.build(run.model.stream, run.model.width, 2 * run.model.depth)
        stream.to(device).start(torch.zeros(1, 1, run.model.width, device=device))


def _arrange_(model: DepthForCausalLM, run: Run) -> None:
    """What is trained, recomputed and compiled."""
    if run.freeze == "backbone":
        _freeze_backbone_(model)
    if run.checkpointing:
        recompute = functools.partial(checkpoint, use_reentrant=False)
        model._set_gradient_checkpointing(True, recompute, run.checkpoint_every)
    if run.compile:
        for layer in model.model.layers:
            layer.compile()


def _freeze_backbone_(model: DepthForCausalLM) -> None:
    from depth_memory.models.names import is_of_stream

    trained = {name for name, _ in model.named_parameters() if is_of_stream(name)}
    if not trained:
        name = model.config.stream["name"]
        raise invalid("freeze", "backbone", f"none, for stream {name}, which has no parameters")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
