import json
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import tokenizers
from tokenizers import models, pre_tokenizers

from depth_memory.data.tokenizer import Tokenizer, tokenizer_from_json, train_tokenizer
from depth_memory.errors import UserError

LETTERS = "the quick brown fox jumps over the lazy dog, and £3 are naïve — “yes”\n" * 3


@pytest.fixture(scope="session")
def tokenizer() -> Tokenizer:
    """Byte-level BPE, 300 entries, id 0 the end of text."""
    return train_tokenizer([LETTERS], 300)


@pytest.fixture(scope="session")
def words() -> Callable[..., Tokenizer]:
    """A factory of vocabularies of any size: id 0 the end of text, id i the word `wi`."""

    def make(size: int) -> Tokenizer:
        vocabulary = {"<|endoftext|>": 0, **{f"w{i}": i for i in range(1, size)}}
        backend = tokenizers.Tokenizer(models.WordLevel(vocabulary, unk_token="w1"))
        backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
        return tokenizer_from_json(backend.to_str(), name="words")

    return make


@pytest.fixture
def jsonl(tmp_path: Path) -> Callable[..., Path]:
    """Writes texts as JSON lines, field `text`."""

    def write(*texts: str, name: str = "texts.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(json.dumps({"text": text}) + "\n" for text in texts))
        return path

    return write


@pytest.fixture
def refused() -> Callable[..., object]:
    """A context that wants a UserError of one line that contains all the given words."""

    @contextmanager
    def expect(*expected: object) -> Iterator[None]:
        with pytest.raises(UserError) as caught:
            yield
        message = str(caught.value)
        assert "\n" not in message
        for part in expected:
            assert re.search(re.escape(str(part)), message), f"{part!r} not in {message!r}"

    return expect
