"""What is converted: a directory of transformers or of this package, or a model of the hub."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from transformers import PreTrainedConfig

from depth_memory import weights
from depth_memory.errors import UserError, choose, invalid
from depth_memory.files import explained, read_json, reason
from depth_memory.models.config import DepthConfig
from depth_memory.models.families import FAMILIES, PREFIX
from depth_memory.models.registry import config_for
from depth_memory.weights import TEXTS, Weights

COMPANIONS = (*TEXTS, "tokenizer.model")
"""Files beside the weights that go along as they are."""
WANTED = ("*.safetensors", "*.safetensors.index.json", "config.json", *COMPANIONS)


@dataclass(frozen=True, kw_only=True)
class Source:
    """A saved model, of which nothing but headers has been read."""

    name: str
    """As the user knows it."""
    folder: Path
    family: str
    config: PreTrainedConfig
    weights: Weights

    @property
    def stream(self) -> str:
        """The name of its stream; that of a model of transformers is the ordinary residual."""
        return self.config.stream["name"] if isinstance(self.config, DepthConfig) else "preln"


def open_source(name: str | Path) -> Source:
    """Find a model, fetched from the hub if there is no such directory, and read what it is.

    Args:
        name: A directory, or `owner/name` of the hub.

    Raises:
        UserError: Nothing is there, it is of another architecture, or it is damaged.
    """
    try:
        there = name != "" and Path(name).is_dir()
    except OSError as error:
        raise invalid("source", str(name), f"a directory ({reason(error)})") from error
    folder = Path(name) if there else fetch(str(name))
    family, config = read_config(folder)
    weights.verify(folder)
    return Source(
        name=str(name),
        folder=folder,
        family=family,
        config=config,
        weights=weights.open_weights(folder),
    )


def fetch(name: str) -> Path:
    """The directory into which huggingface_hub puts a model; what is there is not fetched again.

    Raises:
        UserError: It cannot be had.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name) or name.startswith("."):
        raise invalid("source", name, "a directory, or owner/name of a model of the hub")
    import huggingface_hub

    try:
        return Path(huggingface_hub.snapshot_download(name, allow_patterns=list(WANTED)))
    # what the library raises for a name, for a status and for no connection
    except (OSError, ValueError) as error:
        message = f"source: {name} is no directory, and the hub does not give it"
        raise UserError(f"{message}: {reason(error)}") from error


def read_config(folder: Path) -> tuple[str, PreTrainedConfig]:
    """Family and configuration of a saved model.

    Raises:
        UserError: There is none, or of an architecture that no stream can be given to.
    """
    path = folder / "config.json"
    content = read_json(path, "the configuration of a model")
    model_type = str(content.get("model_type"))
    choose(f"{path}: model_type", model_type, [*FAMILIES, *(PREFIX + name for name in FAMILIES)])
    quantized = content.get("quantization_config")
    if quantized is not None:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise invalid(f"{path}: quantization_config", method, "none: weights of whole numbers")
    family = model_type.removeprefix(PREFIX)
    plain: Any = FAMILIES[family].causal_lm.config_class
    kind = config_for(family) if model_type.startswith(PREFIX) else plain
    with explained(path, "cannot be read"):
        config = kind.from_pretrained(folder)
        limit = config.max_position_embeddings
        if limit < 1:
            raise invalid("max_position_embeddings", limit, "at least 1")
    return family, config
