"""A description means the runs that it lists, and every mistake in it is one line."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest

from depth_memory import models, presets, sweep
from depth_memory.errors import UserError
from depth_memory.train import Run

OUT = Path("sweeps/x")


def resolve(description: dict, **settings) -> dict[str, Run]:
    return sweep.resolve(description, OUT, settings)


def test_axes_are_combined_in_order() -> None:
    axes = {"stream": ["ldm", "mhc"], "optim.lr": [1e-3, 0.01], "seed": [0, 1]}
    runs = resolve({"preset": "debug", "axes": axes})
    assert list(runs)[:3] == ["ldm-lr0.001-seed0", "ldm-lr0.001-seed1", "ldm-lr0.01-seed0"]
    assert len(runs) == 8
    run = runs["mhc-lr0.01-seed1"]
    assert (run.model.stream.name, run.optim.lr, run.seed) == ("mhc", 0.01, 1)
    assert run.out == OUT / "runs" / "mhc-lr0.01-seed1"


def test_what_is_not_named_is_the_preset() -> None:
    (run,) = resolve({"preset": "debug", "set": {"steps": 3}}).values()
    assert run.as_dict() == {**presets.debug().as_dict(), "steps": 3, "out": str(run.out)}


def test_a_labelled_axis_sets_several_fields() -> None:
    shapes = {
        "wide": {"model.width": 64, "model.depth": 1},
        "deep": {"model.width": 32, "model.depth": 4, "preset": "demo"},
    }
    runs = resolve({"preset": "debug", "axes": {"shape": shapes}})
    assert {name: (r.model.width, r.model.depth) for name, r in runs.items()} == {
        "wide": (64, 1),
        "deep": (32, 4),
    }
    assert runs["deep"].steps == presets.demo().steps


def test_an_axis_overrides_what_is_set_and_the_stream_comes_first() -> None:
    runs = resolve(
        {
            "preset": "debug",
            "set": {"model.stream.lanes": 3, "seed": 5},
            "axes": {"stream": ["hc"], "seed": [1]},
        }
    )
    assert (runs["hc-seed1"].model.stream.lanes, runs["hc-seed1"].seed) == (3, 1)


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    """The configuration of a saved model, which is all that a description looks at."""
    models.DepthLlamaConfig(
        hidden_size=48, num_hidden_layers=3, num_attention_heads=4, stream={"name": "hc"}
    ).save_pretrained(tmp_path / "saved")
    return tmp_path / "saved"


def test_a_run_may_go_on_from_a_saved_model(saved: Path) -> None:
    """Then the network is that model's, whatever the preset and the order of the fields."""
    arms = {"grafted": {"optim.stream_lr": 0.01, "from": str(saved)}, "new": {"stream": "mhc"}}
    runs = resolve({"preset": "debug", "axes": {"arm": arms, "seed": [0, 1]}})
    run = runs["grafted-seed1"]
    assert (run.origin, run.optim.stream_lr, run.seed) == (saved, 0.01, 1)
    assert (run.model.width, run.model.depth, run.model.stream.name) == (48, 3, "hc")
    assert (runs["new-seed0"].origin, runs["new-seed0"].model.stream.name) == (None, "mhc")


def test_a_run_may_go_on_from_another_run(saved: Path) -> None:
    """What its directory means is what it means everywhere else: its final model, for one."""
    other = saved.parent / "other"
    other.mkdir()
    head = {"format": 1, "config": presets.debug().as_dict(), "data": {}, "sessions": []}
    (other / "run.json").write_text(json.dumps(head))
    saved.rename(other / "model")
    runs = resolve({"preset": "debug", "set": {"from": str(other)}})
    assert runs["debug"].origin == other / "model"
    assert runs["debug"].model.width == 48


def test_a_saved_model_has_its_own_stream(saved: Path) -> None:
    with pytest.raises(UserError, match="stream: got 'ldm'; allowed: nothing beside from"):
        resolve({"preset": "debug", "set": {"from": str(saved), "stream": "ldm"}})


def test_settings_come_over_the_description(write: Callable[[dict], Path]) -> None:
    path = write({"preset": "debug", "set": {"seed": 5}, "out": "elsewhere"})
    loaded = sweep.load(str(path), settings={"seed": 7, "preset": "demo"})
    assert loaded.out == Path("elsewhere")
    assert [run.seed for run in loaded.runs.values()] == [7]
    assert list(loaded.runs) == ["demo"]
    assert sweep.load(str(path), out=OUT).out == OUT


