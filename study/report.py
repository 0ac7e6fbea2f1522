"""Tables and a figure of the quality study from its results, by the rules of docs/study.md.

    python -m study.report results/study/*.jsonl --out docs/study

Reads lines as `depth-memory sweep` writes them. Runs with seed 0 choose each method's learning
rate; the others are its final runs, compared pair by pair with those of the base method at the same
seed. Writes OUT/rates.md, OUT/final.md and OUT/speed.png (needs the extra `study`).
"""

from __future__ import annotations

import argparse
import json
import math
import re
import statistics
import sys
from collections import defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from depth_memory.files import replaced_file

BASE = "preln"
CHOOSING = 0
"""The seed whose runs choose."""
Result = dict[str, Any]


class Interval(NamedTuple):
    """A mean and half the width of its 95% t-interval; infinite for a single value."""

    mean: float
    half: float

    @property
    def excludes_zero(self) -> bool:
        """Whether a difference may be claimed."""
        return abs(self.mean) > self.half


def load(paths: Iterable[Path]) -> dict[str, Result]:
    """Finished runs by name; a later file wins."""
    found: dict[str, Result] = {}
    for path in paths:
        for line in path.read_text(encoding="utf-8").splitlines():
            result = json.loads(line)
            if result["status"] == "finished":
                found[result["run"]] = result
    return found


def method_of(result: Result) -> str:
    """The run's name without learning rate and seed."""
    return re.sub(r"-(lr[0-9.e+-]+|seed\d+)(?=-|$)", "", result["run"])


def rate_of(result: Result) -> float:
    """Its learning rate."""
    return result["config"]["optim"]["lr"]


def chosen(results: Iterable[Result]) -> dict[str, list[Result]]:
    """Method -> its runs with the choosing seed, the best one first."""
    found = defaultdict(list)
    for result in results:
        if result["config"]["seed"] == CHOOSING:
            found[method_of(result)].append(result)
    return {name: sorted(runs, key=lambda r: r["validation_loss"]) for name, runs in found.items()}


def at_edge(runs: Sequence[Result]) -> bool:
    """Whether the best rate is the lowest or highest tried: then the grid must grow."""
    rates = [rate_of(run) for run in runs]
    return rates[0] in (min(rates), max(rates))


def finals(results: Iterable[Result]) -> dict[str, dict[int, Result]]:
    """Method -> seed -> its final run."""
    found: dict[str, dict[int, Result]] = defaultdict(dict)
    for result in results:
        seed = result["config"]["seed"]
        if seed == CHOOSING:
            continue
        name = method_of(result)
        if seed in found[name]:
            raise ValueError(f"{name}: seed {seed} has several final runs, allowed: one rate each")
        found[name][seed] = result
    return found


def interval(values: Sequence[float]) -> Interval:
    """The mean of a sample and its t-interval."""
    from scipy import stats

    if len(values) < 2:
        return Interval(statistics.fmean(values), math.inf)
    quantile = float(stats.t.ppf(0.975, len(values) - 1))
    return Interval(
        statistics.fmean(values), quantile * statistics.stdev(values) / len(values) ** 0.5
    )


def differences(ours: dict[int, Result], base: dict[int, Result]) -> list[float]:
    """Loss minus the base's at the same seed, which has the same data in the same order."""
    return [
        ours[s]["validation_loss"] - base[s]["validation_loss"]
        for s in sorted(ours.keys() & base.keys())
    ]


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Markdown."""
    lines = [header, ["---"] * len(header), *rows]
    return "".join(f"| {' | '.join(line)} |\n" for line in lines)


def rates_table(results: Iterable[Result]) -> str:
    """Every method's best learning rate, and all that were tried."""
    rows = []
    for name, runs in sorted(chosen(results).items(), key=lambda i: i[1][0]["validation_loss"]):
        tried = sorted(runs, key=rate_of)
        losses = ", ".join(f"{rate_of(r):g}: {r['validation_loss']:.4f}" for r in tried)
        note = "at the edge" if at_edge(runs) else ""
        rows.append(
            (name, f"{rate_of(runs[0]):g}", f"{runs[0]['validation_loss']:.4f}", losses, note)
        )
    return table(("method", "best rate", "nats/token", "tried", ""), rows)


def final_table(results: Iterable[Result], base: str = BASE) -> str:
    """Every method's final runs, and what may be said of them."""
    found = finals(results)
    rows = []
    for name, runs in sorted(found.items(), key=lambda i: _mean(i[1], "validation_loss")):
        pairs = differences(runs, found[base]) if name != base and base in found else []
        rows.append(
            (
                name,
                str(len(runs)),
                f"{_mean(runs, 'validation_loss'):.4f}",
                f"{_mean(runs, 'bits_per_byte'):.4f}",
                _difference(pairs),
                f"{_mean(runs, 'tokens_per_second') / 1e3:.0f}k",
            )
        )
    header = ("method", "seeds", "nats/token", "bits/byte", f"minus {base}", "tokens/s")
    return table(header, rows)


def _mean(runs: dict[int, Result], field: str) -> float:
    return statistics.fmean(run[field] for run in runs.values())


def _difference(pairs: Sequence[float]) -> str:
    if not pairs:
        return ""
    found = interval(pairs)
    claim = "" if found.excludes_zero else " (none shown)"
    return f"{found.mean:+.4f} ± {found.half:.4f}{claim}"


def draw(results: Iterable[Result], path: Path) -> None:
    """Loss against speed, a point for every method's final runs."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 4), layout="constrained")
    axes = figure.subplots()
    for name, runs in finals(results).items():
        x, y = _mean(runs, "tokens_per_second"), _mean(runs, "validation_loss")
        axes.plot(x, y, "o")
        axes.annotate(name, (x, y), textcoords="offset points", xytext=(4, 4))
    axes.set(xlabel="tokens per second", ylabel="validation loss, nats per token")
    with replaced_file(path) as partial:
        figure.savefig(partial, format="png", dpi=120)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write everything; see the module."""
    parser = argparse.ArgumentParser()
    parser.add_argument("results", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(arguments)
    results = list(load(args.results).values())
    args.out.mkdir(parents=True, exist_ok=True)
    for name, text in (("rates.md", rates_table(results)), ("final.md", final_table(results))):
        with replaced_file(args.out / name) as partial:
            partial.write_text(text, encoding="utf-8")
        print(text)
    draw(results, args.out / "speed.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())
