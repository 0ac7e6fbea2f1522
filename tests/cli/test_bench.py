"""`bench` measures every row it is asked for, says what failed, and goes on where it stopped."""

import functools
import json

import pytest
import torch

from depth_memory import bench
from depth_memory.bench import methods
from depth_memory.bench.measure import Plan, Prepared, compare
from depth_memory.bench.model import FIELDS
from depth_memory.bench.steps import CACHE, make_inputs, make_step

QUICK = (
    "--seconds",
    0,
    "--rounds",
    2,
    "--sequence",
    4,
    "--context",
    6,
    "--batch",
    1,
    "--layers",
    1,
)
CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("elsewhere")


def case(**changes):
    (found,) = bench.expand(["tiny"], sequences=[4], contexts=[6], batches=[2], **changes)
    return found


def built(name, of):
    """PreLN and a method on its backbone."""
    torch.manual_seed(0)
    base = methods.build(bench.parse_method("preln"), of, CPU, None)
    return base, methods.build(bench.parse_method(name), of, CPU, base)


def test_a_row_for_every_method_of_every_case(command, tmp_path):
    out = tmp_path / "new" / "rows.json"
    asked = ("--method", "ldm:window=2", "ldm:groups=3", "preln")
    modes = ("--mode", "train", "decode", "--scope", "model")
    done = command("bench", "model", *asked, *modes, *QUICK, "--checkpointing", "--out", out)
    assert done.code == 0
    document = json.loads(out.read_text())
    rows = document.pop("rows")
    assert set(document) == {"device", "versions", "commit", "configuration"}
    assert [set(row) for row in rows] == [set(FIELDS)] * 6
    assert {row["checkpointing"] for row in rows if row["mode"] == "decode"} == {False}
    for row in rows:
        if row["method"] == "ldm:groups=3":
            assert row["error"] == "stream.groups: got 3; allowed: a divisor of the width 64"
            assert row["ms"] is None
        else:
            assert row["error"] is None
            assert min(row["ms"], row["host_ms"], row["ratio_to_preln"], row["spread"]) > 0
            tokens = row["batch"] * row["sequence"]
            assert row["tokens_per_s"] == pytest.approx(tokens / row["ms"] * 1e3)
    ldm = next(row for row in rows if row["method"] == "ldm:window=2")
    assert (ldm["implementation"], ldm["sites"]) == ("reference", "sublayer")
    assert (ldm["key_dim"], ldm["groups"], ldm["window"], ldm["layers"]) == (8, 4, 2, 1)
    assert done.out.splitlines()[-1] == f"rows: {out}"
    assert len(done.out.splitlines()) == 8
    assert len(done.lines) == 6


def test_what_is_measured_is_not_measured_again(command, tmp_path):
    first = command("bench", "model", "--method", "preln", "ldm:groups=3", *QUICK)
    rows = json.loads((tmp_path / "bench-model.json").read_text())["rows"]
    more = command("bench", "model", "--method", "preln", "ldm:groups=3", "hc", *QUICK)
    after = json.loads((tmp_path / "bench-model.json").read_text())["rows"]
    assert (first.code, more.code) == (0, 0)
    assert after[:2] == rows
    assert [row["method"] for row in after] == ["preln", "ldm:groups=3", "hc"]
    assert len(more.lines) == 1
    again = command("bench", "model", "--method", "preln", "ldm:groups=3", *QUICK, "--retry")
    assert len(again.lines) == 1
    assert "ldm:groups=3" in again.lines[0]


def test_an_interrupt_keeps_the_rows_so_far(command, tmp_path, monkeypatch):
    real = methods.build

    def interrupted(method, *others):
        if method.name == "hc":
            raise KeyboardInterrupt
        return real(method, *others)

    monkeypatch.setattr(methods, "build", interrupted)
    assert command("bench", "model", "--method", "preln", "hc", *QUICK).code == 130
    rows = json.loads((tmp_path / "bench-model.json").read_text())["rows"]
    assert [row["method"] for row in rows] == ["preln"]
    assert [path.name for path in tmp_path.iterdir()] == ["bench-model.json"]


