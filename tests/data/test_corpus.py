import hashlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from depth_memory.data import (
    default_tokenizer,
    embedded_corpus,
    ensure_default,
    filling,
    open_split,
    prepare,
    verify,
)
from depth_memory.data.corpus import CORPUS


@pytest.fixture(scope="module")
def default(tmp_path_factory):
    return ensure_default(tmp_path_factory.mktemp("corpus") / "default")


def test_the_text_is_two_megabytes_of_clean_prose():
    texts = list(embedded_corpus())
    assert len(texts) == len(set(texts)) == 176
    assert 1_900_000 < sum(len(text.encode()) for text in texts) < 2_100_000
    assert CORPUS.stat().st_size < 900_000
    assert max(len(text.encode()) for text in texts) < 20_000
    for mark in ("checkUp", "ELTeC", "<|endoftext|>", "Gutenberg", "\t", "  ", "\xad"):
        assert not any(mark in text for text in texts), mark
    assert texts[1].startswith("CHAPTER I. Down the Rabbit-Hole")


def test_provenance_names_this_file():
    provenance = (CORPUS.parent / "PROVENANCE.md").read_text()
    assert hashlib.sha256(CORPUS.read_bytes()).hexdigest() in provenance
    for author in ("Carroll", "Brontë", "Eliot", "Grossmith", "Conrad", "Lincoln"):
        assert author in provenance


def test_the_splits(default):
    train, validation = open_split(default, "train"), open_split(default, "validation")
    assert (train.documents, validation.documents) == (164, 12)
    assert 0.05 < validation.bytes / train.bytes < 0.12
    assert train.vocab_size == default_tokenizer().vocab_size == 4096
    train.check_tokenizer(default_tokenizer())
    train.check_matches(validation)
    assert train.bytes / train.tokens > 3.5


def test_tokens_are_the_text(default):
    separator = default_tokenizer().end
    decoded = []
    for split in ("train", "validation"):
        data = open_split(default, split)
        decoded += data.tokenizer.decode(data.read(0, data.tokens)).split(separator)[:-1]
    assert sorted(decoded) == sorted(embedded_corpus())


def test_a_second_call_reuses_what_it_verifies(default, monkeypatch, tmp_path, refused, words):
    monkeypatch.setattr("depth_memory.data.corpus.prepare", None)
    stamps = {path: path.stat().st_mtime_ns for path in Path(default).rglob("*")}
    assert ensure_default(default) == default
    assert {path: path.stat().st_mtime_ns for path in Path(default).rglob("*")} == stamps


def test_altered_or_foreign_data_is_refused(tmp_path, default, jsonl, words, refused):
    prepare([jsonl("w1 w2")], tmp_path / "other", tokenizer=words(5), validation=0)
    with refused("directory", tmp_path / "other", "another corpus"):
        ensure_default(tmp_path / "other")
    ensure_default(tmp_path / "mine")
    assert verify(tmp_path / "mine") == verify(default)
    shard = tmp_path / "mine/validation/00000.npy"
    content = bytearray(shard.read_bytes())
    content[1000] ^= 1
    shard.write_bytes(content)
    with refused(shard, "altered"):
        ensure_default(tmp_path / "mine")


def test_two_first_calls_at_once_make_it_once(tmp_path, default, monkeypatch):
    real, others = filling.fill, []

    def fill(*args):
        monkeypatch.setattr(filling, "fill", None)  # the other one has nothing to fill
        others.append(pool.submit(ensure_default, tmp_path / "mine"))
        return real(*args)

    monkeypatch.setattr(filling, "fill", fill)
    with ThreadPoolExecutor(1) as pool:
        assert ensure_default(tmp_path / "mine") == tmp_path / "mine"
        assert others[0].result() == tmp_path / "mine"
    assert verify(tmp_path / "mine") == verify(default)
    assert [path.name for path in tmp_path.iterdir()] == ["mine"]


def test_a_place_that_is_taken_or_refused_is_named(tmp_path, refused):
    (tmp_path / "file").write_text("")
    with refused(f"embedded corpus: cannot write {tmp_path / 'file/mine'}: "):
        ensure_default(tmp_path / "file" / "mine")
    with refused(f"embedded corpus: {tmp_path / 'file'} exists and is left as it is: "):
        ensure_default(tmp_path / "file")
