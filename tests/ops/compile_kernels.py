"""Compile every mixing kernel for GPUs that are not here; prints the number of each."""

from __future__ import annotations

from typing import Any

import triton
import triton.language as tl
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

from depth_memory.ops.mixing import triton as kernels

S = 3
SOURCES = ("*bf16",) * S
KERNELS: dict[Any, tuple[dict[str, Any], dict[str, Any]]] = {
    kernels.mix_fwd_kernel: (
        {"coef": "*fp32", "sources": SOURCES, "out": "*bf16", "N": "i32"},
        {"R": 4, "S": S, "D": 1216, "BN": 1, "BR": 4, "BD": 256, "ACC": tl.float32},
    ),
    kernels.mix_bwd_kernel: (
        {
            "coef": "*fp32",
            "sources": SOURCES,
            "d_out": "*bf16",
            "d_coef": "*fp32",
            "d_sources": SOURCES,
            "N": "i32",
        },
        {
            "R": 4, "S": S, "D": 1216, "BN": 1, "BR": 4, "BS": 4, "BD": 256,
            "ACC": tl.float32, "COEF": True, "SOURCES": True,
        },
    ),
    kernels.attnres_fwd_kernel: (
        {
            "direction": "*fp32",
            "sources": SOURCES,
            "out": "*bf16",
            "weights": "*fp32",
            "rstd": "*fp32",
            "N": "i32",
            "eps": "fp32",
        },
        {"S": S, "D": 5120, "BD": 8192, "ACC": tl.float32},
    ),
    kernels.attnres_bwd_kernel: (
        {
            "direction": "*fp32",
            "sources": SOURCES,
            "weights": "*fp32",
            "rstd": "*fp32",
            "d_out": "*bf16",
            "d_sources": SOURCES,
            "d_direction": "*fp32",
            "N": "i32",
            "ROWS": "i32",
        },
        {"S": S, "BS": 4, "D": 5120, "BD": 8192, "ACC": tl.float32},
    ),
}  # fmt: skip


def main() -> None:
    for capability in (80, 89, 90):
        target = GPUTarget("cuda", capability, 32)
        for kernel, (arguments, constants) in KERNELS.items():
            signature = {**arguments, **dict.fromkeys(constants, "constexpr")}
            source = ASTSource(fn=kernel, signature=signature, constexprs=constants)
            assert triton.compile(source, target=target, options={"num_warps": 8}).asm["cubin"]
        print(capability)


if __name__ == "__main__":
    main()
