"""Compile for GPUs that are not here every kernel that a pass over the depth would launch.

Prints one line per architecture: how many kernels, and the most shared memory that one needs.
"""

from __future__ import annotations

import sys
from typing import Any
from unittest import mock

import torch
import triton
from torch import nn
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from depth_memory import streams
from depth_memory.ops import _impl
from depth_memory.ops.exchange import covariance, fold, norm, project, read, step, sweep

TYPES = {torch.bfloat16: "*bf16", torch.float32: "*fp32"}


def type_of(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return TYPES[value.dtype]
    return "fp32" if isinstance(value, float) else "i32"


class Launches(dict[str, tuple[ASTSource, dict[str, int]]]):
    """What was launched: a source and its options for every different call."""

    def recorder(self, kernel: Any) -> Any:
        launches = self

        class Recorder:
            def __getitem__(self, grid: Any) -> Any:
                return self.launch

            def launch(
                self, *args: Any, num_warps: int, num_stages: int = 3, **constants: Any
            ) -> None:
                names = [p.name for p in kernel.params if not p.is_constexpr]
                signature = dict(zip(names, map(type_of, args), strict=True))
                # torch allocates at multiples of 512 bytes: the launcher sees pointers aligned
                attrs = {
                    (i,): [["tt.divisibility", 16]]
                    for i, t in enumerate(signature.values())
                    if t[0] == "*"
                }
                signature.update(dict.fromkeys(constants, "constexpr"))
                source = ASTSource(kernel, signature, constants, attrs)
                options = {"num_warps": num_warps, "num_stages": num_stages}
                launches[f"{kernel.__name__} {signature} {constants} {options}"] = (source, options)

        return Recorder()


def half(x: torch.Tensor) -> bool:
    return x.dtype == torch.bfloat16


def record(dim: int, dtype: torch.dtype = torch.bfloat16, **config: Any) -> Launches:
    """The launches at width `dim` of a pass, its gradient and a step, without running them."""
    launches = Launches()
    with (
        mock.patch.object(_impl, "obstacle", return_value=None),
        mock.patch.object(project, "is_half", half),
        mock.patch.object(fold, "is_half", half),
    ):
        patches = [
            mock.patch.object(module, name, launches.recorder(getattr(module, name)))
            for module in (covariance, fold, norm, project, read, step, sweep)
            for name in vars(module)
            if name.endswith("_kernel")
        ]
        for patch in patches:
            patch.start()
        try:
            run(dim, dtype, {"name": "ldm", "impl": "triton", **config})
            with torch.no_grad():
                run(dim, dtype, {"name": "ldm", "impl": "triton", **config})
        finally:
            for patch in patches:
                patch.stop()
    return launches


def run(dim: int, dtype: torch.dtype, config: dict[str, Any], sites: int = 4) -> None:
    stream = streams.build(config, dim, sites).to(dtype)
    ports = [stream.port(site).to(dtype) for site in range(sites)]
    norms = [nn.RMSNorm(dim, eps=1e-6).to(dtype) for _ in range(sites + 1)]
    x = torch.zeros(40, dim, dtype=dtype, requires_grad=True)
    state = stream.start(x)
    for port, before in zip(ports, norms, strict=False):
        y, state = port.read(state, before)
        state = port.write(state, y)
    x = stream.finish(state, norms[-1])
    if x.requires_grad:
        x.sum().backward()


SHAPES = (
    (2048, {"sites": "block", "window": 99, "key_dim": 8}),
    (2048, {"sites": "sublayer", "window": 2, "key_dim": 4}),
    (5120, {"sites": "block", "window": 2, "key_dim": 8, "state_dtype": "bfloat16"}),
    (1216, {"sites": "block", "window": 2, "key_dim": 16}),
    (640, {"name": "ldm_delta", "sites": "block", "window": 2, "key_dim": 5}),
    (2048, {"dtype": torch.float32, "sites": "block", "window": 2}),
)
# the latents alone decide how much shared memory a product takes
WIDE = (
    (2048, {"dtype": torch.float32, "read_rank": 128, "write_rank": 64}),
    (2048, {"read_rank": 256, "write_rank": 128}),
)


def compiled_products(capability: int) -> int:
    """The most shared memory that products with wide latents take."""
    target, shared = GPUTarget("cuda", capability, 32), 0
    for dim, config in WIDE:
        for name, (source, options) in record(dim, **config).items():
            if name.startswith("project"):
                compiled = triton.compile(source, target=target, options=options)
                shared = max(shared, compiled.metadata.shared)
    return shared


def main(arguments: list[str]) -> None:
    """Every shape on every architecture; with `-q`, one of each kernel."""
    quick = "-q" in arguments
    launches: dict[str, Any] = {}
    for dim, config in SHAPES[2:3] if quick else SHAPES:
        launches.update(record(dim, **config))
    if quick:
        # variants of a kernel differ in branches taken; the last has seen a fold
        launches = {name.split()[0]: launch for name, launch in launches.items()}
    for capability in (80, 89, 90):
        target = GPUTarget("cuda", capability, 32)
        shared = compiled_products(capability) if capability == 89 else 0
        for name, (source, options) in launches.items():
            compiled = triton.compile(source, target=target, options=options)
            shared = max(shared, compiled.metadata.shared)
            if "-v" in arguments:
                print(compiled.metadata.shared, name.split()[0])
        print(capability, len(launches), shared)


if __name__ == "__main__":
    main(sys.argv[1:])
