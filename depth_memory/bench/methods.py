"""The methods that are compared: a stream with any of its fields, or plain transformers."""

from __future__ import annotations

import json
from collections.abc import Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from depth_memory import models, streams
from depth_memory.bench import public
from depth_memory.bench.cases import Case
from depth_memory.errors import choose, invalid
from depth_memory.ops import _impl

ORIGINAL = "preln_transformers"
"""The name of plain transformers among the methods."""
BASE = "preln"
"""The method that the others are compared with."""
TRUNK_VOCABULARY = 16
"""Entries of an embedding that nothing uses."""
FAMILY = "qwen3"


@dataclass(frozen=True, kw_only=True)
class Method:
    """A name as the user wrote it, and the stream that it stands for; None is transformers."""

    name: str
    stream: Mapping[str, Any] | None
    kernels: str | None = None
    """The public package whose kernels carry it; ours if not given."""


def parse_method(text: str) -> Method:
    """A method from `ldm:key_dim=8,window=8` or `mhc@liger`, for example.

    Raises:
        UserError: The stream or a field is unknown, or a value is out of range; or the kernels are
            not to be had.
    """
    title, colon, rest = text.partition(":")
    name, at, kernels = title.partition("@")
    choose("--method", name, (*streams.STREAMS, ORIGINAL))
    settings = dict(_setting(part, text) for part in rest.split(",")) if colon else {}
    if name == ORIGINAL:
        if colon or at:
            raise invalid("--method", text, f"{ORIGINAL}, which has no fields")
        return Method(name=text, stream=None)
    stream = {"name": name, **settings}
    streams.resolve(stream)
    if at:
        public.check(kernels, name)
    return Method(name=text, stream=stream, kernels=kernels if at else None)


def _setting(part: str, text: str) -> tuple[str, Any]:
    name, equals, value = part.partition("=")
    if not equals or not name:
        raise invalid("--method", text, "NAME, or NAME:FIELD=VALUE,FIELD=VALUE")
    try:
        return name, json.loads(value)
    except ValueError:
        return name, value


def build(method: Method, case: Case, device: torch.device, base: nn.Module | None) -> nn.Module:
    """The language model, in bfloat16 and with the backbone's parameters of `base`, if given.

    What belongs to the stream starts anywhere but at a point where a term is 0.

    Raises:
        UserError: The stream does not fit the backbone.
    """
    whole = case.scope == "model"
    config = case.shape.config(
        layers=case.layers,
        vocabulary=case.shape.vocabulary if whole else TRUNK_VOCABULARY,
        positions=case.sequence + case.context,
    )
    with _made_on(device, torch.bfloat16):
        if method.stream is None:
            original: Any = models.FAMILIES[FAMILY].causal_lm
            model = original(original.config_class(**config))
        else:
            model = models.build_model(FAMILY, dict(method.stream), **config)
        if base is not None:
            randomise_(share_(model, base))
        if method.kernels is not None:
            public.install_(model, method.kernels)
    return model.train(case.mode == "train")


def share_(model: nn.Module, base: nn.Module) -> list[nn.Parameter]:
    """Give `model` the parameters that `base` has by the same name; return the others."""
    found, own = dict(base.named_modules()), []
    for name, module in model.named_modules():
        theirs = found[name]._parameters if name in found else {}
        for key, parameter in module._parameters.items():
            if key in theirs:
                module._parameters[key] = theirs[key]
            elif parameter is not None:
                own.append(parameter)
    return own


def randomise_(parameters: list[nn.Parameter]) -> None:
    """Move parameters away from their start, by what keeps a product with them of order 1."""
    with torch.no_grad():
        for parameter in parameters:
            size = max((*parameter.shape, 1))
            parameter.add_(torch.randn_like(parameter) * min(0.1, size**-0.5))


def compile_(model: Any, mode: str) -> None:
    """Compile every layer, each shape for itself.

    The layer of transformers holds its number, by which a cache is asked, so that each would be
    compiled anew where there is one: then its MLP alone is compiled.
    """
    for layer in model.model.layers:
        plain = not hasattr(layer, "attn_port")
        (layer.mlp if plain and mode == "decode" else layer).compile(dynamic=False)


def implementation(method: Method, model: Any, x: Tensor) -> str:
    """What carries the streams for an input like `x`: transformers, torch, reference, triton, or
    the package of public kernels."""
    if method.kernels is not None:
        return public.KERNELS[method.kernels].name
    stream = getattr(model.model, "stream", None)
    if stream is None:
        return "transformers"
    config = stream.config
    if config.name == BASE:
        return "torch"
    if config.name.startswith("ldm"):
        return "reference" if stream.kernels(x) is None else "triton"
    op = "attnres" if config.name.endswith("attnres") else "mix"
    return _impl.resolve(op, getattr(config, "impl", "auto"), x.device)


def described(method: Method, model: Any | None) -> dict[str, Any]:
    """Key width, groups, window and sites, as built or, where it was not, as asked for."""
    stream = None if model is None else getattr(model.model, "stream", None)
    config = stream.config if stream is not None else None
    if config is None and method.stream is not None:
        config = streams.resolve(method.stream)
    return {name: getattr(config, name, None) for name in ("key_dim", "groups", "window", "sites")}


@contextmanager
def _made_on(device: torch.device, dtype: torch.dtype) -> Generator[None]:
    """Make tensors on a device, and in a dtype where none is named."""
    before = torch.get_default_dtype()
    torch.set_default_dtype(dtype)
    try:
        with device:
            yield
    finally:
        torch.set_default_dtype(before)
