"""The harness's view of a causal language model. Imports the harness."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

from lm_eval.models.huggingface import HFLM
from torch import Tensor
from transformers import PreTrainedModel, PreTrainedTokenizerBase

from depth_memory.errors import UserError, invalid


class Adapter(HFLM):
    """The harness's own model for transformers, made to count, to refuse and to be silent. Final.

    It computes what the harness does by default, with one exception: the softmax is in float32,
    whatever the model's dtype.
    """

    def __init__(
        self,
        model: PreTrainedModel,
        tokenizer: PreTrainedTokenizerBase,
        *,
        batch: int,
        length: int | None,
        step: Callable[[int], None],
    ):
        super().__init__(
            pretrained=model,
            backend="causal",
            # it is given a padding token
            tokenizer=copy.deepcopy(tokenizer),  # ty: ignore[invalid-argument-type]
            batch_size=batch,
            max_length=length,
            softmax_dtype="float32",
        )
        self._step = step
        self.truncated = 0
        """How many requests lost the start of their context, which was too long."""

    def loglikelihood(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        """Log-likelihood and greediness of continuations, without a bar of the harness's."""
        return super().loglikelihood(requests, disable_tqdm=True)

    def loglikelihood_rolling(self, requests: list[Any], disable_tqdm: bool = False) -> Any:
        """Log-likelihood of whole texts in windows, without a bar of the harness's."""
        return super().loglikelihood_rolling(requests, disable_tqdm=True)

    def _loglikelihood_tokens(
        self,
        requests: list[Any],
        disable_tqdm: bool = False,
        override_bs: int | None = None,
    ) -> list[tuple[float, bool]]:
        """As the harness; refuses what does not fit, and what has no probability.

        Raises:
            UserError: A continuation longer than the context, or a model that computes NaN.
        """
        for text, context, continuation in requests:
            self._check_fits(text, len(continuation))
            self.truncated += len(context) + len(continuation) > self.max_length + 1
        found = super()._loglikelihood_tokens(requests, disable_tqdm=True, override_bs=override_bs)
        if not all(math.isfinite(likelihood) for likelihood, _ in found):
            raise UserError("log-likelihood: got one that is not finite; allowed: a sound model")
        return found

    def _model_call(self, inps: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        logits = super()._model_call(inps, *args, **kwargs)
        self._step(len(inps))
        return logits

    def _check_fits(self, text: Any, tokens: int) -> None:
        if tokens > self.max_length:
            start = "" if text is None else f" of {text[1][:40]!r}"
            raise invalid(f"tokens{start}", tokens, f"at most the context of {self.max_length}")
