"""Log-likelihoods by their definition: one sequence at a time, no padding, softmax in float64."""

from __future__ import annotations

from typing import Any

import torch


@torch.no_grad()
def of_tokens(model: Any, context: list[int], continuation: list[int]) -> tuple[float, bool]:
    """log p(continuation | context), and whether every token of it is the most probable."""
    ids = torch.tensor([context + continuation])
    log_p = model(input_ids=ids[:, :-1]).logits[0, len(context) - 1 :].double().log_softmax(-1)
    targets = torch.tensor(continuation)
    found = log_p.gather(-1, targets[:, None]).sum().item()
    return found, bool((log_p.argmax(-1) == targets).all())


def of_pair(model: Any, tokenizer: Any, context: str, continuation: str) -> tuple[float, bool]:
    """The same for texts; spaces between them belong to the continuation."""
    before = tokenizer.encode(context.rstrip())
    whole = tokenizer.encode(context + continuation)
    return of_tokens(model, before, whole[len(before) :])


def of_text(model: Any, tokenizer: Any, text: str, length: int) -> float:
    """log p(text) in windows of `length`, which meet but do not overlap in what they predict."""
    ids = [tokenizer.eos_token_id, *tokenizer.encode(text)]
    total, end = 0.0, 1
    while end < len(ids):
        start, end = end, min(end + length, len(ids))
        # the last window may look back as far as the model can
        context = ids[max(0, end - 1 - length) : start]
        total += of_tokens(model, context, ids[start:end])[0]
    return total
