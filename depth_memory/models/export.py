"""Directories that transformers loads by itself, wherever this package is installed.

A saved directory carries a module of a few lines that imports the classes from here, and its
`config.json` names them in `auto_map`. So

    AutoModelForCausalLM.from_pretrained(directory, trust_remote_code=True)

works in a program that never imports `depth_memory`, a harness or a server for example, as long as
the package is installed; without it, transformers says which package is missing. No model code is
copied, so an exported directory never runs an outdated version of it.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

MODULE = "modeling_depth_memory"

_SOURCE = '''"""The classes of this checkpoint; the package `depth-memory` must be installed."""

from depth_memory.models import (  # noqa: F401
    DepthLlamaConfig,
    DepthLlamaForCausalLM,
    DepthLlamaModel,
    DepthQwen3Config,
    DepthQwen3ForCausalLM,
    DepthQwen3Model,
)
'''


def auto_map(config: Any) -> dict[str, str]:
    """Which class each of transformers' auto classes shall take for `config`."""
    stem = type(config).__name__.removesuffix("Config")
    return {
        "AutoConfig": f"{MODULE}.{stem}Config",
        "AutoModel": f"{MODULE}.{stem}Model",
        "AutoModelForCausalLM": f"{MODULE}.{stem}ForCausalLM",
    }


def write_module(directory: str | os.PathLike[str]) -> None:
    """Write the module that `auto_map` refers to; the directory is made if need be."""
    path = Path(directory, f"{MODULE}.py")
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(_SOURCE, encoding="utf-8")
