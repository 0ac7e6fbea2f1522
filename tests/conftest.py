"""Every test repeats alone, sees NaN where memory was never written, and has its shapes checked."""

from __future__ import annotations

import functools
import inspect
import os
import sys
import zlib
from collections.abc import Callable, Iterator

# before anything imports Triton: without a GPU its kernels run on the CPU, line by line
os.environ.setdefault("TRITON_INTERPRET", "1")

import pytest
import torch
from beartype import BeartypeConf, beartype
from jaxtyping import TypeCheckError, jaxtyped

import depth_memory.ops
from tests.testing import seed_all

torch.use_deterministic_algorithms(True)


@pytest.fixture(autouse=True)
def _repeatable(request: pytest.FixtureRequest) -> None:
    seed_all(zlib.crc32(request.node.nodeid.encode()))


@pytest.fixture(autouse=True)
def _uninitialised_memory_is_nan() -> Iterator[None]:
    flags = torch.are_deterministic_algorithms_enabled()
    torch.use_deterministic_algorithms(True)
    torch.utils.deterministic.fill_uninitialized_memory = True
    yield
    torch.use_deterministic_algorithms(flags)


def _checked(function: Callable) -> Callable:
    """`function` with its annotations enforced, except inside a compiled graph."""
    # an int is a float to every caller, as PEP 484 has it
    enforce = beartype(conf=BeartypeConf(is_pep484_tower=True))
    strict = jaxtyped(function, typechecker=enforce)

    @functools.wraps(function)
    def wrapper(*args, **kwargs):
        if torch.compiler.is_compiling():
            return function(*args, **kwargs)
        try:
            return strict(*args, **kwargs)
        except TypeCheckError:
            # what the function refuses by itself is an error of the caller, with its own message
            function(*args, **kwargs)
            raise

    return wrapper


def _check_annotations(package: str) -> None:
    modules = [m for name, m in sys.modules.items() if name.startswith(package)]
    functions = {
        f
        for m in modules
        for f in vars(m).values()
        if inspect.isfunction(f) and f.__module__.startswith(package)
    }
    checked = {f: _checked(f) for f in functions}
    for name, module in list(sys.modules.items()):
        if name.startswith("depth_memory"):
            for attribute, value in list(vars(module).items()):
                if inspect.isfunction(value) and value in checked:
                    setattr(module, attribute, checked[value])


_check_annotations(depth_memory.ops.__name__)
