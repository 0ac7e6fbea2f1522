"""Going on from a pretrained model: its network, its weights, its tokenizer.

A run that has an `origin` takes its network from that directory's `config.json`, not from fields of
its own, and its first weights from there. What lies beside the weights goes into every checkpoint,
from which a resume then reads it: a run that has begun needs its origin no more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import nn

from depth_memory import weights
from depth_memory.data import TokenData, load_tokenizer
from depth_memory.errors import UserError, choose, invalid
from depth_memory.files import read_json, reason, sha256_of
from depth_memory.train import directory, parallel, serial
from depth_memory.train.config import ModelSpec, Run
from depth_memory.weights import TEXTS

if TYPE_CHECKING:
    from depth_memory.models.config import DepthConfig


@dataclass(frozen=True, kw_only=True)
class Network:
    """What a pretrained network is, but for its weights."""

    config: DepthConfig
    texts: dict[str, str]
    """The files beside the weights: name to content."""


def continued(run: Run, folder: Path) -> Run:
    """`run`, going on from a saved model: with its network, and the directory as the origin.

    Args:
        run: Says everything but the network.
        folder: Of a model of this package, such as `depth-memory convert` writes.

    Raises:
        UserError: It is none.
    """
    return replace(run, model=spec_of(read_config(folder)), origin=folder)


def read_config(folder: Path) -> DepthConfig:
    """The configuration of a saved model of this package.

    Raises:
        UserError: There is none, or it is of plain transformers or of a newer version.
    """
    from depth_memory.models import FAMILIES, config_for

    path = folder / "config.json"
    model_type = str(read_json(path, "the configuration of a model").get("model_type"))
    if model_type in FAMILIES:
        allowed = "a model with a stream; depth-memory convert gives it one, preln or another"
        raise invalid(f"{path}: model_type", model_type, allowed)
    choose(f"{path}: model_type", model_type, [f"depth_{name}" for name in FAMILIES])
    try:
        return config_for(model_type.removeprefix("depth_")).from_pretrained(folder)
    except UserError as error:
        raise UserError(f"{path}: {error}") from error
    # what transformers raises for fields that do not fit one another
    except Exception as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from error


def spec_of(config: DepthConfig) -> ModelSpec:
    """What a run says of a pretrained network; the rest stays in its `config.json`."""
    return ModelSpec(
        family="llama" if config.model_type == "depth_llama" else "qwen3",
        width=config.hidden_size,
        depth=config.num_hidden_layers,
        heads=config.num_attention_heads,
        kv_heads=config.num_key_value_heads,
        head_dim=config.head_dim,
        ffn=config.intermediate_size,
        tie_embeddings=config.tie_word_embeddings,
        rope_theta=float(config.rope_parameters["rope_theta"]),
        norm_eps=config.rms_norm_eps,
        init_std=config.initializer_range,
        max_length=config.max_position_embeddings,
        stream=config.stream,
    )


def read_network(run: Run, folder: Path) -> Network:
    """The network of a run that has an origin, from there or from one of the run's checkpoints.

    Raises:
        UserError: It is not there, or not the network that the run describes.
    """
    config = read_config(folder)
    if run.model.stream.name == config.stream["name"] and "impl" in config.stream:
        config.stream = {**config.stream, "impl": run.model.stream.impl}  # not of the network
    ours, theirs = serial.encode(run.model), serial.encode(spec_of(config))
    config.dtype = None  # that of the weights, which are float32 in a checkpoint
    name = serial.first_difference(ours, theirs)
    if name is not None:
        allowed = f"{serial.lookup(theirs, name)!r}, as in {folder}"
        raise invalid(f"model.{name}", serial.lookup(ours, name), allowed)
    found = {name: folder / name for name in TEXTS if (folder / name).is_file()}
    texts = {name: path.read_text(encoding="utf-8") for name, path in found.items()}
    return Network(config=config, texts=texts)


def network_of(run: Run, start: directory.Start) -> Network | None:
    """The network of a run, where it goes on from; None for one that has no origin.

    Raises:
        UserError: As `read_network`.
    """
    if run.origin is None:
        return None
    return read_network(run, run.origin if start.checkpoint is None else Path(start.checkpoint))


def examine(run: Run, start: directory.Start, split: TokenData) -> dict[str, Any] | None:
    """What `run.json` says of the origin, which is looked at when the run begins.

    Raises:
        UserError: Its weights are damaged, or others than those that the run began with; or its
            tokenizer did not make the data.
    """
    if run.origin is None:
        return None
    begun = (run.out / directory.RUN).exists()
    saved = directory.read_description(run.out).get("origin") if begun else None
    if start.checkpoint is not None:
        return saved
    check_tokenizer(run.origin, split)
    found = identify(run.origin)
    if saved is not None and saved.get("sha256") != found["sha256"]:
        raise UserError(f"origin: {run.origin} has other weights than {run.out} began with")
    return found


def check_tokenizer(folder: Path, split: TokenData) -> None:
    """Refuse data that another tokenizer made than the model's own.

    Raises:
        UserError: They differ, or the model has no tokenizer, or one without an end of text.
    """
    tokenizer = load_tokenizer(folder, end=split.manifest.recipe.end)
    if tokenizer.sha256 != split.tokenizer_sha256:
        allowed = f"{tokenizer.sha256[:12]}, the model's own: data prepare --tokenizer {folder}"
        raise invalid(f"{split.directory}: tokenizer", split.tokenizer_sha256[:12], allowed)


def identify(folder: Path) -> dict[str, Any]:
    """What `run.json` records of an origin: its path, and the SHA-256 of each file of weights.

    Raises:
        UserError: A file is missing, damaged, or not as `weights.json` has it.
    """
    weights.verify(folder)
    found = weights.open_weights(folder).files
    return {
        "path": str(folder),
        "sha256": {name: sha256_of(folder / name) for name in found},
    }


def load_(named: dict[str, nn.Parameter], folder: Path, world: parallel.World) -> None:
    """Read the first weights in place, one tensor at a time, plain or sharded.

    Raises:
        UserError: One is missing or has another shape.
    """
    world.do(lambda: _check_entries(named, folder))
    opened = weights.open_weights(folder) if world.main else None
    for name, p in named.items():
        source = torch.empty(p.shape) if opened is None else opened.read(name)
        parallel.fill_(p, source)


def _check_entries(named: dict[str, nn.Parameter], folder: Path) -> None:
    entries = weights.open_weights(folder).entries
    for name, p in named.items():
        if name not in entries:
            raise UserError(f"{folder}: weights are missing: {name}")
        if entries[name].shape != tuple(p.shape):
            allowed = f"{list(p.shape)}, as in config.json"
            raise invalid(f"{folder}: {name}: shape", list(entries[name].shape), allowed)
