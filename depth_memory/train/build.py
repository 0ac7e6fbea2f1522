"""From a configuration to a network with its first weights."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

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
) -> tuple[DepthForCausalLM, Weights]:
    """The network of a run at its start, on its device, in its precision, spread over `world`.

    The first weights depend on `run.model` and `run.seed` alone.

    Args:
        run: The run.
        vocab_size: Number of token ids.
        end_id: The id that ends a text, for generation.
        world: The processes.
        config: Of a pretrained network, which then takes the place of `run.model` and of the two
            numbers; its weights are still to be loaded.

    Returns:
        The network to call, and the float32 weights: those to optimise, and frozen ones.

    Raises:
        UserError: Nothing is left to train, or the stream cannot run on the device.
    """
    torch.manual_seed(run.seed)
    model = build_model(run.model, vocab_size, end_id) if config is None else build_from(config)
    model = model.to(world.device)
    with torch.no_grad():  # what cannot run here says so before a directory is made for it
        model.model.stream.start(torch.zeros(1, 1, run.model.width, device=world.device))
    if run.freeze == "backbone":
        _freeze_backbone_(model)
    if run.checkpointing:
        # renamed in transformers 5.23
        old, new = "gradient_checkpointing_enable", "activation_checkpointing_enable"
        getattr(model, new if hasattr(model, new) else old)({"use_reentrant": False})
    if run.compile:
        for layer in model.model.layers:
            layer.compile()
    dtype = precision.DTYPES[run.precision]
    if world.size > 1:
        parallel.shard_(model, world, dtype)
        return model, precision.whole(model)
    if dtype is not torch.float32:
        return model, precision.rounded_(model, dtype)
    return model, precision.whole(model)


def _freeze_backbone_(model: DepthForCausalLM) -> None:
    from depth_memory.models.names import is_of_stream

    trained = {name for name, _ in model.named_parameters() if is_of_stream(name)}
    if not trained:
        name = model.config.stream["name"]
        raise invalid("freeze", "backbone", f"none, for stream {name}, which has no parameters")
    for name, parameter in model.named_parameters():
        parameter.requires_grad_(name in trained)
