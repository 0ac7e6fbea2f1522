"""Text comes in pieces that are never taken back, and ends where it should."""

from __future__ import annotations

import pytest
from tokenizers import Tokenizer as Backend
from tokenizers import decoders, models, pre_tokenizers

from depth_memory.data.tokenizer import tokenizer_from_json
from depth_memory.errors import UserError
from depth_memory.generate import generate, stream
from depth_memory.generate.texts import Text

ENDS = frozenset([0])


def fed(text: Text, ids) -> list[str]:
    return [text.add(int(i), last=k == len(ids) - 1) for k, i in enumerate(ids)]


def test_a_character_waits_for_its_last_byte(tokenizer):
    alphabet = {v: k for k, v in byte_characters().items()}
    ids = [tokenizer.backend.token_to_id(alphabet[b]) for b in "aß€b".encode()]
    assert len(ids) == 7
    text = Text(tokenizer, [5], ENDS, ())
    assert fed(text, ids) == ["a", "", "ß", "", "", "€", "b"]
    assert (text.text, text.count, text.end) == ("aß€b", 7, "length")


def byte_characters() -> dict[str, int]:
    """The character that stands for each byte in a byte-level tokenizer."""
    from transformers.convert_slow_tokenizer import bytes_to_unicode

    return {character: byte for byte, character in bytes_to_unicode().items()}


def test_half_a_character_is_shown_at_the_end(tokenizer):
    alphabet = {v: k for k, v in byte_characters().items()}
    half = tokenizer.backend.token_to_id(alphabet["€".encode()[0]])
    text = Text(tokenizer, [5], ENDS, ())
    assert fed(text, [tokenizer.encode("a")[0], half, 0]) == ["a", "", "\N{REPLACEMENT CHARACTER}"]
    assert (text.text, text.end, text.count) == ("a\N{REPLACEMENT CHARACTER}", "end", 3)
    assert text.ids == [tokenizer.encode("a")[0], half]


STOPS = {
    "in a token": (("old",), "the old house", "the ", "stop"),
    "over tokens": (("d house on",), "the old house on", "the ol", "stop"),
    "the first": (("house", "old"), "the old house", "the ", "stop"),
    "not there": (("fly", "housed"), "the old house", "the old house", "length"),
    "begun": (("old hill",), "the old house", "the old house", "length"),
    "at once": (("t",), "the", "", "stop"),
    "a beginning in a beginning": (("aab",), "aaab", "a", "stop"),
}


@pytest.mark.parametrize("case", STOPS)
def test_a_stop_text(tokenizer, case):
    stop, given, expected, end = STOPS[case]
    ids, pieces = tokenizer.encode(given), []
    text = Text(tokenizer, [5], ENDS, stop)
    for k, i in enumerate(ids):
        pieces.append(text.add(int(i), last=k == len(ids) - 1))
        if text.end is not None:
            break
    assert (text.text, text.end) == (expected, end)
    assert "".join(pieces) == expected


def test_the_first_word_keeps_its_space():
    """Such tokenizers drop the space before a text, which is none before its continuation."""
    words = {"</s>": 0, "▁the": 1, "▁old": 2, "▁house": 3}
    backend = Backend(models.WordLevel(words, unk_token="</s>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Metaspace()
    tokenizer = tokenizer_from_json(backend.to_str(), name="words")
    assert tokenizer.decode([2, 3]) == "old house"
    assert fed(Text(tokenizer, [1], ENDS, ()), [2, 3]) == [" old", " house"]


def test_pieces_of_a_stream_are_the_text(make):
    loaded = make()
    options = {"tokens": 12, "seed": 2}
    (one,) = generate(loaded, "the old", **options).continuations
    pieces = list(stream(loaded, "the old", **options))
    assert len(pieces) > 3
    assert "".join(pieces) == one.text
    ids = loaded.encode("the old")[0].tolist()
    assert "".join(stream(loaded, ids, **options)) == one.text
    with pytest.raises(UserError, match=r"^samples: got 2; allowed: 1 where a text is streamed"):
        stream(loaded, "the old", samples=2)


def test_a_stop_text_ends_generation(make):
    loaded = make()
    (whole,) = generate(loaded, "the old", tokens=12, temperature=0).continuations
    place = len(whole.text) // 2
    stop = whole.text[place : place + 2]
    (one,) = generate(loaded, "the old", tokens=12, temperature=0, stop=(stop,)).continuations
    assert one.text == whole.text[: whole.text.find(stop)]
    assert one.end == "stop"
    assert one.tokens < whole.tokens