def test_what_is_asked_for_twice_is_measured_once():
    """Also where a number is repeated."""
    cases = list(bench.expand(["tiny", "tiny"], modes=["decode"], contexts=[1, 1], batches=[2, 2]))
    assert len(cases) == 1


def test_without_preln_the_others_are_measured(monkeypatch, tmp_path):
    real = methods.implementation

    def failing(method, model, x):
        if model.config.stream["name"] == "preln":
            raise torch.OutOfMemoryError("out of memory")
        return real(method, model, x)

    monkeypatch.setattr(methods, "implementation", failing)
    plan = Plan(rounds=1, seconds=0, compile=False)
    results = bench.Results(
        tmp_path / "rows.json", configuration={}, device=CPU, key=("method", "mode")
    )
    compared = [bench.parse_method(name) for name in ("preln", "hc")]
    preln, hc = bench.measure_models([case()], compared, plan, results, device=CPU)
    assert preln["error"] == "OutOfMemoryError: out of memory"
    assert (hc["error"], hc["ratio_to_preln"]) == (None, None)
    assert hc["ms"] > 0


def test_a_failure_leaves_nothing_to_the_next_method(monkeypatch, tmp_path):
    """It may come after a part of the gradients, which belong to the backbone of all."""
    seen = []

    def failing(step, plan, device, *, capture):
        seen.append([p.grad for p in backbone[0].parameters() if p.grad is not None])
        step.keywords["model"].model(inputs_embeds=torch.ones(1, 2, 64).bfloat16())[
            0
        ].sum().backward()
        raise RuntimeError("half way")

    backbone, real = [], methods.build

    def build(*arguments):
        backbone.append(real(*arguments))
        return backbone[-1]

    def make(model, *_, **__):
        return functools.partial(lambda model: None, model=model)

    monkeypatch.setattr(methods, "build", build)
    monkeypatch.setattr("depth_memory.bench.model.make_step", make)
    monkeypatch.setattr("depth_memory.bench.model.prepare", failing)
    results = bench.Results(tmp_path / "rows.json", configuration={}, device=CPU, key=("method",))
    compared = [bench.parse_method(name) for name in ("preln", "hc", "mhc")]
    plan = Plan(rounds=1, seconds=0, compile=False)
    rows = bench.measure_models([case()], compared, plan, results, device=CPU)
    assert [row["error"] for row in rows] == ["RuntimeError: half way"] * 3
    assert seen == [[], [], []]


WRONG = {
    "backbone": (["--backbone", "7b"], "--backbone: got '7b'; allowed: 1.7b, 14b, 4b, 8b, tiny"),
    "method": (["--method", "fly"], "--method: got 'fly'; allowed: attnres, block_attnres"),
    "field": (["--method", "ldm:keys=1"], "stream.keys: got 1; allowed: a field of ldm"),
    "no value": (["--method", "ldm:window"], "--method: got 'ldm:window'; allowed: NAME, or"),
    "original": (["--method", "preln_transformers:a=1"], "--method: got 'preln_transformers:a=1'"),
    "mode": (["--mode", "sleep"], "--mode: got 'sleep'; allowed: decode, prefill, train"),
    "scope": (["--scope", "head"], "--scope: got 'head'; allowed: model, trunk"),
    "layers": (["--layers", "3"], "--layers: got 3; allowed: 1 to 2, the layers of tiny"),
    "rounds": (
        ["--rounds", "0"],
        "--rounds: got '0'; allowed: a whole number, at least 1, at most 1000000",
    ),
    "figure": (["--figure", "a.exe"], "--figure: got 'a.exe'; allowed: a name that ends in"),
    "out": (["--out", "."], "--out: .: not a file of results (Is a directory)"),
}


@pytest.mark.parametrize("name", WRONG)
def test_a_mistake_is_one_line(command, tmp_path, name):
    argv, message = WRONG[name]
    done = command("bench", "model", *argv)
    assert (done.code, done.out, len(done.lines)) == (2, "", 1)
    assert done.err.startswith(f"error: {message}")
    assert list(tmp_path.iterdir()) == []


