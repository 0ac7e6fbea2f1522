"""Saved models: what a path means, the model that lies there, and its tokenizer."""

from depth_memory.loading.loaded import DTYPES, Loaded, load, load_any
from depth_memory.loading.places import KINDS, locate
from depth_memory.loading.tokenizer import load_tokenizer

__all__ = ["DTYPES", "KINDS", "Loaded", "load", "load_any", "load_tokenizer", "locate"]
