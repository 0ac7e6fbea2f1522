"""The first tokens of every document: what DepthBench's validation loss is about.

Every document starts without context, and what lies beyond the first tokens is dropped: a loss on
these is another number than one on windows over documents one after the other.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import numpy as np

from depth_memory.data.tokens import COUNTED_AT_ONCE, TokenData
from depth_memory.errors import invalid


def beginnings(data: TokenData, length: int) -> Iterator[np.ndarray]:
    """The first tokens of each document, its separator included, int64 [2 to length].

    All but a document's first token are targets. A document of a single token has none, and is
    left out.

    Args:
        data: Of documents that end with a separator.
        length: The most tokens of a document.

    Raises:
        UserError: `length` below 2, or data without separators.
    """
    if length < 2:
        raise invalid("length", length, "at least 2 to predict a token of a document")
    if data.separator != "eos":
        allowed = "eos, which says where a document ends"
        raise invalid(f"{data.directory}: separator", data.separator, allowed)
    return _cut(data, length)


def beginning_bytes(data: TokenData, length: int, documents: int) -> float:
    """UTF-8 bytes of the text of all targets in the first `documents` of `beginnings`.

    Exact for a byte-level tokenizer; else the split's bytes, shared out evenly among its tokens.
    """
    sizes = data.tokenizer.byte_lengths
    chosen = itertools.islice(beginnings(data, length), documents)
    if sizes is None:
        return sum(len(ids) - 1 for ids in chosen) * data.bytes / data.tokens
    return float(sum(int(sizes[ids[1:]].sum()) for ids in chosen))


def _cut(data: TokenData, length: int) -> Iterator[np.ndarray]:
    start = 0
    for block in range(0, data.tokens, COUNTED_AT_ONCE):
        ids = data.read(block, min(block + COUNTED_AT_ONCE, data.tokens))
        for place in np.flatnonzero(ids == data.manifest.end_id):
            end = block + int(place) + 1
            stop = min(end, start + length)
            if stop - start >= 2:
                yield data.read(start, stop)
            start = end