WRONG = {
    "unknown key": ({"axis": {}}, "axis: unknown field; allowed: preset, set, axes, out"),
    "no preset": ({}, "run None: preset: got None; allowed: a name"),
    "unknown preset": ({"preset": "fly"}, "run fly: preset: got 'fly'; allowed: debug, "),
    "unknown field": (
        {"preset": "debug", "set": {"optim.lrr": 1}},
        "run debug: optim.lrr: unknown field; allowed: name, lr, betas",
    ),
    "unknown group": (
        {"preset": "debug", "set": {"optimm.lr": 1}},
        "run debug: optimm.lr: unknown field",
    ),
    "unknown stream": (
        {"preset": "debug", "axes": {"stream": ["ldm", "fly"]}},
        "run fly: stream: got 'fly'; allowed: attnres, ",
    ),
    "no saved model": (
        {"preset": "debug", "set": {"from": "nowhere"}},
        "run debug: from: got 'nowhere'; allowed: a directory of a run",
    ),
    "value of another kind": (
        {"preset": "debug", "axes": {"optim.lr": ["high"]}},
        "run lrhigh: optim.lr: got 'high'; allowed: a finite number",
    ),
    "value out of range": (
        {"preset": "debug", "axes": {"optim.lr": [-1]}},
        "run lr-1: optim.lr: got -1.0; allowed: a number above 0",
    ),
    "no values": (
        {"preset": "debug", "axes": {"seed": []}},
        "axes.seed: got []; allowed: a list of values, or an object of labels",
    ),
    "label without fields": (
        {"preset": "debug", "axes": {"shape": {"wide": 3}}},
        "axes.shape.wide: got 3; allowed: an object with named fields",
    ),
    "no path": (
        {"preset": "debug", "set": {"data.directory": ""}},
        "run debug: data.directory: got ''; allowed: a path",
    ),
    "more than a float holds": (
        {"preset": "debug", "set": {"optim.lr": 10**400}},
        "run debug: optim.lr: got 1000",
    ),
    "axes as a list": ({"preset": "debug", "axes": []}, "axes: got []; allowed: an object"),
    "the same run twice": (
        {"preset": "debug", "axes": {"seed": [1, 1]}},
        "axes: run: got 'seed1'; allowed: names that differ",
    ),
    "two axes for a field": (
        {"preset": "debug", "axes": {"seed": [1], "twin": {"a": {"seed": 2}}}},
        "axes.twin: got 'seed'; allowed: a field that axis seed leaves",
    ),
    "a directory": (
        {"preset": "debug", "set": {"out": "here"}},
        "run debug: out: got 'here'; allowed: nothing: the sweep names",
    ),
    "too many": (
        {"preset": "debug", "axes": {"seed": list(range(200)), "steps": list(range(1, 100))}},
        "axes: runs: got 19800; allowed: at most 10000",
    ),
}


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_one_line(case: str) -> None:
    description, message = WRONG[case]
    with pytest.raises(UserError) as error:
        resolve(description)
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[1]", "got [1]; allowed: an object with named fields"),
        ("{", "cannot be read as JSON: "),
        ('{"set": {"seed": 1, "seed": 2}}', "cannot be read as JSON: 'seed' stands there twice"),
    ],
)
def test_files_that_hold_no_description(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "sweep.json"
    path.write_text(text)
    with pytest.raises(UserError) as error:
        sweep.load(str(path))
    assert str(error.value).startswith(f"{path}: ")
    assert message in str(error.value)


def test_neither_a_file_nor_a_family() -> None:
    with pytest.raises(UserError, match=r"sweep: got 'fly'; allowed: a JSON file, or one of rates"):
        sweep.load("fly")


def test_a_setting_of_an_axis_is_refused() -> None:
    with pytest.raises(
        UserError, match="--set: got 'seed'; allowed: a field that axis seed leaves"
    ):
        resolve({"preset": "debug", "axes": {"seed": [1, 2]}}, seed=3)


@pytest.mark.parametrize("family", presets.FAMILIES)
def test_families_are_descriptions_that_resolve(family: str) -> None:
    description = presets.FAMILIES[family]()
    assert json.loads(json.dumps(description)) == description
    loaded = sweep.load(family)
    assert loaded.out == Path("sweeps") / family
    assert len(loaded.runs) >= 9
    assert presets.summary(family).endswith(".")


def test_three_rates_are_those_of_the_source() -> None:
    runs = sweep.load("rates-400m").runs
    rates: dict[str, list[float]] = {}
    for name, run in runs.items():
        rates.setdefault(name.partition("-lr")[0], []).append(run.optim.lr)
    assert all(len(three) == 3 for three in rates.values())
    assert rates["llama-400m-ldm-dk4"] == [5e-4, 1e-3, 2e-3]
    assert rates["llama-400m-mhc"] == [5e-4, 1e-3, 2e-3]
    assert rates["llama-400m-block-attnres"] == [1e-3, 2e-3, 4e-3]
    large = [r.optim.lr for n, r in sweep.load("rates-1500m").runs.items() if "ldm-lr" in n]
    assert large == [5e-4, 1e-3, 2e-3]


def test_aspect_ratios_meet_every_method() -> None:
    runs = sweep.load("depthbench-400m").runs
    assert len(runs) == 7 * 6
    assert runs["depthbench-400m-l70-ldm"].optim.lr == 1e-3
    assert runs["depthbench-400m-l70-hc"].optim.lr == 2e-3
    assert runs["depthbench-400m-l16-attnres"].model.depth == 16
