"""What a residual is: every way to carry information across depth behind one protocol.

`base.py` holds the protocol and its laws, one module each stream; `STREAMS` names them all.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from depth_memory.errors import Range, choose, invalid, is_number
from depth_memory.streams.adapter import PreLNAdapter, PreLNAdapterConfig
from depth_memory.streams.attnres import AttnRes, AttnResConfig, BlockAttnResConfig
from depth_memory.streams.base import (
    MAX_SITES,
    MAX_WIDTH,
    Fallback,
    Port,
    Stream,
    StreamModule,
    frozen_coefficients,
    switched_off,
)
from depth_memory.streams.denseformer import DenseFormer, DenseFormerConfig
from depth_memory.streams.hc import HC, HCConfig
from depth_memory.streams.ldm import LDM
from depth_memory.streams.ldm_config import LDMConfig, LDMDeltaConfig, LDMOuterConfig
from depth_memory.streams.mhc import MHC, MHCConfig
from depth_memory.streams.preln import PreLN, PreLNConfig

StreamConfig = (
    PreLNConfig
    | PreLNAdapterConfig
    | HCConfig
    | MHCConfig
    | DenseFormerConfig
    | AttnResConfig
    | BlockAttnResConfig
    | LDMConfig
    | LDMDeltaConfig
    | LDMOuterConfig
)

STREAMS: dict[str, tuple[type[Any], type[Stream]]] = {
    "preln": (PreLNConfig, PreLN),
    "preln_adapter": (PreLNAdapterConfig, PreLNAdapter),
    "hc": (HCConfig, HC),
    "mhc": (MHCConfig, MHC),
    "denseformer": (DenseFormerConfig, DenseFormer),
    "attnres": (AttnResConfig, AttnRes),
    "block_attnres": (BlockAttnResConfig, AttnRes),
    "ldm": (LDMConfig, LDM),
    "ldm_delta": (LDMDeltaConfig, LDM),
    "ldm_outer": (LDMOuterConfig, LDM),
}
"""Name of a stream -> its configuration and its class."""

FLOAT32_MODULES: tuple[str, ...] = ("forgetting", "prior", "controller")
"""Names of the submodules whose parameters stay float32 in a model of any dtype."""


def stays_float32(name: str) -> bool:
    """Whether a parameter of this dotted name is never rounded."""
    return not set(FLOAT32_MODULES).isdisjoint(name.split("."))


UNDECAYED: tuple[str, ...] = (
    "static_alpha",
    "static_beta",
    "alpha",
    "bias",
    "gain",
    "log_alpha",
    "logit",
    "weights",
)
"""Last names of parameters of a stream that weight decay must not touch: 0 is nothing special."""


def resolve(config: Mapping[str, Any] | StreamConfig) -> StreamConfig:
    """A stream's configuration from a mapping with its `name` and any of its fields.

    Raises:
        UserError: The name or a field is unknown, or a value is out of range.
    """
    if isinstance(config, StreamConfig):
        config = as_dict(config)  # types are checked whichever way it came
    if not isinstance(config, Mapping):
        raise invalid("stream", config, "a mapping with a name, or a stream's configuration")
    values = dict(config)
    name = choose("stream.name", values.pop("name", None), STREAMS)
    cls = STREAMS[name][0]
    known = [field.name for field in fields(cls)]
    for key, value in values.items():
        if key not in known:
            raise invalid(
                f"stream.{key}", value, f"a field of {name}: {', '.join(known) or 'none'}"
            )
    return cls(**{key: _typed(key, value, cls) for key, value in values.items()})


def _typed(key: str, value: Any, cls: type[Any]) -> Any:
    """`value` if it has the type of the field's default (an int may stand for a float)."""
    default = {field.name: field.default for field in fields(cls)}[key]
    expected = {"window": (int, str)}.get(key, (type(default),))
    if float in expected and type(value) is int:
        if not is_number(value):
            raise invalid(f"stream.{key}", value, "a finite number")
        return float(value)
    if type(value) not in expected:
        names = " or ".join(kind.__name__ for kind in expected)
        raise invalid(f"stream.{key}", value, f"a value of type {names}")
    return value


def as_dict(config: StreamConfig) -> dict[str, Any]:
    """The inverse of `resolve`: every field by name, and `name`."""
    return {"name": config.name, **asdict(config)}


def build(config: Mapping[str, Any] | StreamConfig, dim: int, sites: int) -> Stream:
    """A stream for a network of a given width and number of sublayers.

    Args:
        config: A configuration, or a mapping such as `{"name": "ldm", "key_dim": 4}`.
        dim: Width D of the residual stream.
        sites: Number of sublayers (attention and MLP each count).

    Returns:
        The stream. `stream.config` is what was built, with `auto` values resolved.

    Raises:
        UserError: The configuration does not fit its own ranges, `dim` or `sites`.
    """
    config = resolve(config)
    for field, value, most in (("dim", dim, MAX_WIDTH), ("sites", sites, MAX_SITES)):
        allowed = Range(1, most)
        if not isinstance(value, int) or not allowed.allows(value):
            raise invalid(field, value, f"a whole number, {allowed}")
    return STREAMS[config.name][1](config, dim, sites)


__all__ = [
    "FLOAT32_MODULES",
    "STREAMS",
    "UNDECAYED",
    "Fallback",
    "Port",
    "Stream",
    "StreamConfig",
    "StreamModule",
    "as_dict",
    "build",
    "frozen_coefficients",
    "resolve",
    "stays_float32",
    "switched_off",
]
