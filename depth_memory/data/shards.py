"""Token ids on disk: numpy files of a fixed number of tokens, written once and mapped to read."""

from __future__ import annotations

import hashlib
import io
import os
from pathlib import Path

import numpy as np

from depth_memory.data.manifest import Shard, Split
from depth_memory.errors import UserError, invalid
from depth_memory.files import naming, reason, sync, write_durably

NOTHING = Split(documents=0, tokens=0, bytes=0, shards=())


class SplitWriter:
    """Cuts a stream of documents into shards of exactly `shard_tokens` tokens, the last shorter.

    Holds no more than two shards in memory. A document may cross from one shard into the next.
    What does not fill a shard yet can be kept in a file, from which another writer goes on.

    Args:
        directory: Where the shards go.
        split: Name of the split, a folder there.
        dtype: Of the tokens.
        shard_tokens: Tokens per shard.
        done: What was written before.
        tail: The tokens of the shard that was not full then.
    """

    def __init__(
        self,
        directory: Path,
        split: str,
        dtype: np.dtype,
        shard_tokens: int,
        *,
        done: Split = NOTHING,
        tail: bytes = b"",
    ) -> None:
        self._directory = directory
        self._split = split
        self._dtype = dtype
        self._shard_tokens = shard_tokens
        self._pending = [np.frombuffer(tail, dtype)]
        self._filled = self._kept = len(self._pending[0])
        self._digest = hashlib.sha256(tail)
        self._documents = done.documents
        self._bytes = done.bytes
        self._shards: list[Shard] = list(done.shards)

    @property
    def shards(self) -> int:
        """Number of shards that are full and on the disk."""
        return len(self._shards)

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

    def keep(self, path: Path) -> str:
        """Append to a file what it lacks of the shard that is not full; the sha256 of all of it.

        Only the first call for a shard may find a file, from before a kill.
        """
        new = np.concatenate(self._pending)[self._kept :]
        if not new.size:
            return self._digest.hexdigest()
        self._digest.update(new.data)
        with naming(path), path.open("r+b" if path.exists() else "wb") as file:
            file.truncate(self._kept * self._dtype.itemsize)
            file.seek(0, os.SEEK_END)
            file.write(new.data)
            file.flush()
            os.fsync(file.fileno())
        sync(path.parent)
        self._kept = self._filled
        return self._digest.hexdigest()

    def so_far(self) -> Split:
        """The counts, of the shard that is not full too, and the checksums of the full ones."""
        return Split(
            documents=self._documents,
            tokens=sum(shard.tokens for shard in self._shards) + self._filled,
            bytes=self._bytes,
            shards=tuple(self._shards),
        )

    def close(self) -> Split:
        """Write what is left and return the counts and checksums of the split."""
        if self._filled:
            self._flush()
        return self.so_far()

    def _flush(self) -> None:
        file = f"{self._split}/{len(self._shards):05d}.npy"
        tokens = np.concatenate(self._pending)
        (self._directory / self._split).mkdir(exist_ok=True)
        path = self._directory / file
        sha256 = write_durably(path, [_header(tokens), tokens.data])
        sync(path.parent)  # what is noted next speaks of it
        self._shards.append(Shard(file=file, tokens=len(tokens), sha256=sha256))
        self._pending, self._filled = [np.empty(0, self._dtype)], 0
        self._kept, self._digest = 0, hashlib.sha256()


def open_shard(directory: Path, shard: Shard, dtype: np.dtype) -> np.ndarray:
    """Map a shard into memory, read-only, [tokens]; its size and header are checked, not its data.

    Raises:
        UserError: The file is missing, cut, extended, or its header disagrees with the manifest.
    """
    path = directory / shard.file
    try:
        tokens = np.load(path, mmap_mode="r", allow_pickle=False)
    except FileNotFoundError as error:
        raise UserError(f"{path}: missing shard") from error
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
