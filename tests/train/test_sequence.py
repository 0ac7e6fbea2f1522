"""Depth state belongs to a token: positions can be spread over ranks, and no stream needs to know.

Attention alone looks at other tokens, so it alone gathers, here keys and values of all ranks.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.distributed.nn.functional import all_gather
from transformers import AttentionInterface

from depth_memory.train.build import build_model
from depth_memory.train.parallel import connect
from tests.train.processes import call_ranks
from tests.train.test_loss import assert_equal
from tests.train.tiny import MODEL

LENGTH = 12
STREAMS = (
    {"name": "ldm", "key_dim": 3, "window": 2, "query_init": "normal"},
    {"name": "ldm", "key_dim": 3, "window": 99, "query_init": "normal", "sites": "block"},
    {"name": "block_attnres"},
)


def gathered(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any, scaling: float, **_: Any
) -> tuple[Tensor, None]:
    """Attention of this rank's queries [batch, heads, length, size] to the keys of all ranks."""
    heads = module.num_key_value_groups
    key, value = (
        torch.cat(all_gather(x.contiguous()), 2).repeat_interleave(heads, 1) for x in (key, value)
    )
    here = dist.get_rank() * query.shape[2] + torch.arange(query.shape[2])
    past = torch.arange(key.shape[2]) <= here[:, None]
    out = F.scaled_dot_product_attention(query, key, value, attn_mask=past, scale=scaling)
    return out.transpose(1, 2).contiguous(), None


def step(stream: dict) -> tuple[float, dict]:
    """Loss and gradients, summed over ranks that have an equal share of the positions each."""
    torch.manual_seed(0)
    model = build_model(replace(MODEL, stream=stream), 257)
    tokens = torch.randint(257, (2, LENGTH + 1), generator=torch.Generator().manual_seed(1))
    inputs, targets = tokens[:, :-1], tokens[:, 1:]
    with connect("cpu") as world:
        options: dict[str, Any] = {}
        if world.size > 1:
            AttentionInterface.register("gathered", gathered)
            model.config._attn_implementation = "gathered"
            places = torch.arange(LENGTH)[None].expand(2, -1)
            inputs, targets, places = (
                x.chunk(world.size, 1)[world.rank] for x in (inputs, targets, places)
            )
            options = {"position_ids": places, "attention_mask": {"full_attention": None}}
        logits = model(input_ids=inputs, use_cache=False, **options).logits.flatten(0, 1)
        loss = F.cross_entropy(logits, targets.flatten(), reduction="sum") / (2 * LENGTH)
        loss.backward()
        named = {n: world.sum(p.grad).tolist() for n, p in model.named_parameters()}
        return world.sum(loss.detach()).item(), named


@pytest.mark.parametrize("stream", STREAMS, ids=lambda s: "-".join(map(str, s.values())))
def test_half_of_the_positions_on_each_rank_is_the_whole(stream: dict) -> None:
    expected = step(stream)
    assert any(torch.tensor(g).any() for n, g in expected[1].items() if "port" in n)
    for got in call_ranks(2, step, stream):
        assert_equal(got, expected)
