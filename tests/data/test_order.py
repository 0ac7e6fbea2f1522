import numpy as np
import pytest

from depth_memory.data.order import (
    batch_windows,
    consecutive_spans,
    rank_rows,
    window_count,
    window_order,
)


@pytest.mark.parametrize(
    ("tokens", "length", "windows"),
    [(0, 4, 0), (1, 4, 0), (4, 4, 0), (5, 4, 1), (8, 4, 1), (9, 4, 2), (10, 1, 9)],
)
def test_a_window_needs_a_target_for_each_input(tokens, length, windows):
    assert window_count(tokens, length) == windows


def test_each_epoch_is_a_permutation_of_its_own():
    orders = [window_order(50, seed=3, epoch=epoch) for epoch in range(3)]
    for order in orders:
        assert sorted(order.tolist()) == list(range(50))
    assert not np.array_equal(orders[0], orders[1])
    assert not np.array_equal(orders[0], window_order(50, seed=4, epoch=0))


def test_the_order_never_changes():
    assert window_order(8, seed=0, epoch=0).tolist() == [0, 3, 7, 5, 1, 2, 6, 4]
    assert window_order(8, seed=0, epoch=0).dtype == np.int64


@pytest.mark.parametrize("rows", [1, 3, 5, 8, 20])
def test_steps_walk_through_the_epochs(rows):
    windows = 7
    steps = 3 * windows
    drawn = np.concatenate(
        [batch_windows(step, rows=rows, windows=windows, seed=1) for step in range(steps)]
    )
    epochs = [window_order(windows, seed=1, epoch=epoch) for epoch in range(3 * rows)]
    assert np.array_equal(drawn, np.concatenate(epochs))


def test_a_step_needs_no_step_before_it():
    alone = batch_windows(1_000_003, rows=4, windows=10, seed=2)
    window_order.cache_clear()
    assert np.array_equal(batch_windows(1_000_003, rows=4, windows=10, seed=2), alone)


@pytest.mark.parametrize("world", [1, 2, 3, 6])
def test_ranks_share_the_rows(world):
    rows = np.arange(12)
    parts = [rows[rank_rows(12, rank=rank, world=world)] for rank in range(world)]
    assert np.array_equal(np.concatenate(parts), rows)
    assert {len(part) for part in parts} == {12 // world}


@pytest.mark.parametrize("length", [1, 2, 3, 9, 10, 100])
def test_spans_cover_every_target_once(length):
    spans = list(consecutive_spans(11, length))
    targets = [i for start, stop in spans for i in range(start + 1, stop)]
    assert targets == list(range(1, 11))
    assert {stop - start for start, stop in spans[:-1]} <= {length + 1}
    assert all(stop - start >= 2 for start, stop in spans)


def test_arguments_out_of_range_are_refused(refused):
    good = {"rows": 2, "seed": 0}
    with refused("step", -1, "at least 0"):
        batch_windows(-1, windows=4, **good)
    with refused("rows", 0, "at least 1"):
        batch_windows(0, windows=4, **{**good, "rows": 0})
    with refused("seed", -2, "at least 0"):
        batch_windows(0, windows=4, **{**good, "seed": -2})
    with refused("rows", 5, "a multiple of the 2"):
        rank_rows(5, rank=0, world=2)
    for rank in (-1, 2):
        with refused("rank", rank, "0 to world - 1 = 1"):
            rank_rows(4, rank=rank, world=2)
