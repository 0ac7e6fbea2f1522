"""Which documents are held out: decided by a document's content alone."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable

import numpy as np

from depth_memory.errors import invalid

TRAIN = "train"
VALIDATION = "validation"
SPLITS = (TRAIN, VALIDATION)


def content_rank(utf8: bytes) -> int:
    """A number in [0, 2^64) that depends on the document's bytes only, uniform over documents."""
    return int.from_bytes(hashlib.sha256(utf8).digest()[:8], "big")


def split_of(utf8: bytes, threshold: int) -> str:
    """The split of a document: validation if its rank is below `threshold`.

    Equal documents share a split, whatever their order, their file or the rest of the corpus.
    """
    return VALIDATION if content_rank(utf8) < threshold else TRAIN


def check_validation(validation: float | int) -> None:
    """Refuse what is neither a share of the documents nor a number of them.

    Raises:
        UserError: Not a float in [0, 1) nor an int >= 0.
    """
    is_count = isinstance(validation, int) and not isinstance(validation, bool) and validation >= 0
    is_share = isinstance(validation, float) and 0 <= validation < 1
    if not (is_count or is_share):
        raise invalid("validation", validation, "a share in [0, 1) or a number of documents")


def threshold_of(validation: float | int, documents: Iterable[bytes]) -> int:
    """The rank below which a document is held out.

    Args:
        validation: The share of documents to expect, or how many distinct ones to take.
        documents: Their bytes; read only for a number of documents, 8 bytes of memory each.

    Raises:
        UserError: As many documents asked for as there are, or more.
    """
    if isinstance(validation, float):
        return int(validation * 2**64)
    if validation == 0:
        return 0
    ranks = np.unique(np.fromiter(map(content_rank, documents), dtype=np.uint64))
    if validation >= len(ranks):
        raise invalid("validation", validation, f"less than the {len(ranks)} distinct documents")
    return int(ranks[validation])
