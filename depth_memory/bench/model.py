"""Whole models: a row for each method of each case, its speed relative to PreLN beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import asdict
from typing import Any

import torch

from depth_memory.bench import methods
from depth_memory.bench.cases import Case
from depth_memory.bench.measure import (
    Plan,
    Prepared,
    attempted,
    compare,
    prepare,
    release,
    synchronize,
)
from depth_memory.bench.methods import Method
from depth_memory.bench.results import Results, Row
from depth_memory.bench.steps import Inputs, make_inputs, make_step
from depth_memory.errors import UserError

FIELDS = (
    "backbone", "method", "implementation", "mode", "scope", "sequence", "context", "batch",
    "key_dim", "groups", "window", "sites", "checkpointing", "layers", "tokens_per_s",
    "ratio_to_preln", "spread", "peak_gib", "ms", "host_ms", "cuda_graph", "error",
)  # fmt: skip
"""What every row holds; None where there is nothing to say."""
KEY = (
    "backbone", "method", "mode", "scope", "sequence", "context", "batch", "checkpointing",
    "layers",
)  # fmt: skip
"""What tells one row from another."""
LIMITS = {
    "recompile_limit": 256,
    "accumulated_recompile_limit": 1024,
    "fail_on_recompile_limit_hit": True,
}
"""Of torch's compiler: past them it would go on uncompiled, and say nothing."""
PRELN = Method(name=methods.BASE, stream={"name": methods.BASE})


def measure_models(
    cases: Sequence[Case],
    compared: Sequence[Method],
    plan: Plan,
    results: Results,
    *,
    device: torch.device,
    retry: bool = False,
    note: Callable[[str], None] = lambda _: None,
) -> list[Row]:
    """Measure what the results lack; what fails becomes a row that says so.

    Args:
        cases: What is measured.
        compared: By which methods.
        plan: How.
        results: Where the rows go, each as soon as it is known.
        device: Where it runs.
        retry: Measure rows again that hold an error.
        note: Is told of every row.

    Returns:
        The rows of these cases and methods, old and new.

    Raises:
        UserError: A failure has left the device unusable; the rows so far are kept.
    """
    asked = [(case, method) for case in cases for method in compared]
    for case in cases:
        missing = [m for m in compared if _missing(results.find(_named(case, m)), retry)]
        if missing:
            with torch._dynamo.config.patch(LIMITS):
                _measure_case(case, missing, plan, results, device, note)
    found = (results.find(_named(case, method)) for case, method in asked)
    return [row for row in found if row is not None]


def _missing(row: Row | None, retry: bool) -> bool:
    return row is None or (retry and row["error"] is not None)


def _named(case: Case, method: Method) -> Row:
    return {**asdict(case), "method": method.name}


def _measure_case(
    case: Case,
    missing: Sequence[Method],
    plan: Plan,
    results: Results,
    device: torch.device,
    note: Callable[[str], None],
) -> None:
    torch._dynamo.reset()
    release()
    torch.manual_seed(plan.seed)
    bench = _Bench(case, plan, device)
    if bench.base_row["error"] is not None:
        note(_line(bench.base_row))
    for method in missing:
        row = bench.row(method)
        results.add(row)
        if row is not bench.base_row or row["error"] is None:
            note(_line(row))
        _check(device, results)


class _Bench:
    """One case: its inputs, its backbone, and PreLN on it. Final."""

    def __init__(self, case: Case, plan: Plan, device: torch.device):
        self.case, self.plan, self.device = case, plan, device
        self.inputs: Inputs | None = None
        self.backbone: Any = None
        self.base: Prepared | None = None
        self.error = attempted(self._begin)
        self.base_row = self._measured(PRELN)

    def _begin(self) -> None:
        """The backbone, which every method shares, and the inputs."""
        self.backbone = methods.build(PRELN, self.case, self.device, None)
        self.inputs = make_inputs(self.case, self.device)

    def row(self, method: Method) -> Row:
        """The row of a method."""
        return self.base_row if method.name == methods.BASE else self._measured(method)

    def _measured(self, method: Method) -> Row:
        found: Row = {**dict.fromkeys(FIELDS), **_named(self.case, method)}
        found |= methods.described(method, None)
        found["error"] = self.error or attempted(lambda: self._measure(method, found))
        if self.backbone is not None:
            # what a failure left behind; the next method has the same parameters
            self.backbone.zero_grad(set_to_none=True)
        return found

    def _measure(self, method: Method, found: Row) -> None:
        """Fill in a row."""
        assert self.inputs is not None
        is_base = method.name == methods.BASE
        torch.manual_seed(self.plan.seed + 1)
        model = self.backbone
        if not is_base:
            model = methods.build(method, self.case, self.device, self.backbone)
        found |= methods.described(method, model)
        with torch.set_grad_enabled(self.case.mode == "train"):
            found["implementation"] = methods.implementation(method, model, self.inputs.embedded)
        if self.plan.compile:
            methods.compile_(model, self.case.mode)
        step = make_step(model, self.case, self.inputs, compiled=self.plan.compile)
        ready = prepare(step, self.plan, self.device, capture=self.case.mode == "decode")
        found |= compare(ready, self.base, self.plan, self.device)
        found["tokens_per_s"] = self.case.tokens / found["ms"] * 1e3
        if is_base:
            found["ratio_to_preln"] = 1.0
            self.base = ready


def _check(device: torch.device, results: Results) -> None:
    """Raise if a failure has left the device unusable."""
    try:
        synchronize(device)
    except RuntimeError as error:
        line = str(error).partition("\n")[0]
        raise UserError(
            f"device: got {line}; allowed: the same command again, which goes on in {results.path}"
        ) from error


def _line(row: Row) -> str:
    """A row in a line."""
    where = f"context {row['context']}" if row["mode"] == "decode" else f"{row['sequence']}"
    title = f"{row['backbone']} {row['mode']} {row['scope']} {row['batch']} x {where}"
    if row["error"] is not None:
        return f"{title}: {row['method']}: {row['error']}"
    ratio = row["ratio_to_preln"]
    beside = "" if ratio is None else f", {ratio:.3f} of preln"
    return f"{title}: {row['method']}: {row['ms']:.2f} ms{beside}"
