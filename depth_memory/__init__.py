"""Linear Depth Memory and its peers: how information travels across the depth of a transformer.

`ops` is the mathematics, `streams` says what a residual is, `models` has Llama and Qwen3 with a
stream, and `graft` gives a trained model one. Areas are imported when they are first used.
"""

from importlib import import_module
from typing import Any

__version__ = "0.1.0"

AREAS = ("data", "generate", "inspect", "models", "ops", "presets", "streams", "train")

__all__ = ["AREAS", "__version__", "graft", *AREAS]


def __getattr__(name: str) -> Any:
    if name == "graft":
        return import_module("depth_memory.models").graft
    if name in AREAS:
        return import_module(f"depth_memory.{name}")
    raise AttributeError(f"module 'depth_memory' has no attribute {name!r}")
