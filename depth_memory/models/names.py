"""Which parameters of a model belong to its stream, told by their names."""

from __future__ import annotations

PORTS = ("attn_port", "mlp_port")
STREAM = "model.stream."


def is_of_stream(name: str) -> bool:
    """Whether a parameter of a causal language model is its stream's, not the backbone's."""
    return name.startswith(STREAM) or not set(PORTS).isdisjoint(name.split("."))
