"""Configurations: transformers' own, plus the stream."""

from __future__ import annotations

import os
from typing import Any, Self

from transformers import LlamaConfig, PreTrainedConfig, Qwen3Config

from depth_memory import streams
from depth_memory.errors import invalid
from depth_memory.models import export
from depth_memory.models.families import family_of

DEFAULT_STREAM = {"name": "ldm"}
FORMAT = 1
"""Of a configuration that is written; raised when one of before would be misread."""

_NOT_CARRIED = (
    "model_type",
    "architectures",
    "auto_map",
    "transformers_version",
    "depth_format",
    "stream",
)


class DepthConfig(PreTrainedConfig):
    """What the configurations have in common; abstract.

    `stream` may be given as a mapping with a `name` and any of that stream's fields, or as a stream
    configuration. It is kept complete, so that a saved model does not depend on defaults.
    `depth_format` says how it is written; a newer one than ours is refused.
    """

    def __setattr__(self, key: str, value: Any) -> None:
        if key == "depth_format" and not (isinstance(value, int) and 1 <= value <= FORMAT):
            raise invalid(key, value, f"up to {FORMAT} (written by a newer depth-memory)")
        if key == "stream":
            value = streams.as_dict(streams.resolve(DEFAULT_STREAM if value is None else value))
        # A checkpoint of the plain backbone, read with this class, must not keep its own type.
        if key == "model_type":
            value = type(self).model_type
        super().__setattr__(key, value)

    @classmethod
    def from_backbone(cls, config: PreTrainedConfig, stream: Any = None) -> Self:
        """The configuration of `config`'s backbone with another stream.

        Args:
            config: A configuration of the same family, from transformers or from this package.
            stream: Mapping with `name`, or a stream configuration; `None` is the default stream.

        Returns:
            A new configuration; `config` is left alone.
        """
        fields = {k: v for k, v in config.to_dict().items() if k not in _NOT_CARRIED}
        fields |= {"stream": stream, "attn_implementation": config._attn_implementation}
        return cls(**fields)

    def to_backbone(self) -> PreTrainedConfig:
        """The configuration of the backbone alone, of transformers' own class."""
        fields = {k: v for k, v in self.to_dict().items() if k not in _NOT_CARRIED}
        plain: Any = family_of(self).causal_lm.config_class
        return plain(**fields)

    def save_pretrained(
        self, save_directory: str | os.PathLike[str], push_to_hub: bool = False, **options: Any
    ) -> None:
        """Write `config.json`, with what lets transformers find this class."""
        self.auto_map = export.auto_map(self)
        export.write_module(save_directory)
        super().save_pretrained(save_directory, push_to_hub=push_to_hub, **options)

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoConfig") -> None:
        """Nothing to do: every saved directory already names its classes."""


class DepthLlamaConfig(DepthConfig, LlamaConfig):
    """`LlamaConfig` and a stream."""

    model_type = "depth_llama"
    base_model_pp_plan = None

    depth_format: int = FORMAT
    stream: Any = None


class DepthQwen3Config(DepthConfig, Qwen3Config):
    """`Qwen3Config` and a stream."""

    model_type = "depth_qwen3"
    base_model_pp_plan = None

    depth_format: int = FORMAT
    stream: Any = None
