"""Print the error of the float32 recurrence against float64: `python -m tests.ops.error_table`."""

from __future__ import annotations

import torch

from depth_memory.ops import rls_write
from tests.testing import KEY_KINDS, KeyKind, make_observations, relative_error, seed_all, write_all

WRITES = (24, 56, 160)
RETENTIONS = (1.0, 1e-1, 1e-2, 1e-3)
TOKENS = 32


def fit_error(n: int, retention: float, kind: KeyKind, alpha: float) -> float:
    """Largest relative error of M over the tokens, in the Frobenius norm, at importance 1."""
    obs = make_observations(n, TOKENS, kind=kind, retention=retention, importance=1.0)
    exact = write_all(rls_write, obs, alpha)[-1][0]
    return relative_error(write_all(rls_write, obs.to(torch.float32), alpha)[-1][0], exact, 2)


def table(alpha: float) -> str:
    """A markdown table: one row per number of writes and retention, one column per kind of key."""
    rows = [
        f"| alpha {alpha:g} | retention | {' | '.join(KEY_KINDS)} | worst |",
        "|---|---" + "|---" * (len(KEY_KINDS) + 1) + "|",
    ]
    for n in WRITES:
        for retention in RETENTIONS:
            errors = [fit_error(n, retention, kind, alpha) for kind in KEY_KINDS]
            cells = " | ".join(f"{e:.0e}" for e in [*errors, max(errors)])
            rows.append(f"| {n} writes | {retention:g} | {cells} |")
    return "\n".join(rows)


def main() -> None:
    """Print the tables for both starts of the inverse covariance."""
    seed_all(0)
    print(table(1.0), table(10.0), sep="\n\n")


if __name__ == "__main__":
    main()
