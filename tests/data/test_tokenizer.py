import json

import numpy as np
import pytest
import tokenizers
from tokenizers import models
from tokenizers.processors import TemplateProcessing

from depth_memory.data.tokenizer import (
    load_tokenizer,
    tokenizer_from_json,
    train_tokenizer,
)

TEXTS = ["the cat sat on the mat", "the dog — naïve — ran", "the end, the end"] * 5


@pytest.mark.parametrize(
    "text", ["", "a", "the mat\n\n", " \t x", "naïve £ 漢字 🙂", "\x01\x7f", "<|endoftext|>"]
)
def test_any_text_round_trips(tokenizer, text):
    ids = tokenizer.encode(text)
    assert ids.dtype == np.int64
    assert tokenizer.decode(ids) == text
    assert tokenizer.end_id not in ids


def test_training_is_deterministic():
    first, second = train_tokenizer(TEXTS, 280), train_tokenizer(iter(TEXTS), 280)
    assert first.json == second.json
    assert first.sha256 == second.sha256 != train_tokenizer(TEXTS, 270).sha256


def test_trained_vocabulary_is_end_bytes_and_merges():
    tokenizer = train_tokenizer(TEXTS, 270)
    assert (tokenizer.vocab_size, tokenizer.end_id, tokenizer.end) == (270, 0, "<|endoftext|>")
    assert len(tokenizer.encode("the the")) < len("the the")
    assert train_tokenizer(["ab"], 4096).vocab_size == 257


def test_saved_tokenizer_loads_equal(tokenizer, tmp_path):
    tokenizer.save(tmp_path / "tokenizer.json")
    for path in (tmp_path, tmp_path / "tokenizer.json", str(tmp_path)):
        assert load_tokenizer(path).sha256 == tokenizer.sha256


def test_identity_ignores_layout_padding_and_truncation(tokenizer):
    content = json.loads(tokenizer.json)
    content["truncation"] = {
        "direction": "Right",
        "max_length": 2,
        "strategy": "LongestFirst",
        "stride": 0,
    }
    other = tokenizer_from_json(json.dumps(content, indent=3), name="other")
    assert other.sha256 == tokenizer.sha256
    # and truncation is not done
    assert np.array_equal(other.encode("quick brown"), tokenizer.encode("quick brown"))


def test_identity_ignores_a_post_processor(tokenizer):
    # transformers adds this one to the file that it saves
    backend = tokenizers.Tokenizer.from_str(tokenizer.json)
    backend.post_processor = TemplateProcessing(single="$A", pair="$A $B:1", special_tokens=[])
    other = tokenizer_from_json(backend.to_str(), name="other")
    assert other.json != tokenizer.json
    assert other.sha256 == tokenizer.sha256


def test_vocabulary_with_gaps_counts_to_the_largest_id():
    backend = tokenizers.Tokenizer(models.WordLevel({"</s>": 2, "a": 70_000}, unk_token="a"))
    tokenizer = tokenizer_from_json(backend.to_str(), name="gaps")
    assert (tokenizer.vocab_size, tokenizer.end_id) == (70_001, 2)


def test_end_may_be_named(words):
    tokenizer = tokenizer_from_json(words(5).json, end="w3", name="words")
    assert tokenizer.end_id == 3


def test_a_tokenizer_without_an_end_is_refused(refused, tmp_path):
    backend = tokenizers.Tokenizer(models.WordLevel({"a": 0, "b": 1}, unk_token="a"))
    path = tmp_path / "tokenizer.json"
    backend.save(str(path))
    with refused("tokenizer", path, "no end-of-text token", "<|endoftext|>"):
        load_tokenizer(path)
    with refused("no end-of-text token", "c"):
        load_tokenizer(path, end="c")


def test_unusable_files_are_refused(refused, tmp_path):
    with refused("tokenizer", "cannot read", tmp_path / "tokenizer.json"):
        load_tokenizer(tmp_path)
    path = tmp_path / "tokenizer.json"
    for content in (b"{}", b"not json", b'{"model":\n null}'):
        path.write_bytes(content)
        with refused(path, "is not a tokenizer.json"):
            load_tokenizer(path)
    path.write_bytes(b"\xff")
    with refused(path, "not UTF-8"):
        load_tokenizer(path)


def test_training_refuses_what_it_cannot_use(refused):
    with refused("vocab_size", 256, "at least 257"):
        train_tokenizer(TEXTS, 256)
    with refused("texts"):
        train_tokenizer(["", " "], 300)


AWKWARD = "naïve — £3, 漢字 🙂\t\x01\n\nthe end <|endoftext|>"


def test_every_id_of_a_byte_level_tokenizer_has_its_bytes(tokenizer):
    sizes = tokenizer.byte_lengths
    assert (sizes.shape, sizes.dtype) == ((tokenizer.vocab_size,), np.int64)
    ids = tokenizer.encode(AWKWARD)
    assert sizes[ids].sum() == len(AWKWARD.encode())
    assert sizes[tokenizer.end_id] == 0
    for i in range(tokenizer.vocab_size):
        text = tokenizer.decode([i])
        if "\ufffd" not in text and i != tokenizer.end_id:
            assert sizes[i] == len(text.encode()), text


def test_added_tokens_count_where_they_stand_for_text(tokenizer):
    content = json.loads(tokenizer.json)
    common = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    first = tokenizer.vocab_size
    content["added_tokens"] += [
        {"id": first, "content": "<tool>é", "special": False, **common},
        {"id": first + 1, "content": "<|pad|>", "special": True, **common},
    ]
    content["decoder"] = {"type": "Sequence", "decoders": [content["decoder"]]}
    sizes = tokenizer_from_json(json.dumps(content), name="added").byte_lengths
    assert sizes[first:].tolist() == [8, 0]
    assert sizes[:first].tolist() == tokenizer.byte_lengths.tolist()


def test_which_bytes_an_id_stands_for_is_not_guessed(words):
    assert words(5).byte_lengths is None
