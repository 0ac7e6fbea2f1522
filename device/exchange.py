"""What the kernels of LDM need a GPU for: every output and gradient at real widths.

    python -m device.exchange [OUT]

Each case runs a pass over 8 sublayers and its gradient: float64 by the reference as the truth, then
float32 and bfloat16 by the reference and by the kernels; and the same for a few tokens without
gradients, which other kernels carry (`step`). A row holds if the kernels' distance from the truth,
over all parameters together, is at most twice the reference's (and some roundings), and two runs
agree bit for bit. Writes OUT/kernels.json; exit code 0 only if every row holds.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import torch
import triton
from torch import Tensor, nn
from transformers.models.llama.modeling_llama import LlamaRMSNorm

from depth_memory import streams

SITES, TOKENS, FEW = 8, 1000, 5
CASES: tuple[dict[str, Any], ...] = (
    {"sites": "block", "window": 99, "key_dim": 8},
    {"sites": "block", "window": 2, "key_dim": 4},
    {"sites": "sublayer", "window": 3, "key_dim": 8, "shared_keys": False},
    {"sites": "sublayer", "window": 99, "key_dim": 16},
    {"name": "ldm_delta", "sites": "block", "window": 2, "key_dim": 5},
    {"name": "ldm_outer", "sites": "sublayer", "window": 4, "key_dim": 8},
)
WIDTHS = (2048, 5120, 1216, 640)


class Net(nn.Module):
    """Sublayers that are one matrix each, around a stream."""

    def __init__(self, config: dict[str, Any], width: int):
        super().__init__()
        self.stream = streams.build({"name": "ldm", **config}, width, SITES)
        self.ports = nn.ModuleList(self.stream.port(site) for site in range(SITES))
        self.norms = nn.ModuleList(LlamaRMSNorm(width) for _ in range(SITES + 1))
        self.bodies = nn.ModuleList(nn.Linear(width, width, bias=False) for _ in range(SITES))
        with torch.no_grad():
            for parameter in self.parameters():
                parameter.add_(0.02 * torch.randn_like(parameter))
                # what bfloat16 holds, so that every precision sees the same network
                parameter.copy_(parameter.bfloat16())

    def forward(self, x: Tensor) -> Tensor:
        state = self.stream.start(x)
        for port, norm, body in zip(self.ports, self.norms, self.bodies, strict=False):
            y, state = port.read(state, norm)
            state = port.write(state, torch.tanh(body(y)))
        return self.stream.finish(state, self.norms[-1])


def build(config: dict[str, Any], width: int, dtype: torch.dtype, impl: str) -> Net:
    """The network, the same whatever computes it."""
    torch.manual_seed(0)
    net = Net({**config, "impl": impl}, width).cuda().to(dtype)
    if dtype == torch.float64:
        for parameter in net.parameters():
            parameter.data = parameter.data.double()
    return net


@torch.no_grad()
def step(config: dict[str, Any], width: int, dtype: torch.dtype, impl: str) -> dict[str, Tensor]:
    """The output for a few tokens."""
    net = build(config, width, dtype, impl)
    return {"out": net(torch.randn(FEW, width).bfloat16().cuda().to(dtype))}


def run(config: dict[str, Any], width: int, dtype: torch.dtype, impl: str) -> dict[str, Tensor]:
    """The output and all gradients."""
    net = build(config, width, dtype, impl)
    x = torch.randn(TOKENS, width).bfloat16().cuda().to(dtype).requires_grad_()
    out = net(x)
    out.backward(
        torch.cos(torch.arange(out.numel(), device="cuda").view(out.shape) * 1.7).to(dtype)
    )
    grads = {name: p.grad for name, p in net.named_parameters() if p.grad is not None}
    return {"out": out.detach(), "x": x.grad, **grads}


def distance(found: dict[str, Tensor], exact: dict[str, Tensor]) -> float:
    """Root mean square, over tensors, of the relative distance of each."""
    assert found.keys() == exact.keys()
    squares = [
        ((found[n].double() - e.double()).norm() / e.double().norm()).square()
        for n, e in exact.items()
    ]
    return (sum(squares) / len(squares)) ** 0.5


def check(config: dict[str, Any], width: int) -> list[dict[str, Any]]:
    """One row per precision, for training and for a few tokens."""
    rows = []
    for name, compute in (("training", run), ("step", step)):
        exact = compute(config, width, torch.float64, "reference")
        for dtype in (torch.float32, torch.bfloat16):
            first, again = (compute(config, width, dtype, "triton") for _ in range(2))
            kernels = float(distance(first, exact))
            reference = float(distance(compute(config, width, dtype, "reference"), exact))
            same = all(torch.equal(first[n], again[n]) for n in first)
            # cuBLAS and the kernels add up in different orders: a few units in the last place
            holds = same and kernels <= 2 * reference + 16 * torch.finfo(dtype).eps
            rows.append({
                "what": name, "width": width, "config": config, "dtype": str(dtype)[6:],
                "kernels": kernels, "reference": reference, "same_bits": same, "holds": holds,
            })  # fmt: skip
    return rows


def main() -> int:
    """Check every case at every width; 0 if all hold."""
    rows = []
    for width in WIDTHS:
        for config in CASES:
            rows += (found := check(config, width))
            print(*map(json.dumps, found), sep="\n", flush=True)
    commit = subprocess.run(
        ["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=False
    )
    about = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "triton": triton.__version__,
        "commit": commit.stdout.strip(),
    }
    if len(sys.argv) > 1:
        out = Path(sys.argv[1]) / "kernels.json"
        out.write_text(json.dumps({**about, "rows": rows}, indent=1) + "\n")
    return 0 if all(row["holds"] for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
