"""AdamW over parameter groups that a rule chooses, and the norm of the gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import torch
from torch import Tensor, nn

from depth_memory import streams
from depth_memory.train.config import OptimSpec

EMBEDDINGS = ("embed_tokens.weight",)


def decays(name: str, parameter: Tensor, rule: str) -> bool:
    """Whether weight decay acts on a parameter.

    Args:
        name: Its dotted name in the model.
        parameter: The parameter.
        rule: `matrices` (two or more dimensions, and not an embedding) or `all`. Under both,
            `streams.UNDECAYED` lists last names that never decay.
    """
    if name.rpartition(".")[2] in streams.UNDECAYED:
        return False
    return rule == "all" or (parameter.ndim >= 2 and not name.endswith(EMBEDDINGS))


def adamw(parameters: Mapping[str, nn.Parameter], spec: OptimSpec) -> torch.optim.AdamW:
    """AdamW in one fused pass, with one group that decays and one that does not.

    Args:
        parameters: Name to float32 parameter, plain or sharded.
        spec: Learning rate, moments and decay.
    """
    groups = []
    for decay in (True, False):
        chosen = [p for n, p in parameters.items() if decays(n, p, spec.decay) is decay]
        if chosen:
            groups.append({"params": chosen, "weight_decay": spec.weight_decay * decay})
    return torch.optim.AdamW(groups, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr` for the next step, in every group."""
    for group in optimizer.param_groups:
        group["lr"] = lr


def gradient_norm(parameters: Iterable[nn.Parameter]) -> Tensor:
    """The norm of all gradients together, over all processes; a sharded scalar if they are."""
    gradients = [p.grad for p in parameters if p.grad is not None]
    return torch.nn.utils.get_total_norm(gradients)


def clip_(parameters: Iterable[nn.Parameter], limit: float, norm: Tensor) -> None:
    """Scale the gradients in place so that the norm of all of them is at most `limit`.

    Args:
        parameters: Plain or sharded; those without a gradient are passed over.
        limit: The largest norm; 0 changes nothing.
        norm: Their `gradient_norm`.
    """
    if limit:
        torch.nn.utils.clip_grads_with_norm_(parameters, limit, norm)
