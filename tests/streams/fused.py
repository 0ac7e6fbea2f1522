"""A network whose norms are modules that kernels know, and a comparison with the reference."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from depth_memory import streams
from tests.streams.cases import weighted


class LlamaRMSNorm(nn.Module):
    """As transformers has it, by the same name, in float64 where the input is."""

    def __init__(self, dim: int):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(dim))
        self.variance_epsilon = 1e-6

    def forward(self, x: Tensor) -> Tensor:
        wide = x.to(torch.promote_types(x.dtype, torch.float32))
        wide = wide * torch.rsqrt(wide.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
        return self.weight * wide.to(x.dtype)


class Layers(nn.Module):
    """A stream, and for every sublayer a port, a norm and a body; all away from their start."""

    def __init__(
        self,
        config: dict[str, Any],
        *,
        dim: int = 6,
        sites: int = 4,
        dtype: torch.dtype = torch.float64,
        norm: Callable[[int], nn.Module] = LlamaRMSNorm,
    ):
        super().__init__()
        generator = torch.Generator().manual_seed(0)
        self.stream = streams.build(config, dim, sites)
        self.ports = nn.ModuleList(self.stream.port(site) for site in range(sites))
        self.norms = nn.ModuleList(norm(dim) for _ in range(sites + 1))
        self.bodies = nn.ModuleList(nn.Linear(dim, dim, bias=False) for _ in range(sites))
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                if parameter.dim() == 2:
                    parameter.copy_(noise * parameter.shape[1] ** -0.5)
                elif name.endswith("gain"):
                    # a gain of 10, as at the start, would make every read matter more than `h`
                    parameter.copy_(1.0 + 0.3 * noise)
                else:
                    parameter.add_(0.3 * noise)
        self.to(dtype)

    def body(self, site: int, x: Tensor) -> Tensor:
        return torch.tanh(self.bodies[site](x))

    def forward(
        self,
        x: Tensor,
        each: Callable[[int, Tensor, Tensor, Any], Tensor] = lambda site, z, y, state: y,
    ) -> Tensor:
        """The output; `each` sees a sublayer's input, output and state; gives what is written."""
        state = self.stream.start(x)
        for site, port in enumerate(self.ports):
            z, state = port.read(state, self.norms[site])
            state = port.write(state, each(site, z, self.body(site, z), state))
        return self.stream.finish(state, self.norms[-1])


def pair(config: dict[str, Any], **options: Any) -> tuple[Layers, Layers]:
    """The same network by the reference and by kernels."""
    return (
        Layers({**config, "impl": "reference"}, **options),
        Layers({**config, "impl": "triton"}, **options),
    )


def tokens(*shape: int, dim: int = 6, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.randn(*shape, dim, dtype=torch.float64).to(dtype)


def results(
    network: Layers, x: Tensor, loss: Callable[..., Tensor] | None = None
) -> dict[str, Tensor | None]:
    """The loss's value (or the output), and every gradient by name."""
    x = x.detach().clone().requires_grad_()
    value = network(x) if loss is None else loss(network, x)
    names, wanted = zip(*[("input", x), *network.named_parameters()], strict=True)
    grads = torch.autograd.grad(weighted(value), wanted, allow_unused=True)
    return {"value": value.detach(), **dict(zip(names, grads, strict=True))}


def assert_same(found: dict[str, Tensor | None], right: dict[str, Tensor | None]) -> None:
    """Equal to 1e-11 of each tensor's largest entry, in float64; no gradient counts as 0.

    What cancels to nothing keeps the rounding of its terms, which are as large as other gradients.
    """
    assert found.keys() == right.keys()
    scale = max(g.abs().max().item() for g in right.values() if g is not None and g.numel())
    for name, expected in right.items():
        actual = found[name]
        if actual is None or expected is None:
            assert not any(g.any() for g in (actual, expected) if g is not None), name
            continue
        largest = expected.abs().max().item() if expected.numel() else 0.0
        atol = max(1e-11 * largest, 64 * torch.finfo(torch.float64).eps * scale)
        torch.testing.assert_close(actual, expected, rtol=0, atol=atol, msg=name)


def assert_fused(network: Layers, x: Tensor) -> None:
    """Kernels do carry it: nothing is compared with itself."""
    from depth_memory.streams.ldm_fused import Exchange

    assert isinstance(network.stream.start(x), Exchange)
