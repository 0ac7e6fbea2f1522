"""Evaluation covers the split once, whatever the batch, and speaks in nats and in bits per byte."""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from depth_memory.data import TokenData, open_split
from depth_memory.errors import UserError
from depth_memory.train import Evaluation, NonFiniteError, evaluate
from depth_memory.train.build import build_model
from depth_memory.train.parallel import connect
from tests.train.processes import call_ranks
from tests.train.tiny import MODEL, replace


def seeded_model(**changes):
    torch.manual_seed(0)
    return build_model(replace(MODEL, **changes), 257)


def test_every_token_but_the_first_is_predicted_once(corpus: Path) -> None:
    split = open_split(corpus, "validation")
    evaluation = evaluate(seeded_model(), split, length=32, rows=5)
    assert evaluation.tokens == split.tokens - 1
    assert evaluation.loss == pytest.approx(math.log(257), abs=0.2)
    scored = split.bytes - text_bytes(split, [int(split.read(0, 1)[0])])
    expected = evaluation.loss * evaluation.tokens / scored / math.log(2)
    assert evaluation.bits_per_byte == pytest.approx(expected, rel=1e-12)


def text_bytes(split: TokenData, ids) -> int:
    """UTF-8 bytes of the text of token ids, without separators."""
    return len(split.tokenizer.decode(ids).replace(split.tokenizer.end, "").encode())


@pytest.mark.parametrize(("length", "windows"), [(7, 1), (32, 3), (50, 20)])
def test_bits_per_byte_are_those_of_the_tokens_that_were_scored(
    corpus: Path, length: int, windows: int
) -> None:
    split = open_split(corpus, "validation")
    found = evaluate(seeded_model(), split, length=length, windows=windows)
    size = text_bytes(split, split.read(1, found.tokens + 1))
    expected = found.loss * found.tokens / size / math.log(2)
    assert found.bits_per_byte == pytest.approx(expected, rel=1e-12)


def test_more_windows_than_there_are_is_all(corpus: Path) -> None:
    split = open_split(corpus, "validation")
    found = evaluate(seeded_model(), split, length=64, rows=2**70, windows=2**70)
    assert found.tokens == split.tokens - 1


def test_a_loss_that_is_not_finite_is_an_error(corpus: Path) -> None:
    model = seeded_model()
    with torch.no_grad():
        model.model.norm.weight.fill_(math.nan)
    with pytest.raises(NonFiniteError, match=r"^loss on .*data \(validation\) is nan$"):
        evaluate(model, open_split(corpus, "validation"), length=32, windows=1)


def test_the_token_perplexity_is_exp_of_the_loss_even_beyond_floats() -> None:
    found = [Evaluation(loss=x, bits_per_byte=0, tokens=1).token_perplexity for x in (2.5, 1e4)]
    assert found == [math.exp(2.5), math.inf]


def test_the_loss_is_that_of_the_definition(corpus: Path) -> None:
    split = open_split(corpus, "validation")
    model = seeded_model().eval()
    window = torch.from_numpy(next(split.windows(48)))
    with torch.no_grad():
        log_p = model(input_ids=window[None, :-1]).logits.double().log_softmax(-1)[0]
    expected = -log_p.gather(-1, window[1:, None]).mean().item()
    evaluation = evaluate(model, split, length=48, rows=4, windows=1)
    assert (evaluation.tokens, evaluation.loss) == (48, pytest.approx(expected, abs=1e-6))


def test_the_batch_does_not_matter(corpus: Path) -> None:
    split = open_split(corpus, "validation")
    losses = [evaluate(seeded_model(), split, length=20, rows=rows).loss for rows in (1, 3, 64)]
    assert losses == pytest.approx([losses[0]] * 3, abs=1e-6)


def on_rank(corpus: Path, windows: int) -> tuple[float, int]:
    with connect("cpu") as world:
        split = open_split(corpus, "validation")
        found = evaluate(seeded_model(), split, length=20, rows=2, windows=windows, world=world)
        return found.loss, found.tokens


def test_processes_share_the_work(corpus: Path) -> None:
    split = open_split(corpus, "validation")
    # 5 windows in batches of 2: the last turn leaves one process without work
    expected = evaluate(seeded_model(), split, length=20, windows=5)
    for loss, tokens in call_ranks(2, on_rank, corpus, 5):
        assert tokens == expected.tokens
        assert loss == pytest.approx(expected.loss, abs=1e-6)


@pytest.mark.parametrize("training", [True, False])
def test_the_model_keeps_its_mode_and_gets_no_gradient(corpus: Path, training: bool) -> None:
    model = seeded_model().train(training)
    evaluate(model, open_split(corpus, "validation"), length=32, windows=1)
    assert model.training is training
    assert all(p.grad is None for p in model.parameters())


def test_what_does_not_fit_is_refused(corpus: Path) -> None:
    split = open_split(corpus, "validation")
    with pytest.raises(UserError, match=r"length: got 65; allowed: 1 to the model's position limi"):
        evaluate(seeded_model(), split, length=65)
    with pytest.raises(UserError, match=r"vocab_size: got 100; allowed: at least the data's 257"):
        evaluate(build_model(MODEL, 100), split, length=8)
