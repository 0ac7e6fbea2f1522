"""Documents to token ids: in threads, in order, a bounded number ahead of the writer."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np

from depth_memory.data.sources import START, Document, Position
from depth_memory.data.splits import split_of
from depth_memory.data.tokenizer import Tokenizer
from depth_memory.errors import UserError

GROUP_BYTES = 2**18
"""About how much text a worker gets at once."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Encoded:
    """A document as it goes into a shard; `ids` is None if it is empty and left out."""

    ids: np.ndarray | None
    text_bytes: int
    split: str
    end: Position = START
    share: float = 0.0
    """Both as in `Document`."""


def is_empty(document: Document) -> bool:
    """Whether a document is nothing but white space; such a one is left out, separator included."""
    return not document.text.strip()


def encode(document: Document, tokenizer: Tokenizer, separator: str, threshold: int) -> Encoded:
    """The ids of a document under a separator policy (`manifest.SEPARATORS`), and its split.

    Raises:
        UserError: The text itself encodes to the separator, which would then not be unique.
    """
    split = split_of(document.utf8, threshold)
    if is_empty(document):
        return Encoded(ids=None, text_bytes=0, split=split, end=document.end, share=document.share)
    ids = tokenizer.encode(document.text)
    if separator == "eos":
        if (ids == tokenizer.end_id).any():
            raise UserError(f"{document.where}: text encodes to the separator {tokenizer.end}")
        ids = np.append(ids, tokenizer.end_id)
    size = len(document.utf8)
    return Encoded(ids=ids, text_bytes=size, split=split, end=document.end, share=document.share)


def encoded_in_order(
    documents: Iterable[Document], encode: Callable[[Document], Encoded], workers: int
) -> Iterator[Encoded]:
    """`map(encode, documents)` by `workers` threads, a few groups of documents ahead."""
    pending: deque[Future[list[Encoded]]] = deque()
    # threads, because the tokenizer lets go of the interpreter while it works
    with ThreadPoolExecutor(workers) as pool:
        for group in _groups(documents):
            pending.append(pool.submit(lambda group: [encode(d) for d in group], group))
            if len(pending) > 2 * workers:
                yield from pending.popleft().result()
        while pending:
            yield from pending.popleft().result()


def _groups(documents: Iterable[Document]) -> Iterator[list[Document]]:
    group: list[Document] = []
    size = 0
    for document in documents:
        group.append(document)
        size += len(document.utf8)
        if size >= GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
