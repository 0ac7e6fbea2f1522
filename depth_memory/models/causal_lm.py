"""Language models: the trunk and a head over the vocabulary. Generic over the family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

from torch import Tensor, nn
from transformers import GenerationMixin, PreTrainedConfig
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast, CausalLMOutputWithPast
from transformers.utils.generic import can_return_tuple

from depth_memory.errors import invalid
from depth_memory.models.config import DepthLlamaConfig, DepthQwen3Config
from depth_memory.models.context import check_length
from depth_memory.models.trunk import (
    DepthLlamaModel,
    DepthModel,
    DepthPreTrainedModel,
    DepthQwen3Model,
)

HEAD, EMBEDDING = "lm_head.weight", "model.embed_tokens.weight"
_CACHE_FIELD = fields(BaseModelOutputWithPast)[1].name


class DepthForCausalLM(DepthPreTrainedModel, GenerationMixin):
    """The trunk and a head over the vocabulary; abstract, a family completes it."""

    _tied_weights_keys = {HEAD: EMBEDDING}  # noqa: RUF012
    trunk: type[DepthModel]

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        self.model = self.trunk(config)
        self.vocab_size = config.vocab_size
        self.lm_head = nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()

    def tie_weights(
        self, missing_keys: set[str] | None = None, recompute_mapping: bool = True
    ) -> None:
        """Make head and embedding one tensor where the configuration ties them.

        Raises:
            UserError: While loading, the checkpoint lacks one of the two, or holds two different
                ones although they are tied; transformers would go on with a random head, or untied.
        """
        super().tie_weights(missing_keys, recompute_mapping)
        if missing_keys is not None:
            self._check_head(missing_keys)

    def _check_head(self, missing: set[str]) -> None:
        tied = self.config.tie_word_embeddings
        for name in (EMBEDDING, HEAD):
            if name in missing:
                allowed = "a checkpoint that has it" + ("" if tied else " (or tie_word_embeddings)")
                raise invalid(name, "nothing", allowed)
        if tied and self.lm_head.weight is not self.model.embed_tokens.weight:
            raise invalid(HEAD, f"other values than {EMBEDDING}", "the same, as they are tied")

    def prepare_inputs_for_generation(
        self, input_ids: Tensor, *args: Any, inputs_embeds: Tensor | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """As in transformers, which passes all tokens so far; refuses more than the model knows.

        Raises:
            UserError: The sequence is longer than the position limit.
        """
        # by the names `inputs_embeds` and `kwargs`, `generate` knows what it may pass
        prompt = 0 if inputs_embeds is None else inputs_embeds.shape[1]
        check_length(self.config, max(input_ids.shape[1], prompt), 0, packed=False)
        return super().prepare_inputs_for_generation(
            input_ids, *args, inputs_embeds=inputs_embeds, **kwargs
        )

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        labels: Tensor | None = None,
        use_cache: bool | None = None,
        logits_to_keep: int | Tensor = 0,
        cache: Cache | None = None,
        head: Callable[[Tensor, Tensor], Tensor] | None = None,
        **options: Any,
    ) -> CausalLMOutputWithPast:
        """Logits of the next token, and the loss where labels are given.

        Args:
            input_ids: As for the trunk, like all that is not listed here.
            attention_mask: See the trunk.
            position_ids: See the trunk.
            past_key_values: See the trunk.
            inputs_embeds: See the trunk.
            labels: Token ids [batch, length], not shifted; -100 is ignored.
            use_cache: See the trunk.
            logits_to_keep: How many of the last positions get logits, 0 for all; or their indices.
            cache: See the trunk.
            head: Makes the loss in place of logits, of which there are then none, from the normed
                hidden states [batch, length, D] and the weight of the head [vocab, D].
            **options: `num_items_in_batch` divides the summed loss; the rest goes to the trunk.

        Returns:
            Loss (mean over targets, nats), logits [batch, kept, vocab], cache, and what else the
            trunk returns.
        """
        trunk = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            past_key_values=past_key_values,
            inputs_embeds=inputs_embeds,
            use_cache=use_cache,
            cache=cache,
            **options,
        )
        if head is not None:
            loss = head(trunk.last_hidden_state, self.lm_head.weight)
            return CausalLMOutputWithPast(loss)
        kept = slice(-logits_to_keep, None) if isinstance(logits_to_keep, int) else logits_to_keep
        logits = self.lm_head(trunk.last_hidden_state[:, kept, :])
        loss = None
        if labels is not None:
            size = self.config.vocab_size
            loss = self.loss_function(logits=logits, labels=labels, vocab_size=size, **options)
        cache = getattr(trunk, _CACHE_FIELD)
        # By position: the name of the third field changed in transformers 5.24.
        return CausalLMOutputWithPast(loss, logits, cache, trunk.hidden_states, trunk.attentions)


class DepthLlamaForCausalLM(DepthForCausalLM):
    """Llama with a stream."""

    config_class = DepthLlamaConfig
    trunk = DepthLlamaModel


class DepthQwen3ForCausalLM(DepthForCausalLM):
    """Qwen3 with a stream."""

    config_class = DepthQwen3Config
    trunk = DepthQwen3Model
