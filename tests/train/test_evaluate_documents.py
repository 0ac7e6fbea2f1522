"""DepthBench's validation loss: the mean over the first tokens of every document."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest
import torch

from depth_memory import data
from depth_memory.data import beginnings, documents, open_split
from depth_memory.errors import UserError
from depth_memory.train import evaluate, read_metrics, train
from depth_memory.train.parallel import connect
from tests.train.processes import call_ranks
from tests.train.test_evaluate import seeded_model
from tests.train.tiny import TEXT, WORDS, tiny_run

TEXTS = ["the sea", "calm " * 60, "", "old men sat " * 30, "x", TEXT]


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Documents shorter and longer than what is read of them, in shards that cut them."""
    folder = tmp_path_factory.mktemp("texts")
    for i, text in enumerate(TEXTS):
        (folder / f"{i}.txt").write_text(text)
    tokenizer = data.train_tokenizer(WORDS, 257)
    out = folder.parent / "data"
    data.prepare([folder], out, tokenizer=tokenizer, validation=0, shard_tokens=50)
    return out


def directly(directory: Path, length: int) -> tuple[float, int, int]:
    """Summed loss, targets and bytes of the text: one document at a time, from the text."""
    split, model = open_split(directory, "train"), seeded_model().eval()
    total, targets, size = 0.0, 0, 0
    for text in TEXTS:
        if not text.strip():
            continue
        ids = [*split.tokenizer.encode(text), split.tokenizer.end_id][:length]
        with torch.no_grad():
            log_p = model(torch.tensor([ids])).logits.double().log_softmax(-1)[0]
        total -= sum(log_p[i, ids[i + 1]].item() for i in range(len(ids) - 1))
        targets += len(ids) - 1
        end = split.tokenizer.end
        size += len(split.tokenizer.decode(ids[1:]).replace(end, "").encode())
    return total, targets, size


@pytest.mark.parametrize(("length", "rows"), [(2, 4), (16, 1), (50, 2), (64, 100)])
def test_it_is_the_mean_over_the_first_tokens_of_every_document(texts, length, rows):
    found = evaluate(
        seeded_model(), open_split(texts, "train"), length=length, rows=rows, by="documents"
    )
    total, targets, size = directly(texts, length)
    assert found.tokens == targets
    assert found.loss == pytest.approx(total / targets, abs=1e-6)
    assert found.bits_per_byte == pytest.approx(total / size / math.log(2), rel=1e-6)


def test_what_lies_beyond_the_first_tokens_is_dropped(texts):
    split = open_split(texts, "train")
    found = list(beginnings(split, 64))
    assert [len(ids) for ids in found] == [
        min(len(split.tokenizer.encode(text)) + 1, 64) for text in TEXTS if text
    ]
    for ids, text in zip(found, filter(None, TEXTS), strict=True):
        assert text.startswith(split.tokenizer.decode(ids).removesuffix(split.tokenizer.end))


def test_blocks_of_any_size_find_the_same_documents(texts, monkeypatch):
    split = open_split(texts, "train")
    whole = list(beginnings(split, 40))
    monkeypatch.setattr(documents, "COUNTED_AT_ONCE", 7)
    assert all(map(np.array_equal, whole, beginnings(split, 40)))


def test_the_first_documents_alone(texts):
    split = open_split(texts, "train")
    found = evaluate(seeded_model(), split, length=64, by="documents", windows=1)
    size = len(b"the sea") - 1  # its first byte is context
    assert found.tokens == len(split.tokenizer.encode("the sea"))
    expected = found.loss * found.tokens / size / math.log(2)
    assert found.bits_per_byte == pytest.approx(expected, rel=1e-9)


def on_rank(texts: Path) -> tuple[float, int]:
    with connect("cpu") as world:
        split = open_split(texts, "train")
        found = evaluate(
            seeded_model(), split, length=30, rows=1, by="documents", windows=3, world=world
        )
        return found.loss, found.tokens


def test_processes_share_the_documents(texts):
    split = open_split(texts, "train")
    one = evaluate(seeded_model(), split, length=30, by="documents", windows=3)
    for loss, tokens in call_ranks(2, on_rank, texts):
        assert (tokens, loss) == (one.tokens, pytest.approx(one.loss, abs=1e-6))


def test_a_run_evaluates_by_documents(corpus, tmp_path):
    run = tiny_run(corpus, tmp_path / "run", steps=2, eval_every=1, eval_by="documents")
    result = train(run, show=False)
    split = open_split(corpus, "validation")
    expected = sum(len(ids) - 1 for ids in beginnings(split, run.length))
    assert split.documents == 4
    assert result.evaluation.tokens == expected == 4 * (run.length - 1)
    records = read_metrics(run.out / "metrics.jsonl")
    assert records[-1]["validation_loss"] == result.evaluation.loss


def test_what_has_no_documents_is_refused(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    out, tokenizer = tmp_path / "data", data.train_tokenizer(WORDS, 257)
    data.prepare([tmp_path / "a.txt"], out, tokenizer=tokenizer, validation=0, separator="none")
    split = open_split(out, "train")
    with pytest.raises(UserError, match="separator: got 'none'; allowed: eos, which says where"):
        evaluate(seeded_model(), split, length=8, by="documents")
    with pytest.raises(UserError, match="length: got 1; allowed: at least 2"):
        beginnings(split, 1)
    run = tiny_run(out, tmp_path / "run", length=1, eval_by="documents")
    with pytest.raises(UserError, match="length: got 1; allowed: at least 2 with eval_by"):
        run.validate()


def test_a_run_over_data_without_documents_is_refused_before_its_first_step(tmp_path):
    for name in "ab":
        (tmp_path / f"{name}.txt").write_text(f"{name} {TEXT} " * 30)
    files, out = sorted(tmp_path.glob("*.txt")), tmp_path / "data"
    tokenizer = data.train_tokenizer(WORDS, 257)
    data.prepare(files, out, tokenizer=tokenizer, validation=1, separator="none")
    run = tiny_run(out, tmp_path / "run", eval_by="documents")
    with pytest.raises(UserError, match="separator: got 'none'; allowed: eos, which says where"):
        train(run, show=False)
    assert not run.out.exists()
