"""Single passes over D-sized vectors, against the bytes that each must move.

Bytes are those of every tensor that a pass must read or write, once each. The bandwidth of a plain
copy, measured in the same run, is what can be had.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from dataclasses import asdict

import torch

from depth_memory.bench.measure import Plan, attempted, spread, timed_apart
from depth_memory.bench.passes import PASSES, Maker, Sizes
from depth_memory.bench.results import Results, Row
from depth_memory.errors import UserError, invalid
from depth_memory.ops import _impl

KEY = ("op", "tokens", "width", "key_dim", "groups", "window")
FIELDS = (*KEY, "bytes", "us", "spread", "gb_per_s", "share_of_copy", "error")
COPY = "copy"


def measure_ops(
    sizes: Sequence[Sizes],
    plan: Plan,
    results: Results,
    *,
    device: torch.device,
    retry: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Measure what the results lack, and always the copy that the shares are of.

    Args:
        sizes: What is measured.
        plan: How; a timing is the median of `plan.repeats` runs.
        results: Where the rows go.
        device: Where it runs.
        retry: Measure rows again that hold an error.
        note: Is told of every row.

    Returns:
        The rows of these sizes, old and new.
    """
    rows = []
    for size in sizes:
        bandwidth = None
        for op in PASSES:
            named = {"op": op, **asdict(size)}
            row = results.find(named)
            if op == COPY or row is None or (retry and row["error"] is not None):
                row = _measured(named, size, plan, device, bandwidth)
                results.add(row)
                note(_line(row))
            if op == COPY:
                bandwidth = row["gb_per_s"]
            rows.append(row)
    return rows


def check_sizes(sizes: Sequence[Sizes]) -> None:
    """Raise unless the groups divide each width."""
    for size in sizes:
        if size.width % size.groups:
            raise invalid("--groups", size.groups, f"a divisor of the width {size.width}")


def check_device(device: torch.device) -> None:
    """Raise where no kernel can run: a copy alone says nothing."""
    against = [_impl.obstacle(op, device) for op, _ in PASSES.values() if op is not None]
    if against and None not in against:
        raise invalid("--device", str(device), f"one that runs the kernels ({against[0]})")


def _measured(
    named: Row, size: Sizes, plan: Plan, device: torch.device, bandwidth: float | None
) -> Row:
    found: Row = {**dict.fromkeys(FIELDS), **named}
    found["error"] = attempted(lambda: _measure(found, size, plan, device))
    if found["error"] is None:
        found["share_of_copy"] = found["gb_per_s"] / (bandwidth or found["gb_per_s"])
    return found


def _measure(found: Row, size: Sizes, plan: Plan, device: torch.device) -> None:
    """Fill in a row."""
    op, make = PASSES[found["op"]]
    against = None if op is None else _impl.obstacle(op, device)
    if against is not None:
        raise UserError(f"{op}: {against}")
    torch.manual_seed(plan.seed)
    timed = make(Maker(size, device))
    found["bytes"] = timed.bytes
    rounds = [
        statistics.median(timed_apart(timed.run, plan.repeats, device)) * 1e3
        for _ in range(plan.rounds)
    ]
    found["us"] = statistics.median(rounds)
    found["spread"] = spread(rounds)
    found["gb_per_s"] = found["bytes"] / found["us"] / 1e3


def _line(row: Row) -> str:
    """A row in a line."""
    if row["error"] is not None:
        return f"{row['op']}: {row['error']}"
    return f"{row['op']}: {row['us']:.1f} us, {row['share_of_copy']:.0%} of the copy's bandwidth"
