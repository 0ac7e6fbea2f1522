"""One step of each mode, as a function without arguments; and what all methods are given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor
from transformers import Cache
from transformers.cache_utils import DynamicLayer
from transformers.modeling_outputs import BaseModelOutputWithPast

from depth_memory.bench.cases import Case
from depth_memory.train.loss import CHUNK, head_loss, loss_and_gradient

Step = Callable[[], Any]

# the name changed in transformers 5.24
CACHE = fields(BaseModelOutputWithPast)[1].name


class FixedLayer(DynamicLayer):
    """Keys and values of a whole context, and one place for those of the next token. Final.

    Every step fills the same place, so that all steps are alike, and none allocates.
    """

    def __init__(self, keys: Tensor, values: Tensor):
        super().__init__()
        self.held = keys, values
        self.keys, self.values, self.is_initialized = keys, values, True

    def update(
        self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any
    ) -> tuple[Tensor, Tensor]:
        """Put the new ones into their place; all of them."""
        del args, kwargs
        for held, new in zip(self.held, (key_states, value_states), strict=True):
            held[:, :, -1:].copy_(new)
        return self.held

    def get_seq_length(self, *args: Any) -> int:
        """Tokens before the next one."""
        del args
        return self.held[0].shape[-2] - 1


@dataclass(frozen=True, kw_only=True)
class Inputs:
    """What every method of a case is given."""

    embedded: Tensor
    ids: Tensor
    gradient: Tensor
    targets: Tensor
    cache: Cache | None


def make_inputs(case: Case, device: torch.device) -> Inputs:
    """Random inputs of a case, from torch's global generator."""
    shape, rows = case.shape, (case.batch, case.sequence)
    options: dict[str, Any] = {"device": device, "dtype": torch.bfloat16}
    embedded = torch.randn(*rows, shape.width, **options)
    cache = None
    if case.mode == "decode":
        size = (case.batch, shape.kv_heads, case.context + 1, shape.head_dim)
        layers: list[Any] = [
            FixedLayer(torch.randn(size, **options), torch.randn(size, **options))
            for _ in range(case.layers)
        ]
        cache = Cache(layers=layers)
    return Inputs(
        embedded=embedded,
        ids=torch.randint(shape.vocabulary, rows, device=device),
        gradient=torch.randn_like(embedded) / case.tokens,
        targets=torch.randint(shape.vocabulary, (case.tokens,), device=device),
        cache=cache,
    )


def make_step(model: Any, case: Case, inputs: Inputs, *, compiled: bool) -> Step:
    """The step that is timed."""
    if case.mode == "train":
        return _training(model, case, inputs, compiled=compiled)
    return _inference(model, case, inputs)


def _training(model: Any, case: Case, inputs: Inputs, *, compiled: bool) -> Step:
    """Forward and backward; the gradients are let go, as after an optimiser's step."""
    if case.checkpointing:
        # renamed in transformers 5.23
        old, new = "gradient_checkpointing_enable", "activation_checkpointing_enable"
        getattr(model, new if hasattr(model, new) else old)({"use_reentrant": False})

    def trunk() -> None:
        x = inputs.embedded.detach().requires_grad_()
        model.model(inputs_embeds=x, use_cache=False).last_hidden_state.backward(inputs.gradient)
        model.zero_grad(set_to_none=True)

    pointwise = torch.compile(loss_and_gradient, dynamic=False) if compiled else loss_and_gradient

    def whole() -> None:
        hidden = model.model(input_ids=inputs.ids, use_cache=False).last_hidden_state
        weight = model.lm_head.weight
        loss = head_loss(
            hidden.flatten(0, 1), weight, inputs.targets, chunk=CHUNK, pointwise=pointwise
        )
        (loss / case.tokens).backward()
        model.zero_grad(set_to_none=True)

    return whole if case.scope == "model" else trunk


def _inference(model: Any, case: Case, inputs: Inputs) -> Step:
    """Forward; with the head, the logits of each sequence's last token."""
    whole = case.scope == "model"
    given: dict[str, Any] = (
        {"input_ids": inputs.ids} if whole else {"inputs_embeds": inputs.embedded}
    )
    if inputs.cache is None:
        given["use_cache"] = False
    else:
        # one token sees all that the cache holds: no mask, and no search for one
        mask = {"full_attention": None}
        given |= {CACHE: inputs.cache, "use_cache": True, "attention_mask": mask}

    @torch.no_grad()
    def step() -> Tensor:
        hidden = model.model(**given).last_hidden_state
        return model.lm_head(hidden[:, -1:]) if whole else hidden

    return step
