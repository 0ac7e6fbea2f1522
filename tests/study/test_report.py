"""The report of the study chooses, pairs and claims as its protocol says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from study import report


def result(method: str, lr: float, seed: int, loss: float, **changes) -> dict:
    return {
        "run": f"{method}-lr{lr:g}-seed{seed}",
        "status": "finished",
        "validation_loss": loss,
        "bits_per_byte": loss / 2,
        "tokens_per_second": 1e5,
        "config": {"seed": seed, "optim": {"lr": lr}},
        **changes,
    }


RUNS = [
    *(result("preln", lr, 0, loss) for lr, loss in ((1e-3, 3.1), (2e-3, 3.0), (4e-3, 3.2))),
    *(result("ldm-gain_init3", lr, 0, loss) for lr, loss in ((1e-3, 2.8), (2e-3, 2.9))),
    *(result("preln", 2e-3, seed, 3.0 + seed / 100) for seed in (1, 2, 3)),
    *(
        result("ldm-gain_init3", 1e-3, s, 2.8 + s / 100 + d)
        for s, d in ((1, 0), (2, 0.02), (3, 0.01))
    ),
]


def test_each_method_has_its_own_best_rate_and_an_edge_is_named() -> None:
    best = report.chosen(RUNS)
    assert {name: report.rate_of(runs[0]) for name, runs in best.items()} == {
        "preln": 2e-3,
        "ldm-gain_init3": 1e-3,
    }
    assert not report.at_edge(best["preln"])
    assert report.at_edge(best["ldm-gain_init3"])
    lines = report.rates_table(RUNS).splitlines()
    assert lines[2].startswith("| ldm-gain_init3 | 0.001 | 2.8000 | 0.001: 2.8000, 0.002: 2.9000")
    assert lines[2].endswith("at the edge |")


def test_differences_are_paired_by_seed() -> None:
    found = report.finals(RUNS)
    pairs = report.differences(found["ldm-gain_init3"], found["preln"])
    assert pairs == pytest.approx([-0.2, -0.18, -0.19])


def test_the_interval_is_students() -> None:
    """Three values of standard deviation 0.01: 4.303 x 0.01 / sqrt(3)."""
    found = report.interval([-0.2, -0.18, -0.19])
    assert found.mean == pytest.approx(-0.19)
    assert found.half == pytest.approx(4.302653 * 0.01 / 3**0.5, rel=1e-6)
    assert found.excludes_zero
    assert not report.interval([0.01, -0.02, 0.03]).excludes_zero
    assert not report.interval([-1.0]).excludes_zero


def test_a_method_has_one_final_rate() -> None:
    with pytest.raises(ValueError, match="preln: seed 1 has several final runs"):
        report.finals([*RUNS, result("preln", 4e-3, 1, 2.0)])


def test_the_command_writes_tables_and_a_figure(tmp_path: Path) -> None:
    file = tmp_path / "a.jsonl"
    failed = {"run": "x", "status": "failed"}
    file.write_text("".join(json.dumps(line) + "\n" for line in [failed, *RUNS]))
    assert report.main([str(file), "--out", str(tmp_path / "out")]) == 0
    text = (tmp_path / "out" / "final.md").read_text()
    assert "| ldm-gain_init3 | 3 | 2.8300 | 1.4150 | -0.1900 ± 0.0248 | 100k |" in text
    assert (tmp_path / "out" / "speed.png").read_bytes().startswith(b"\x89PNG")
