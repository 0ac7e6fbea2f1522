"""Configurations: exact as JSON, checked to the field, open to the command line."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import get_args, get_type_hints

import pytest

from depth_memory import streams
from depth_memory.errors import UserError, ranges_of
from depth_memory.train import DataSpec, ModelSpec, OptimSpec, Run, ScheduleSpec, load_run
from depth_memory.train.serial import first_difference

RUN = Run(
    model=ModelSpec(family="llama", width=64, stream={"name": "ldm", "key_dim": 3}),
    data=DataSpec(directory=Path("somewhere/else")),
    optim=OptimSpec(lr=0.1 + 0.2, betas=(0.8, 1 / 3)),
    schedule=ScheduleSpec(kind="wsd"),
    loggers=("tensorboard", "wandb"),
    eval_windows=7,
)


def through_json(run: Run) -> Run:
    return Run.from_dict(json.loads(json.dumps(run.as_dict())))


@pytest.mark.parametrize("name", streams.STREAMS)
def test_json_gives_back_an_equal_run(name: str) -> None:
    run = replace(RUN, model=replace(RUN.model, stream={"name": name}))
    assert through_json(run) == run
    assert type(through_json(run).model.stream) is streams.STREAMS[name][0]


def test_json_keeps_every_field_of_every_part() -> None:
    assert through_json(RUN) == RUN
    assert through_json(Run()) == Run()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"stepz": 3}, "stepz: unknown field; allowed: model, data"),
        ({"optim": {"momentum": 0.9}}, "optim.momentum: unknown field; allowed: name, lr, betas"),
        ({"steps": "ten"}, "steps: got 'ten'; allowed: a whole number"),
        ({"steps": True}, "steps: got True; allowed: a whole number"),
        ({"optim": {"lr": "fast"}}, "optim.lr: got 'fast'; allowed: a finite number"),
        ({"optim": {"lr": float("nan")}}, "optim.lr: got nan; allowed: a finite number"),
        ({"optim": {"betas": [0.9]}}, "optim.betas: got [0.9]; allowed: 2 values"),
        ({"precision": "fp8"}, "precision: got 'fp8'; allowed: float32, bfloat16"),
        ({"loggers": "wandb"}, "loggers: got 'wandb'; allowed: a list"),
        ({"model": 3}, "model: got 3; allowed: an object with named fields"),
        ({"out": 3}, "out: got 3; allowed: a path"),
        ({"out": ""}, "out: got ''; allowed: a path"),
        ({"out": "a\0b"}, r"out: got 'a\x00b'; allowed: a path"),
        ({"data": {"directory": ""}}, "data.directory: got ''; allowed: a path"),
        ({"optim": {"lr": 10**400}}, "optim.lr: got 1000"),
        ({"optim": {"betas": [0.9, -(10**400)]}}, "optim.betas: got -1000"),
        ({"model": {"stream": {"name": "ldm", "alpha": 10**400}}}, "stream.alpha: got 1000"),
        ({"model": {"stream": {"name": "magic"}}}, "stream.name: got 'magic'; allowed: "),
        ({"model": {"stream": {"name": "ldm", "keys": 1}}}, "stream.keys: got 1; allowed: "),
    ],
)
def test_a_file_with_a_wrong_field_is_refused_in_one_line(change: dict, message: str) -> None:
    with pytest.raises(UserError) as error:
        Run.from_dict(change)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


def with_model(**changes) -> Run:
    return replace(RUN, model=replace(RUN.model, **changes))


@pytest.mark.parametrize(
    ("run", "message"),
    [
        (replace(RUN, steps=0), "steps: got 0; allowed: at least 1"),
        (replace(RUN, steps=1.5), "steps: got 1.5; allowed: a whole number"),
        (replace(RUN, keep=0), "keep: got 0; allowed: at least 1"),
        (replace(RUN, seed=-1), "seed: got -1; allowed: at least 0"),
        (replace(RUN, eval_windows=0), "eval_windows: got 0; allowed: at least 1"),
        (replace(RUN, seed=2**63), "seed: got 9223372036854775808; allowed: at least 0, at most 9"),
        (
            replace(RUN, rows=10**12),
            "rows: got 1000000000000; allowed: at least 1, at most 1048576",
        ),
        (replace(RUN, steps=10**30), "steps: got 1" + "0" * 30 + "; allowed: at least 1, at most "),
        (
            replace(RUN, optim=OptimSpec(lr=11.0)),
            "optim.lr: got 11.0; allowed: a number above 0, at",
        ),
        (replace(RUN, optim=OptimSpec(eps=1e-60)), "optim.eps: got 1e-60; allowed: at least 1e-30"),
        (replace(RUN, rows=6, accumulate=4), "accumulate: got 4; allowed: a divisor of rows = 6"),
        (
            replace(RUN, length=4096),
            "length: got 4096; allowed: 1 to the position limit model.max_length = 2048",
        ),
        (replace(RUN, optim=OptimSpec(lr=0.0)), "optim.lr: got 0.0; allowed: a number above 0"),
        (replace(RUN, optim=OptimSpec(betas=(0.9, 1.0))), "optim.betas: got (0.9, 1.0)"),
        (replace(RUN, optim=OptimSpec(clip=-1.0)), "optim.clip: got -1.0; allowed: at least 0"),
        (replace(RUN, schedule=ScheduleSpec(warmup=2000)), "schedule.warmup: got 2000; allowed"),
        (replace(RUN, schedule=ScheduleSpec(floor=1.5)), "schedule.floor: got 1.5; allowed"),
        (
            replace(RUN, schedule=ScheduleSpec(kind="wsd", warmup=900, decay=0.2)),
            "schedule.decay: got 0.2; allowed: warmup + decay * steps within steps",
        ),
        (with_model(heads=3, kv_heads=1), "model.heads: got 3; allowed: a divisor of width = 64"),
        (with_model(kv_heads=3), "model.kv_heads: got 3; allowed: a divisor of heads = 4"),
        (with_model(heads=64, kv_heads=64), "model.head_dim: got 1; allowed: an even number"),
        (with_model(depth=0), "model.depth: got 0; allowed: at least 1"),
        (with_model(init_std=1.5), "model.init_std: got 1.5; allowed: a number above 0, at most 1"),
        (
            with_model(width=10**9),
            "model.width: got 1000000000; allowed: at least 1, at most 131072",
        ),
        (with_model(depth=10**6), "model.depth: got 1000000; allowed: at least 1, at most 8192"),
        (with_model(width=64, stream={"name": "ldm", "groups": 5}), "stream.groups: got 5"),
    ],
)
def test_a_field_out_of_range_is_refused_in_one_line(run: Run, message: str) -> None:
    with pytest.raises(UserError) as error:
        run.validate()
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("spec", [ModelSpec, OptimSpec, ScheduleSpec, Run])
def test_every_number_has_a_range(spec: type) -> None:
    def holds_number(kind) -> bool:
        return kind in (int, float) or any(map(holds_number, get_args(kind)))

    hints = get_type_hints(spec)
    assert {name for name, kind in hints.items() if holds_number(kind)} == set(ranges_of(spec))
    for allowed in ranges_of(spec).values():
        assert not any(map(allowed.allows, (float("nan"), float("inf"), -float("inf"), 10**400)))


def test_rows_must_spread_over_processes_and_pieces() -> None:
    run = replace(RUN, rows=12, accumulate=2)
    assert run.rows_per_process(3) == 4
    with pytest.raises(UserError, match=r"rows: got 12; allowed: a multiple of 4 processes x"):
        run.rows_per_process(4)


def test_a_description_of_a_newer_version_is_refused(tmp_path: Path) -> None:
    content = {"format": 1, "config": RUN.as_dict(), "data": {}, "sessions": []}
    (tmp_path / "run.json").write_text(json.dumps(content))
    assert load_run(tmp_path) == RUN
    (tmp_path / "run.json").write_text(json.dumps({**content, "format": 2}))
    with pytest.raises(UserError, match=r"run.json: format: got 2; allowed: up to 1 \(written by"):
        load_run(tmp_path)
    (tmp_path / "run.json").write_text("{")
    with pytest.raises(UserError, match=r"run.json: not the description of a run"):
        load_run(tmp_path)


def test_the_first_difference_is_named() -> None:
    other = replace(RUN, optim=replace(RUN.optim, eps=1e-9), seed=4)
    assert first_difference(RUN.as_dict(), other.as_dict()) == "optim.eps"
    stream = with_model(stream={"name": "ldm", "key_dim": 4})
    assert first_difference(RUN.as_dict(), stream.as_dict()) == "model.stream.key_dim"
    assert first_difference(RUN.as_dict(), RUN.as_dict()) is None
