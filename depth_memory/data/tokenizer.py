"""Text to token ids and back, with one well-defined end-of-text token."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from tokenizers import decoders, models, pre_tokenizers, trainers

from depth_memory.errors import UserError, invalid
from depth_memory.files import reason, write_durably

TOKENIZER_FILE = "tokenizer.json"
END_OF_TEXT = "<|endoftext|>"
KNOWN_ENDS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "[EOS]")
"""Names under which published tokenizers carry their end-of-text token, in order of preference."""
SMALLEST_VOCABULARY = 257
"""Every byte, and the end of text."""
WITHOUT_EFFECT = ("version", "truncation", "padding", "post_processor")
"""Parts of the file that do not decide the ids of a text as encoded here; a library may add one."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Tokenizer:
    """A tokenizer that never adds a token of its own, wherever it comes from.

    Neither a begin-of-text token, nor padding or truncation that its file may ask for; and
    the name of a special token inside a text is ordinary text.
    """

    json: str
    end: str
    """The text of the end-of-text token, for example `<|endoftext|>`."""

    @functools.cached_property
    def backend(self) -> tokenizers.Tokenizer:
        """The object of the `tokenizers` library that does the work."""
        backend = tokenizers.Tokenizer.from_str(self.json)
        backend.no_truncation()
        backend.no_padding()
        backend.encode_special_tokens = True
        return backend

    @functools.cached_property
    def sha256(self) -> str:
        """Identity in hexadecimal, of what decides the ids; another layout of the file keeps it."""
        content = {k: v for k, v in json.loads(self.json).items() if k not in WITHOUT_EFFECT}
        canonical = json.dumps(content, sort_keys=True, separators=(",", ":"))
        return hashlib.sha256(canonical.encode()).hexdigest()

    @functools.cached_property
    def vocab_size(self) -> int:
        """One more than the largest id, which exceeds the number of entries if ids have gaps."""
        return max(self.backend.get_vocab(with_added_tokens=True).values()) + 1

    @functools.cached_property
    def end_id(self) -> int:
        """The id of the end-of-text token."""
        return self.backend.get_vocab(with_added_tokens=True)[self.end]

    @functools.cached_property
    def byte_lengths(self) -> np.ndarray | None:
        """UTF-8 bytes of the text that each id stands for, int64 [vocab_size]; 0 for special ones.

        None if the tokenizer is not byte-level: which bytes an id stands for is then not certain.
        """
        if not _is_byte_level(json.loads(self.json).get("decoder")):
            return None
        alphabet = set(pre_tokenizers.ByteLevel.alphabet())  # one character for each byte
        lengths = np.zeros(self.vocab_size, dtype=np.int64)
        for token, i in self.backend.get_vocab(with_added_tokens=False).items():
            lengths[i] = len(token) if alphabet.issuperset(token) else len(token.encode())
        for i, added in self.backend.get_added_tokens_decoder().items():
            lengths[i] = 0 if added.special else len(added.content.encode())
        lengths[self.end_id] = 0
        return lengths

    def encode(self, text: str) -> np.ndarray:
        """The ids of `text` and nothing else, int64 [tokens]."""
        # a batch of one: the batch form lets other threads run, the single form does not
        (encoding,) = self.backend.encode_batch_fast([text], add_special_tokens=False)
        return np.array(encoding.ids, dtype=np.int64)

    def decode(self, ids: Sequence[int] | np.ndarray) -> str:
        """The text of `ids`, special tokens by their names."""
        return self.backend.decode([int(i) for i in ids], skip_special_tokens=False)

    def save(self, path: Path) -> None:
        """Write the file `path`, from which `load_tokenizer` gets an equal tokenizer."""
        write_durably(path, [self.json.encode()])


def load_tokenizer(path: str | Path, *, end: str | None = None) -> Tokenizer:
    """Read a `tokenizer.json` of the `tokenizers` library.

    Args:
        path: The file, or a folder that holds one: a prepared corpus or a saved model.
        end: The end-of-text token; by default the first of `<|endoftext|>`, `<|end_of_text|>`,
            `</s>`, `<eos>`, `[EOS]` in the vocabulary.

    Raises:
        UserError: No such file, not a tokenizer, or no end-of-text token in it.
    """
    file = Path(path) / TOKENIZER_FILE if Path(path).is_dir() else Path(path)
    try:
        text = file.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"tokenizer: cannot read {file}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise UserError(f"tokenizer: {file} is not UTF-8") from error
    return tokenizer_from_json(text, end=end, name=str(file))


def tokenizer_from_json(text: str, *, end: str | None = None, name: str) -> Tokenizer:
    """The tokenizer that a JSON text describes; `name` says in errors where it came from.

    Raises:
        UserError: `text` is not a tokenizer, or has no end-of-text token.
    """
    try:
        # the library raises bare Exception for whatever it cannot parse
        vocabulary = tokenizers.Tokenizer.from_str(text).get_vocab(with_added_tokens=True)
    except Exception as error:
        raise UserError(f"tokenizer: {name} is not a tokenizer.json: {reason(error)}") from error
    wanted = KNOWN_ENDS if end is None else (end,)
    found = next((token for token in wanted if token in vocabulary), None)
    if found is None:
        looked = ", ".join(wanted)
        raise UserError(f"tokenizer: {name} has no end-of-text token; looked for {looked}")
    return Tokenizer(json=text, end=found)


def train_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """A byte-level BPE tokenizer learned from `texts`; the same texts give the same tokenizer.

    Id 0 is `<|endoftext|>`, the next 256 are the bytes, so that any text round-trips exactly.

    Args:
        texts: Documents, read once.
        vocab_size: Number of entries; fewer come out if the texts have too few frequent pairs.

    Raises:
        UserError: `vocab_size` below 257, or no text.
    """
    if vocab_size < SMALLEST_VOCABULARY:
        raise invalid("vocab_size", vocab_size, f"at least {SMALLEST_VOCABULARY}")
    backend = tokenizers.Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        min_frequency=2,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_not_none(texts), trainer=trainer)
    return tokenizer_from_json(backend.to_str(), end=END_OF_TEXT, name="trained tokenizer")


def _is_byte_level(decoder: dict[str, Any] | None) -> bool:
    if decoder is None:
        return False
    parts = decoder.get("decoders", [decoder])
    return any(part["type"] == "ByteLevel" for part in parts)


def _not_none(texts: Iterable[str]) -> Iterable[str]:
    empty = True
    for text in texts:
        empty = empty and not text.strip()
        yield text
    if empty:
        raise UserError("texts: got no text to learn a tokenizer from; allowed: some")
