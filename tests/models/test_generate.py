"""Generation needs no cache but the attention's: what a stream carries belongs to one token."""

from __future__ import annotations

import pytest
import torch

CLOSE = {"rtol": 1e-10, "atol": 1e-10}  # in float64
GREEDY = {"max_new_tokens": 12, "min_new_tokens": 12, "do_sample": False}


@torch.no_grad()
def test_cache_changes_nothing(make, family, stream, ids, padded):
    model = make(family, stream)
    for inputs in ({"input_ids": ids}, padded):
        plain = model.generate(**inputs, **GREEDY, use_cache=False)
        assert plain.shape == (2, ids.shape[1] + 12)
        assert torch.equal(model.generate(**inputs, **GREEDY), plain)
        static = model.generate(**inputs, **GREEDY, cache_implementation="static")
        assert torch.equal(static, plain)


@torch.no_grad()
def test_cached_logits_equal_whole_logits(make, stream, ids):
    model = make("llama", stream).double()
    whole = model(ids).logits
    first = model(ids[:, :7], use_cache=True)
    cache = first[1]
    rest = [model(ids[:, i : i + 1], None, None, cache).logits for i in range(7, ids.shape[1])]
    torch.testing.assert_close(torch.cat([first.logits, *rest], 1), whole, **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("name", ["past_key_values", "cache"])
def test_both_names_of_the_cache(make, ids, name):
    model = make("qwen3", {"name": "ldm"}).double()
    first = model(ids[:, :7], use_cache=True)
    again = model(ids[:, 7:], **{name: first[1]})
    torch.testing.assert_close(again.logits, model(ids).logits[:, 7:], **CLOSE)


@torch.no_grad()
def test_sampling_beams_and_continuation(make, ids):
    model = make("llama", {"name": "ldm"})
    torch.manual_seed(3)
    sampled = model.generate(ids, do_sample=True, max_new_tokens=5, min_new_tokens=5)
    torch.manual_seed(3)
    plain = model.generate(ids, do_sample=True, max_new_tokens=5, min_new_tokens=5, use_cache=False)
    assert torch.equal(sampled, plain)
    beams = {"num_beams": 3, "max_new_tokens": 5, "do_sample": False}
    assert torch.equal(model.generate(ids, **beams), model.generate(ids, **beams, use_cache=False))


LENGTHS = (3, 9, 26, 61, 130, 257, 400)
LONG = {"pad_token_id": 2, "max_position_embeddings": 512}


def log_likelihoods(model, texts, batch: int, side: str) -> torch.Tensor:
    """Sum of the log-probabilities of each text's tokens after its first."""
    scores = []
    for start in range(0, len(texts), batch):
        group = texts[start : start + batch]
        width = max(map(len, group))
        rows = torch.full((len(group), width), model.config.pad_token_id)
        mask = torch.zeros_like(rows)
        for i, text in enumerate(group):
            place = slice(width - len(text), None) if side == "left" else slice(len(text))
            rows[i, place], mask[i, place] = text, 1
        logits = model(rows, attention_mask=mask).logits.log_softmax(-1)
        picked = logits[:, :-1].gather(-1, rows[:, 1:, None])[..., 0]
        scores += list((picked * mask[:, 1:] * mask[:, :-1]).sum(-1))
    return torch.stack(scores)


@torch.no_grad()
def test_scores_do_not_depend_on_batch_or_padding(make, stream):
    model = make("llama", stream, **LONG, initializer_range=0.05)
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(3, 97, (n,), generator=generator) for n in LENGTHS]
    alone = log_likelihoods(model, texts, 1, "right")
    for batch in (3, 7):
        for side in ("left", "right"):
            scores = log_likelihoods(model, texts, batch, side)
            torch.testing.assert_close(scores, alone, atol=0, rtol=1e-5)


@torch.no_grad()
def test_greedy_tokens_do_not_depend_on_padding(make, stream):
    model = make("llama", stream, **LONG)
    generator = torch.Generator().manual_seed(2)
    texts = [torch.randint(3, 97, (n,), generator=generator) for n in LENGTHS]
    width = max(LENGTHS)
    rows = torch.stack([torch.cat([torch.full((width - len(t),), 2), t]) for t in texts])
    mask = torch.stack([torch.arange(width) >= width - len(t) for t in texts]).long()
    together = model.generate(rows, attention_mask=mask, **GREEDY)[:, width:]
    for text, tokens in zip(texts, together, strict=True):
        mask = torch.ones(1, len(text), dtype=torch.long)
        alone = model.generate(text[None], attention_mask=mask, **GREEDY)[0, len(text) :]
        assert torch.equal(alone, tokens)


@torch.no_grad()
def test_generation_from_embeddings(make, stream, ids):
    model = make("qwen3", stream)
    embeds = model.get_input_embeddings()(ids)
    whole = model.generate(ids, **GREEDY)
    assert torch.equal(model.generate(inputs_embeds=embeds, **GREEDY), whole[:, ids.shape[1] :])
