"""The trunk: embedding, layers around one stream, final norm. Generic over the family."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from transformers import DynamicCache, PreTrainedConfig, PreTrainedModel
from transformers.cache_utils import Cache
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.utils.generic import can_return_tuple

from depth_memory import streams
from depth_memory.models import deferred
from depth_memory.models.config import DepthLlamaConfig, DepthQwen3Config
from depth_memory.models.context import Context, Record, check_length, make_masks, make_positions
from depth_memory.models.families import family_of
from depth_memory.models.layer import INIT_SCALE, DepthLayer


class DepthPreTrainedModel(PreTrainedModel):
    """Loading, initialisation and capabilities, the same for every family; abstract."""

    base_model_prefix = "model"
    supports_gradient_checkpointing = True
    _no_split_modules = ["DepthLayer"]  # noqa: RUF012
    _skip_keys_device_placement = ["past_key_values", "cache"]  # noqa: RUF012
    _supports_flash_attn = True
    _supports_sdpa = True
    _supports_flex_attn = True
    _can_compile_fullgraph = True
    _supports_attention_backend = True
    _keep_in_fp32_modules_strict = list(streams.FLOAT32_MODULES)  # noqa: RUF012

    def init_weights(self) -> None:
        """Start all modules; also on the meta device, where a start is to be repeated later."""
        if not deferred.is_deferred():
            super().init_weights()
            return
        self.initialize_weights()
        self.tie_weights(recompute_mapping=False)

    def _init_weights(self, module: nn.Module) -> None:
        deferred.note(module)
        if isinstance(module, streams.StreamModule):
            module.reset_parameters()
            return
        super()._init_weights(module)
        scale = getattr(module, INIT_SCALE, 1.0)
        if isinstance(module, nn.Linear) and scale != 1.0:
            nn.init.normal_(module.weight, std=self.config.initializer_range * scale)

    def _set_gradient_checkpointing(
        self,
        enable: bool = True,
        gradient_checkpointing_func: Callable = checkpoint,
        every_n_layers: int = 1,
    ) -> None:
        layers = [module for module in self.modules() if isinstance(module, DepthLayer)]
        for i, layer in enumerate(layers):
            layer.gradient_checkpointing = enable and i % every_n_layers == 0
            layer._gradient_checkpointing_func = gradient_checkpointing_func

    @classmethod
    def register_for_auto_class(cls, auto_class: str = "AutoModel") -> None:
        """Nothing to do: every saved directory already names its classes."""


class DepthModel(DepthPreTrainedModel):
    """The trunk: token ids to normed hidden states; abstract, a family completes it."""

    def __init__(self, config: PreTrainedConfig):
        super().__init__(config)
        family = family_of(config)
        depth, dim = config.num_hidden_layers, config.hidden_size
        self.embed_tokens = nn.Embedding(config.vocab_size, dim, config.pad_token_id)
        self.stream = streams.build(config.stream, dim, 2 * depth)
        # with what `auto` stood for: a folded bfloat16 memory depends on the window
        config.stream = self.stream.config
        self.layers = nn.ModuleList([DepthLayer(config, self.stream, i) for i in range(depth)])
        self.norm = family.norm(dim, eps=config.rms_norm_eps)
        self.rotary_emb = family.rotary(config=config)
        self.post_init()

    @can_return_tuple
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | dict | None = None,
        position_ids: Tensor | None = None,
        past_key_values: Cache | None = None,
        inputs_embeds: Tensor | None = None,
        use_cache: bool | None = None,
        cache: Cache | None = None,
        output_hidden_states: bool | None = None,
        output_attentions: bool | None = None,
        **options: Any,
    ) -> BaseModelOutputWithPast:
        """Run the trunk.

        Args:
            input_ids: Token ids [batch, length]; or `inputs_embeds`, never both.
            attention_mask: [batch, past + length], 1 for tokens and 0 for padding.
            position_ids: [batch, length]; starting again at 0 begins another packed document, also
                where a cache is made (transformers then lets documents see each other).
            past_key_values: The cache, by its name until transformers 5.23.
            inputs_embeds: Embeddings [batch, length, D].
            use_cache: Keep keys and values; `None` takes the configuration's, but in training none.
            cache: The cache, by its name from transformers 5.24 on.
            output_hidden_states: Also return, for each layer, what its input norm sees, and last
                the normed output.
            output_attentions: Also return the attention weights, where the backend computes them.
            **options: Handed on to transformers' attention.

        Returns:
            Normed hidden states [batch, length, D], the cache, and what else was asked for.

        Raises:
            ValueError: Not exactly one of `input_ids` and `inputs_embeds`.
            UserError: The sequence is longer than the position limit.
        """
        if (input_ids is None) == (inputs_embeds is None):
            raise ValueError("give exactly one of input_ids and inputs_embeds")
        x = self.embed_tokens(input_ids) if inputs_embeds is None else inputs_embeds
        cache = past_key_values if cache is None else cache
        context = self._context(x, attention_mask, position_ids, cache, options)
        cache = self._cache(cache, use_cache)
        record = self._record(output_hidden_states, output_attentions)
        # not _replace: torch 2.11 loses fields of a NamedTuple that it compiles
        context = Context(context.rotary, context.masks, cache, context.options, record)
        output = self._run(x, context)
        return _trunk_output(output, cache, record)

    def _run(self, x: Tensor, context: Context) -> Tensor:
        state = self.stream.start(x)
        for layer in self.layers:
            state = layer(state, context)
        return self.stream.finish(state, self.norm)

    def _cache(self, cache: Cache | None, use_cache: bool | None) -> Cache | None:
        checkpointed = any(layer.gradient_checkpointing for layer in self.layers)
        if checkpointed and self.training and torch.is_grad_enabled():
            return None  # the backward pass would write every key a second time
        wanted = self.config.use_cache and not self.training if use_cache is None else use_cache
        return DynamicCache(config=self.config) if cache is None and wanted else cache

    def _context(
        self,
        x: Tensor,
        attention_mask: Any,
        positions: Tensor | None,
        cache: Cache | None,
        options: dict[str, Any],
    ) -> Context:
        past = 0 if cache is None else cache.get_seq_length()
        packed = positions is not None and cache is None and attention_mask is None
        check_length(self.config, x.shape[1], past, packed=packed)
        masks = make_masks(self.config, x, attention_mask, cache, positions)
        positions = make_positions(x, past) if positions is None else positions
        options = {**options, "position_ids": positions}
        return Context(self.rotary_emb(x, positions), masks, cache, options, Record(None, None))

    def _record(self, hidden_states: bool | None, attentions: bool | None) -> Record:
        if hidden_states is None:
            hidden_states = self.config.output_hidden_states
        if attentions is None:
            attentions = self.config.output_attentions
        return Record([] if hidden_states else None, [] if attentions else None)


def _trunk_output(output: Tensor, cache: Cache | None, record: Record) -> BaseModelOutputWithPast:
    hidden_states = None if record.inputs is None else (*record.inputs, output)
    attentions = None if record.attentions is None else tuple(record.attentions)
    # By position: the name of the second field changed in transformers 5.24.
    return BaseModelOutputWithPast(output, cache, hidden_states, attentions)


class DepthLlamaModel(DepthModel):
    """Llama's trunk."""

    config_class = DepthLlamaConfig


class DepthQwen3Model(DepthModel):
    """Qwen3's trunk."""

    config_class = DepthQwen3Config
