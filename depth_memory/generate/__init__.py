"""Text from a model: prompts continued one by one or in batches, streamed, and timed.

`load` reads a model, `generate` continues prompts, `stream` yields the pieces of one text as they
come. Read `decode.py` first: prefill, then one token of every row at a time; then `sampling.py`.
"""

from importlib import import_module
from typing import Any

# imported when used: the command line wants the settings alone, without torch
_HOMES = {
    "Continuation": "api",
    "Generation": "api",
    "Settings": "settings",
    "StateBytes": "state",
    "chat": "prompts",
    "generate": "api",
    "load": "api",
    "state_bytes": "state",
    "stream": "api",
}

__all__ = list(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(f"depth_memory.generate.{_HOMES[name]}"), name)
    raise AttributeError(f"module 'depth_memory.generate' has no attribute {name!r}")