def test_a_file_of_something_else_is_left_alone(command, tmp_path):
    out = tmp_path / "rows.json"
    assert command("bench", "model", "--method", "preln", *QUICK, "--out", out).code == 0
    whole = out.read_bytes()
    other = command("bench", "model", *QUICK, "--seed", 1, "--out", out)
    assert (other.code, len(other.lines)) == (2, 1)
    assert "configuration.seed: got 0; allowed: 1, as these rows would be measured" in other.err
    assert command("bench", "ops", "--tokens", 2, "--width", 8, "--out", out).code == 2
    assert out.read_bytes() == whole
    out.write_text("[1]")
    assert "not a file of results" in command("bench", "model", "--out", out).err
    assert out.read_text() == "[1]"


def test_the_ratios_are_drawn(command, tmp_path):
    figure = tmp_path / "ratios.png"
    done = command("bench", "model", "--method", "preln", *QUICK, "--figure", figure)
    assert done.code == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["bench-model.json", "ratios.png"]


def test_the_ratio_is_to_what_is_measured_around(monkeypatch):
    """A clock that slows down all the time changes no ratio."""
    clock = iter(range(10, 1000, 10))
    cost = {"base": 1.0, "this": 2.0}
    monkeypatch.setattr("depth_memory.bench.measure.timed", lambda s, n, d: next(clock) * cost[s()])
    monkeypatch.setattr("depth_memory.bench.measure._host_ms", lambda step, device: 0.0)
    this, base = (
        Prepared(step=lambda n=name: n, plain=lambda: None, seconds=1.0, cuda_graph=False)
        for name in ("this", "base")
    )
    found = compare(this, base, Plan(rounds=3), CPU)
    assert found["ratio_to_preln"] == pytest.approx(0.5)
    assert found["spread"] == pytest.approx(0.0)
    assert found["ms"] == 80.0


@pytest.mark.parametrize("name", ["preln_transformers", "ldm", "hc", "mhc", "denseformer"])
def test_a_method_stands_on_the_same_backbone(name):
    base, model = built(name, case(scopes=["model"]))
    shared = {id(parameter) for parameter in base.parameters()}
    own = [parameter for parameter in model.parameters() if id(parameter) not in shared]
    assert len(list(model.parameters())) - len(own) == len(shared)
    assert bool(own) == (name != "preln_transformers")
    # a rounded sum is 0 now and then, a parameter never
    assert all((parameter != 0).float().mean() > 0.9 for parameter in own)


@pytest.mark.parametrize("mode", ["prefill", "decode"])
def test_preln_computes_what_transformers_does(mode):
    of = case(scopes=["model"], modes=[mode])
    inputs = make_inputs(of, CPU)
    ours, theirs = (
        make_step(model, of, inputs, compiled=False)() for model in built("preln_transformers", of)
    )
    assert ours.shape == (2, 1, 512)
    assert torch.equal(ours, theirs)


def test_decoding_is_the_last_step_of_a_prompt():
    """With the keys and values of a prompt in the cache, one token gives what the whole gives."""
    of = case(scopes=["model"], modes=["decode"])
    base, model = built("ldm", of)
    model, base = model.float(), base.float()
    inputs = make_inputs(of, CPU)
    ids = torch.randint(512, (2, 7))
    with torch.no_grad():
        prompt = model(input_ids=ids[:, :-1], use_cache=True)
        expected = model(input_ids=ids).logits[:, -1:]
    inputs.ids.copy_(ids[:, -1:])
    filled = getattr(prompt, CACHE).layers
    for fixed, layer in zip(inputs.cache.layers, filled, strict=True):
        fixed.held = tuple(
            torch.cat([x, torch.full_like(x[:, :, :1], float("nan"))], 2)
            for x in (layer.keys, layer.values)
        )
    step = make_step(model, of, inputs, compiled=False)
    for _ in range(2):
        torch.testing.assert_close(step(), expected)
