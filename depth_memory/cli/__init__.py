"""The command `depth-memory`: one module per command, imported without torch or transformers."""

from depth_memory.cli.main import main

__all__ = ["main"]
