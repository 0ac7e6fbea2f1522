"""What the optimiser updates, whatever the network computes in.

The optimiser's weights are float32 always. Where the network computes in bfloat16 it sees rounded
copies of them, except for the modules named in `streams.FLOAT32_MODULES`, and gradients of several
micro-batches are added up in float32. A sharded network does this by its policy
(`parallel.shard_`); here is the same for one process.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from depth_memory.streams import stays_float32

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16}


@dataclass(frozen=True, kw_only=True)
class Weights:
    """The float32 weights by name, and the parameters of the network that follow them."""

    named: dict[str, nn.Parameter]
    copies: dict[str, nn.Parameter]

    @torch.no_grad()
    def publish(self) -> None:
        """Round the weights into the network's copies, after the weights have changed."""
        for name, copy in self.copies.items():
            copy.copy_(self.named[name])


def whole(model: nn.Module) -> Weights:
    """The weights of a network that computes in float32, or is sharded by a policy: its own."""
    return Weights(named=dict(model.named_parameters()), copies={})


def rounded_(model: nn.Module, dtype: torch.dtype) -> Weights:
    """Make a float32 network compute in `dtype`, in place.

    Args:
        model: Its parameters become `dtype`, except those that stay float32.
        dtype: A floating dtype of lower precision.

    Returns:
        The float32 weights. A backward pass through the network adds to their gradients.
    """
    named = dict(model.named_parameters())
    copies = {name: p for name, p in named.items() if not stays_float32(name)}
    for name, copy in copies.items():
        named[name] = nn.Parameter(copy.detach().clone(), requires_grad=copy.requires_grad)
        copy.data = copy.data.to(dtype)
        if copy.requires_grad:
            copy.register_post_accumulate_grad_hook(_forward_gradient(named[name]))
    return Weights(named=named, copies=copies)


def _forward_gradient(weight: nn.Parameter) -> Callable[[Tensor], None]:
    def hook(copy: Tensor) -> None:
        gradient = copy.grad
        copy.grad = None
        if gradient is not None:
            gradient = gradient.to(weight.dtype)
            weight.grad = gradient if weight.grad is None else weight.grad.add_(gradient)

    return hook
