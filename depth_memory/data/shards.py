"""Token ids on disk: numpy files of a fixed number of tokens, written once and mapped to read."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np

from depth_memory.data.manifest import Shard, Split
from depth_memory.errors import UserError, invalid
from depth_memory.files import reason, write_durably


class SplitWriter:
    """Cuts a stream of documents into shards of exactly `shard_tokens` tokens, the last shorter.

    Holds no more than two shards in memory. A document may cross from one shard into the next.
    """

    def __init__(self, directory: Path, split: str, dtype: np.dtype, shard_tokens: int) -> None:
        self._directory = directory
        self._split = split
        self._dtype = dtype
        self._shard_tokens = shard_tokens
        self._pending: list[np.ndarray] = []
        self._filled = 0
        self._documents = 0
        self._bytes = 0
        self._shards: list[Shard] = []

    def add(self, ids: np.ndarray, *, text_bytes: int) -> None:
        """Append one document.

        Args:
            ids: Token ids, separator included; integer [tokens].
            text_bytes: Size of its text in UTF-8.

        Raises:
            UserError: An id does not fit the shards' dtype.
        """
        largest = np.iinfo(self._dtype).max
        if ids.size and not (ids.min() >= 0 and ids.max() <= largest):
            bad = int(ids.min() if ids.min() < 0 else ids.max())
            raise invalid("token id", bad, f"0 to {largest} ({self._dtype.name})")
        self._documents += 1
        self._bytes += text_bytes
        ids = ids.astype(self._dtype)
        while ids.size:
            room = min(self._shard_tokens - self._filled, ids.size)
            self._pending.append(ids[:room])
            self._filled += room
            ids = ids[room:]
            if self._filled == self._shard_tokens:
                self._flush()

    def close(self) -> Split:
        """Write what is left and return the counts and checksums of the split."""
        if self._filled:
            self._flush()
        return Split(
            documents=self._documents,
            tokens=sum(shard.tokens for shard in self._shards),
            bytes=self._bytes,
            shards=tuple(self._shards),
        )

    def _flush(self) -> None:
        file = f"{self._split}/{len(self._shards):05d}.npy"
        tokens = np.concatenate(self._pending)
        (self._directory / self._split).mkdir(exist_ok=True)
        sha256 = write_durably(self._directory / file, [_header(tokens), tokens.data])
        self._shards.append(Shard(file=file, tokens=len(tokens), sha256=sha256))
        self._pending, self._filled = [], 0


def open_shard(directory: Path, shard: Shard, dtype: np.dtype) -> np.ndarray:
    """Map a shard into memory, read-only, [tokens]; its size and header are checked, not its data.

    Raises:
        UserError: The file is missing, cut, extended, or its header disagrees with the manifest.
    """
    path = directory / shard.file
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise UserError(f"{path}: missing shard; prepare the data again") from error
    except (OSError, ValueError, EOFError, SyntaxError) as error:
        raise UserError(f"{path}: truncated or damaged shard: {reason(error)}") from error
    if tokens.dtype != dtype or tokens.shape != (shard.tokens,):
        raise invalid(
            f"{path}: header", f"{tokens.dtype} {tokens.shape}", f"{dtype} ({shard.tokens},)"
        )
    size = len(_header(tokens)) + tokens.nbytes
    if path.stat().st_size != size:
        raise invalid(f"{path}: size", path.stat().st_size, f"{size} bytes")
    return tokens


def _header(tokens: np.ndarray) -> bytes:
    header = io.BytesIO()
    np.lib.format.write_array_header_1_0(header, np.lib.format.header_data_from_array_1_0(tokens))
    return header.getvalue()
