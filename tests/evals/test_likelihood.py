"""Scores do not depend on batch size or padding side, and are what the definition gives."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lm_eval.api.instance import Instance

from depth_memory import streams
from depth_memory.errors import UserError
from depth_memory.evals.adapter import Adapter
from tests.evals import direct
from tests.evals.conftest import build

WORDS = "the mill was built by a miller and the boat left the pier in winter".split()  # noqa: SIM905


def text_of(tokenizer: Any, tokens: int, seed: int) -> str:
    """A text of about that many tokens."""
    generator = torch.Generator().manual_seed(seed)
    text = "at a"
    while len(tokenizer.encode(text)) < tokens:
        text += " " + WORDS[int(torch.randint(len(WORDS), (), generator=generator))]
    return text


@pytest.fixture
def pairs(tokenizer: Any) -> list[tuple[str, str]]:
    """Seven texts of 3 to 400 tokens; the last word is to be predicted."""
    texts = [text_of(tokenizer, n, n) for n in (3, 5, 17, 40, 111, 256, 395)]
    assert [3 <= len(tokenizer.encode(text)) <= 400 for text in texts] == [True] * 7
    return [(text.rpartition(" ")[0], " " + text.rpartition(" ")[2]) for text in texts]


def adapter(model: Any, tokenizer: Any, batch: int, length: int | None = None) -> Adapter:
    return Adapter(model, tokenizer, batch=batch, length=length, step=lambda rows: None)


def requests(kind: str, arguments: list[tuple]) -> list[Instance]:
    return [Instance(kind, {}, found, i) for i, found in enumerate(arguments)]


@pytest.mark.parametrize("stream", streams.STREAMS)
def test_batch_and_padding_side_do_not_matter(
    stream: str, tokenizer: Any, pairs: list[tuple[str, str]]
) -> None:
    model = build(stream)
    expected = [direct.of_pair(model, tokenizer, *pair) for pair in pairs]
    assert len({round(likelihood, 3) for likelihood, _ in expected}) == 7
    for side in ("left", "right"):
        tokenizer.padding_side = side
        tokenizer.pad_token = tokenizer.eos_token
        for batch in (1, 3, 7):
            found = adapter(model, tokenizer, batch).loglikelihood(requests("loglikelihood", pairs))
            assert [g for _, g in found] == [g for _, g in expected]
            assert [x for x, _ in found] == pytest.approx([x for x, _ in expected], rel=1e-5)


@pytest.mark.parametrize("side", ["left", "right"])
@pytest.mark.parametrize("stream", streams.STREAMS)
@torch.no_grad()
def test_a_padded_batch_gives_every_text_its_own_likelihood(
    stream: str, side: str, tokenizer: Any, pairs: list[tuple[str, str]]
) -> None:
    model, end = build(stream), tokenizer.eos_token_id
    tokenizer.padding_side, tokenizer.pad_token = side, tokenizer.eos_token
    texts = [context + continuation for context, continuation in pairs]
    batch = tokenizer(texts, padding=True, return_tensors="pt")
    ids, mask = batch["input_ids"], batch["attention_mask"]
    assert (ids[mask == 0] == end).all()
    log_p = model(input_ids=ids, attention_mask=mask).logits.double().log_softmax(-1)
    token_log_p = log_p[:, :-1].gather(-1, ids[:, 1:, None])[..., 0]
    found = (token_log_p * (mask[:, 1:] * mask[:, :-1])).sum(-1).tolist()
    encoded = [tokenizer.encode(text) for text in texts]
    expected = [direct.of_tokens(model, e[:1], e[1:])[0] for e in encoded]
    assert found == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("stream", streams.STREAMS)
def test_a_long_text_is_scored_in_windows(stream: str, tokenizer: Any) -> None:
    model = build(stream)
    texts = [text_of(tokenizer, n, n) for n in (3, 32, 33, 100)]
    expected = [direct.of_text(model, tokenizer, text, 32) for text in texts]
    for batch in (1, 3):
        scored = adapter(model, tokenizer, batch, 32)
        found = scored.loglikelihood_rolling(
            requests("loglikelihood_rolling", [(t,) for t in texts])
        )
        assert found == pytest.approx(expected, rel=1e-5)
        assert scored.truncated == 0


def test_a_long_context_loses_its_start(tokenizer: Any) -> None:
    model = build("ldm")
    context, continuation = text_of(tokenizer, 60, 1), " the boat"
    scored = adapter(model, tokenizer, 1, 16)
    (found,) = scored.loglikelihood(requests("loglikelihood", [(context, continuation)]))
    ids, answer = tokenizer.encode(context + continuation), tokenizer.encode(continuation)
    kept = ids[-17 : -len(answer)]
    assert ids[-len(answer) :] == answer
    assert found[0] == pytest.approx(direct.of_tokens(model, kept, answer)[0], rel=1e-5)
    assert scored.truncated == 1


def test_an_empty_context_is_the_end_of_text(tokenizer: Any) -> None:
    model = build("ldm")
    (found,) = adapter(model, tokenizer, 1).loglikelihood(requests("loglikelihood", [("", "boat")]))
    expected = direct.of_tokens(model, [tokenizer.eos_token_id], tokenizer.encode("boat"))
    assert found[0] == pytest.approx(expected[0], rel=1e-5)


def test_an_answer_that_does_not_fit_is_refused(tokenizer: Any) -> None:
    scored = adapter(build("preln"), tokenizer, 1, 4)
    long = requests("loglikelihood", [("Ann", " the mill was built by a miller in winter")])
    with pytest.raises(UserError, match=r"^tokens of .+: got \d+; allowed: at most .+ of 4$"):
        scored.loglikelihood(long)


def test_a_model_that_computes_nan_is_refused(tokenizer: Any) -> None:
    model = build("preln")
    with torch.no_grad():
        model.model.norm.weight.fill_(float("nan"))
    with pytest.raises(UserError, match=r"^log-likelihood: got one that is not finite"):
        adapter(model, tokenizer, 1).loglikelihood(requests("loglikelihood", [("a", " b")]))


def test_the_softmax_is_in_float32_whatever_the_model_is(tokenizer: Any) -> None:
    model = build("preln").to(torch.bfloat16)
    pair = ("Ann left the", " boat in winter")
    (found,) = adapter(model, tokenizer, 1).loglikelihood(requests("loglikelihood", [pair]))
    expected = direct.of_pair(model, tokenizer, *pair)
    assert found[0] == pytest.approx(expected[0], rel=1e-5)
