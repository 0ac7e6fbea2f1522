"""AdamW and Muon over parameter groups that rules choose, and the norm of the gradient."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from depth_memory import streams
from depth_memory.train.config import OptimSpec

EMBEDDINGS = ("embed_tokens.weight",)
NOT_BY_MUON = (*EMBEDDINGS, "lm_head.weight")


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


def by_muon(name: str, parameter: Tensor) -> bool:
    """Whether Muon updates a parameter: a matrix of the backbone, neither embedding nor head."""
    from depth_memory.models.names import is_of_stream

    return parameter.ndim == 2 and not is_of_stream(name) and not name.endswith(NOT_BY_MUON)


def build(parameters: Mapping[str, nn.Parameter], spec: OptimSpec) -> torch.optim.Optimizer:
    """The optimiser of a run; frozen parameters are left out.

    Args:
        parameters: Name to float32 parameter, plain or sharded.
        spec: Which one, learning rates, moments and decay.
    """
    trained = {name: p for name, p in parameters.items() if p.requires_grad}
    if spec.name == "adamw":
        return adamw(trained, spec)
    matrices = {name: p for name, p in trained.items() if by_muon(name, p)}
    others = {name: p for name, p in trained.items() if name not in matrices}
    parts = [muon(matrices, spec)] if matrices else []
    return Together([*parts, *([adamw(others, spec)] if others else [])])


def adamw(parameters: Mapping[str, nn.Parameter], spec: OptimSpec) -> torch.optim.AdamW:
    """AdamW in one fused pass, in groups that decay or not, of the stream or the backbone.

    Args:
        parameters: Name to float32 parameter, plain or sharded; frozen ones are left out.
        spec: Learning rates, moments and decay.
    """
    from depth_memory.models.names import is_of_stream

    groups: dict[tuple[bool, bool], list[nn.Parameter]] = {}
    for name, p in parameters.items():
        if p.requires_grad:
            key = decays(name, p, spec.decay), spec.stream_lr is not None and is_of_stream(name)
            groups.setdefault(key, []).append(p)
    ratio = 1.0 if spec.stream_lr is None else spec.stream_lr / spec.lr
    described = [
        {
            "params": chosen,
            "weight_decay": spec.weight_decay * decay,
            "ratio": ratio if of_stream else 1.0,
        }
        for (decay, of_stream), chosen in sorted(groups.items(), reverse=True)
    ]
    return torch.optim.AdamW(described, lr=spec.lr, betas=spec.betas, eps=spec.eps, fused=True)


def muon(parameters: Mapping[str, nn.Parameter], spec: OptimSpec) -> torch.optim.Muon:
    """torch's Muon, its updates scaled to the root mean square of AdamW's.

    A sharded matrix is gathered, by torch, where the iteration needs all of it.

    Args:
        parameters: Name to float32 matrix, plain or sharded.
        spec: Learning rate, momentum and decay.
    """
    lr = spec.lr if spec.muon_lr is None else spec.muon_lr
    group = {"params": list(parameters.values()), "ratio": lr / spec.lr}
    return torch.optim.Muon(
        [group],
        lr=lr,
        weight_decay=spec.weight_decay,
        momentum=spec.muon_momentum,
        adjust_lr_fn="match_rms_adamw",
    )


class Together(torch.optim.Optimizer):
    """Several optimisers, of different parameters, as one with one state. Final."""

    def __init__(self, parts: Sequence[torch.optim.Optimizer]) -> None:
        super().__init__([group for part in parts for group in part.param_groups], {})
        self.parts = parts
        self._share()

    def step(self, closure: Any = None) -> Any:
        """One step of each."""
        del closure
        for part in self.parts:
            part.step()

    def __setstate__(self, state: dict[str, Any]) -> None:
        """What `load_state_dict` ends with; it makes new groups and a new state."""
        super().__setstate__(state)
        self._share()

    def _share(self) -> None:
        groups = iter(self.param_groups)
        for part in self.parts:
            part.param_groups = [next(groups) for _ in part.param_groups]
            part.state = self.state


def set_learning_rate(optimizer: torch.optim.Optimizer, lr: float) -> None:
    """Use `lr` for the next step, and for the stream's own parameters their multiple of it."""
    for group in optimizer.param_groups:
        group["lr"] = lr * group["ratio"]


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
