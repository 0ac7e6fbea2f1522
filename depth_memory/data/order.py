"""Which tokens come at which step: pure functions, so that a resumed run has nothing to restore."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import numpy as np

from depth_memory.errors import invalid


def window_count(tokens: int, length: int) -> int:
    """How many non-overlapping windows of `length` inputs, each with its target, fit.

    Window `i` is the `length + 1` tokens from `i * length` on: it shares its last token, a target
    only, with the next window's first. What does not fill a window is dropped.
    """
    return max(tokens - 1, 0) // length


@functools.lru_cache(maxsize=4)
def window_order(windows: int, *, seed: int, epoch: int) -> np.ndarray:
    """A permutation of `range(windows)`, int64, that depends on the arguments only.

    It sorts the raw output of a Philox generator, which numpy keeps the same across versions, as
    it does not keep `Generator.permutation`.
    """
    raw = np.random.Philox(np.random.SeedSequence((seed, epoch))).random_raw(windows)
    order = np.argsort(raw, kind="stable")
    order.flags.writeable = False
    return order


def batch_windows(step: int, *, rows: int, windows: int, seed: int) -> np.ndarray:
    """The windows of a step, int64 [rows].

    Epochs follow one another without a gap, each a permutation of its own, so a batch may span
    several, and the sequence of windows over a run is the same for any number of rows.

    Raises:
        UserError: `step` or `seed` below 0, or `rows` below 1.
    """
    for field, value, least in (("step", step, 0), ("rows", rows, 1), ("seed", seed, 0)):
        if value < least:
            raise invalid(field, value, f"at least {least}")
    epochs, places = np.divmod(np.arange(step * rows, (step + 1) * rows), windows)
    parts = [
        window_order(windows, seed=seed, epoch=int(epoch))[places[epochs == epoch]]
        for epoch in np.unique(epochs)
    ]
    return np.concatenate(parts)


def rank_rows(rows: int, *, rank: int, world: int) -> slice:
    """The rows of a batch that belong to `rank`: consecutive, the same number for every rank.

    Raises:
        UserError: `world` does not divide `rows`, or `rank` is not below `world`.
    """
    if not 0 <= rank < world:
        raise invalid("rank", rank, f"0 to world - 1 = {world - 1}")
    if rows % world:
        raise invalid("rows", rows, f"a multiple of the {world} processes")
    return slice(rank * rows // world, (rank + 1) * rows // world)


def consecutive_spans(tokens: int, length: int) -> Iterator[tuple[int, int]]:
    """Spans `[start, stop)` whose targets, all tokens but a span's first, cover 1..tokens - 1 once.

    Each has `length + 1` tokens, the last possibly fewer, but at least 2.
    """
    for start in range(0, tokens - 1, length):
        yield start, min(start + length + 1, tokens)
