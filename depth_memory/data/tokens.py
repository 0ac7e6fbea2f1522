"""A split of a prepared corpus, ready to train on and to evaluate on."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from depth_memory.data.manifest import Manifest, Split, read_manifest
from depth_memory.data.order import batch_windows, consecutive_spans, rank_rows, window_count
from depth_memory.data.shards import open_shard
from depth_memory.data.tokenizer import Tokenizer, load_tokenizer
from depth_memory.errors import UserError, choose, invalid
from depth_memory.files import sha256_of

COUNTED_AT_ONCE = 2**20
"""Tokens, so that counting bytes needs little memory."""


def bits_per_byte(nats_per_token: float, *, tokens: int, text_bytes: float) -> float:
    """The loss per byte of text, which tokenizers of any vocabulary share.

    All `tokens` are charged, separators included, though a separator has no bytes: predicting
    where a document ends is part of the task.

    Args:
        nats_per_token: Mean negative log-likelihood of a token.
        tokens: Number of tokens that encode the text, separators included.
        text_bytes: UTF-8 bytes of the text, separators excluded.
    """
    return nats_per_token * tokens / text_bytes / math.log(2)


@dataclass(frozen=True, kw_only=True, eq=False)
class TokenData:
    """The tokens of one split, mapped from disk; `open_split` makes one."""

    directory: Path
    split: str
    manifest: Manifest
    shards: tuple[np.ndarray, ...]

    @property
    def info(self) -> Split:
        """Counts and shards of this split."""
        return self.manifest.splits[self.split]

    @property
    def tokens(self) -> int:
        """Number of tokens, separators included."""
        return self.info.tokens

    @property
    def bytes(self) -> int:
        """UTF-8 bytes of the text, separators excluded."""
        return self.info.bytes

    @property
    def documents(self) -> int:
        """Number of documents."""
        return self.info.documents

    @property
    def vocab_size(self) -> int:
        """One more than the largest id that the tokenizer may give."""
        return self.manifest.vocab_size

    @property
    def tokenizer_sha256(self) -> str:
        """Identity of the tokenizer, equal to `Tokenizer.sha256`."""
        return self.manifest.recipe.tokenizer_sha256

    @property
    def separator(self) -> str:
        """The separator policy: `eos` or `none`."""
        return self.manifest.recipe.separator

    @functools.cached_property
    def tokenizer(self) -> Tokenizer:
        """The tokenizer that the corpus was prepared with, from the file beside the shards.

        Raises:
            UserError: That file was altered.
        """
        tokenizer = load_tokenizer(self.directory, end=self.manifest.recipe.end)
        self.check_tokenizer(tokenizer)
        return tokenizer

    def read(self, start: int, stop: int) -> np.ndarray:
        """Tokens `start` to `stop`, exclusive, int64 [stop - start]; `0 <= start < stop <= tokens`.

        Raises:
            UserError: A token id is not below the vocabulary size.
        """
        size = self.manifest.recipe.shard_tokens
        first, last = start // size, -(-stop // size)
        parts = [
            shard[max(start - i * size, 0) : stop - i * size]
            for i, shard in enumerate(self.shards[first:last], start=first)
        ]
        ids = np.concatenate(parts).astype(np.int64)
        if ids.size and ids.max() >= self.vocab_size:
            name = f"{self.directory}: {self.split}: token id"
            raise invalid(name, int(ids.max()), f"below the vocabulary size {self.vocab_size}")
        return ids

    def batch(
        self, step: int, *, rows: int, length: int, seed: int, rank: int = 0, world: int = 1
    ) -> np.ndarray:
        """The batch of a step, a pure function of the arguments, int64 [rows / world, length + 1].

        Inputs are `[:, :-1]`, targets `[:, 1:]`. Every epoch visits each window of
        `order.window_count` once, in an order of its own. The ranks' batches, one below the
        other, are the batch of a single process.

        Args:
            step: From 0.
            rows: Rows of all processes together.
            length: Tokens that the model sees in a row.
            seed: Of the order.
            rank: This process.
            world: Number of processes.

        Raises:
            UserError: An argument out of range, or the split shorter than one window.
        """
        windows = self._windows(length)
        mine = rank_rows(rows, rank=rank, world=world)
        chosen = batch_windows(step, rows=rows, windows=windows, seed=seed)[mine]
        starts = [int(window) * length for window in chosen]
        return np.stack([self.read(start, start + length + 1) for start in starts])

    def windows(self, length: int) -> Iterator[np.ndarray]:
        """Consecutive windows, int64 [up to length + 1], in which each target stands once.

        Every token of the split but the first is a target of exactly one window. All windows have
        `length + 1` tokens but possibly the last.

        Raises:
            UserError: `length` below 1, or fewer than 2 tokens in the split.
        """
        if length < 1:
            raise invalid("length", length, "at least 1")
        if self.tokens < 2:
            raise invalid(f"{self.split}: tokens", self.tokens, "at least 2 to evaluate on")
        return (self.read(start, stop) for start, stop in consecutive_spans(self.tokens, length))

    def windows_of(self, length: int) -> int:
        """How many `windows` there are."""
        return -(-(self.tokens - 1) // length)

    def bits_per_byte(self, nats_per_token: float, *, targets: int | None = None) -> float:
        """`bits_per_byte` of the first targets that `windows` gives; of all if no number is given.

        Raises:
            UserError: They stand for no text, but only for separators.
        """
        targets = self.tokens - 1 if targets is None else targets
        text_bytes = self.target_bytes(targets)
        if not text_bytes:
            raise invalid("windows", f"{targets} tokens without text", "some that hold text")
        return bits_per_byte(nats_per_token, tokens=targets, text_bytes=text_bytes)

    def target_bytes(self, targets: int) -> float:
        """UTF-8 bytes of the text that the tokens 1 to `targets` stand for.

        Exact for a byte-level tokenizer. Another does not say which bytes a token stands for; there
        it is the split's bytes, shared out evenly among its tokens.
        """
        sizes = self.tokenizer.byte_lengths
        if sizes is None:
            return self.bytes * targets / self.tokens
        spans = consecutive_spans(targets + 1, COUNTED_AT_ONCE)
        return sum(int(sizes[self.read(start + 1, stop)].sum()) for start, stop in spans)

    def verify(self) -> None:
        """Read everything and compare it with the manifest.

        Raises:
            UserError: A shard or the tokenizer was altered.
        """
        _ = self.tokenizer
        for shard in self.info.shards:
            if sha256_of(self.directory / shard.file) != shard.sha256:
                raise UserError(f"{self.directory / shard.file}: altered (sha256 differs)")

    def check_tokenizer(self, tokenizer: Tokenizer | str) -> None:
        """Refuse a tokenizer, given as such or as its sha256, that did not make these tokens.

        Raises:
            UserError: It is another one.
        """
        got = tokenizer if isinstance(tokenizer, str) else tokenizer.sha256
        if got != self.tokenizer_sha256:
            raise invalid("tokenizer", got, f"the data's own, {self.tokenizer_sha256}")

    def check_vocabulary(self, vocab_size: int) -> None:
        """Refuse a model with fewer embeddings than there are token ids.

        Raises:
            UserError: `vocab_size` is less than the data's.
        """
        if vocab_size < self.vocab_size:
            raise invalid("vocab_size", vocab_size, f"at least the data's {self.vocab_size}")

    def check_matches(self, other: TokenData) -> None:
        """Refuse to mix with data of another tokenizer or another separator policy.

        Raises:
            UserError: They differ.
        """
        other.check_tokenizer(self.tokenizer_sha256)
        mine, others = self.manifest.recipe, other.manifest.recipe
        if (mine.separator, mine.end) != (others.separator, others.end):
            allowed = f"{mine.separator} ({mine.end}), as in {self.directory}"
            got = f"{others.separator} ({others.end})"
            raise invalid(f"{other.directory}: separator", got, allowed)

    def _windows(self, length: int) -> int:
        if length < 1:
            raise invalid("length", length, "at least 1")
        windows = window_count(self.tokens, length)
        if windows == 0:
            allowed = f"at most {self.tokens - 1} with the {self.tokens} tokens of {self.split}"
            raise invalid("length", length, allowed)
        return windows


def open_split(directory: str | Path, split: str) -> TokenData:
    """Open a split of a prepared corpus: manifest, sizes and headers are checked, no token read.

    Call `verify` on the result to check every byte.

    Args:
        directory: As written by `prepare`.
        split: `train` or `validation`.

    Raises:
        UserError: Not a prepared corpus, no such split, or a manifest or shard that was edited,
            cut or removed.
    """
    directory = Path(directory)
    manifest = read_manifest(directory)
    choose(f"{directory}: split", split, manifest.splits)
    dtype = np.dtype(manifest.dtype)
    shards = manifest.splits[split].shards
    return TokenData(
        directory=directory,
        split=split,
        manifest=manifest,
        shards=tuple(open_shard(directory, shard, dtype) for shard in shards),
    )
