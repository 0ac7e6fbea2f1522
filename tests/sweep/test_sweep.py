"""What a sweep does with its runs, and with its directory."""

from __future__ import annotations

import copy
import json
import multiprocessing
import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from depth_memory import sweep
from depth_memory.errors import UserError
from depth_memory.sweep import devices, state, worker
from depth_memory.train import Run

CPU = [devices.Slot("cpu-0", {})]


def load(write: Callable[[dict], Path], description: dict, out: Path) -> sweep.Sweep:
    return sweep.load(str(write(description)), out=out)


def two(description: dict) -> dict:
    """The description with one axis of two points."""
    return {**description, "axes": {"optim.lr": [0.001, 0.003]}}


def run_quietly(chosen: sweep.Sweep, **options) -> tuple[sweep.Outcome, list[str]]:
    said: list[str] = []
    return sweep.run_sweep(chosen, CPU, note=said.append, **options), said


def lines(out: Path) -> list[dict]:
    return [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def done(description: dict, tmp_path_factory: pytest.TempPathFactory) -> sweep.Sweep:
    """Two runs, finished."""
    out = tmp_path_factory.mktemp("done") / "out"
    chosen = sweep.Sweep(out=out, runs=sweep.resolve(two(description), out))
    assert run_quietly(chosen)[0].signal is None
    return chosen


def test_a_result_says_what_was_run_and_how(done: sweep.Sweep) -> None:
    first, second = lines(done.out)
    assert [first["run"], second["run"]] == list(done.runs)
    assert first["status"] == "finished"
    assert first["config"]["optim"]["lr"] == 0.001
    assert first["validation_loss"] > 0
    assert first["bits_per_byte"] > 0
    assert first["train_loss"] > 0
    assert first["tokens"] == 6 * 4 * 32
    assert first["tokens_per_second"] > 0
    assert first["parameters"] > 0
    assert first["versions"]["torch"] == torch.__version__
    assert {"device", "commit"} <= first.keys()
    assert first["seconds_to_first_step"] > 0
    # one process ran both
    assert [first["runs_before_in_process"], second["runs_before_in_process"]] == [0, 1]


def test_a_run_gives_the_same_alone_and_after_another(
    done: sweep.Sweep, description: dict, tmp_path: Path
) -> None:
    chosen = sweep.Sweep(out=tmp_path, runs=sweep.resolve(two(description), tmp_path))
    outcome, _ = run_quietly(chosen, names=["lr0.003"])
    alone, after = outcome.results["lr0.003"], lines(done.out)[1]
    assert alone["runs_before_in_process"] == 0
    assert alone["validation_loss"] == after["validation_loss"]
    assert list(outcome.results) == ["lr0.003"]


def test_finished_runs_are_not_repeated(done: sweep.Sweep) -> None:
    before = contents(done.out / "runs"), contents(done.out / "results")
    outcome, said = run_quietly(done)
    assert said == [f"{done.out}: 2 of 2 runs are finished"]
    assert list(outcome.results.values()) == lines(done.out)
    assert (contents(done.out / "runs"), contents(done.out / "results")) == before


def test_a_run_that_fails_stops_no_other(
    command: Callable, write: Callable, description: dict, tmp_path: Path
) -> None:
    axes = {
        "lr": {"bad": {"optim.lr": 10.0, "optim.weight_decay": 1e3}, "good": {"optim.lr": 0.001}}
    }
    path, out = write({**description, "axes": axes}), tmp_path / "out"
    code, table, said = command("sweep", path, "--out", out, "--device", "cpu")
    assert code == 1
    assert [line["status"] for line in lines(out)] == ["failed", "finished"]
    assert "first non-finite" in lines(out)[0]["error"]
    assert "cpu-0: bad failed: step" in said
    assert "failed: bad; 1 of 2 runs are finished; go on with the same command" in said
    assert [row.split()[0] for row in table.splitlines()] == ["run", "bad", "good"]
    again = command("sweep", path, "--out", out, "--device", "cpu")
    assert again.code == 1
    assert "bad begins" in again.err
    assert "good begins" not in again.err


def test_a_process_that_dies_is_replaced(
    write: Callable, description: dict, tmp_path: Path
) -> None:
    chosen = load(write, two(description), tmp_path / "out")
    said = []

    def note(text: str) -> None:
        said.append(text)
        if text == "cpu-0: lr0.001 begins":
            (child,) = (p for p in multiprocessing.active_children() if p.name == "cpu-0")
            os.kill(child.pid, signal.SIGKILL)

    outcome = sweep.run_sweep(chosen, CPU, note=note)
    assert outcome.results["lr0.001"]["status"] == "failed"
    assert outcome.results["lr0.001"]["error"] == "its process died (SIGKILL)"
    assert outcome.results["lr0.003"]["status"] == "finished"
    assert any("lr0.001 failed: its process died (SIGKILL) (more in " in text for text in said)
    assert not multiprocessing.active_children()
    outcome, _ = run_quietly(chosen)
    assert {result["status"] for result in outcome.results.values()} == {"finished"}


def test_after_an_unexpected_error_a_new_process_takes_over(
    done: sweep.Sweep, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def broken(*_, **__):
        raise RuntimeError("CUDA error: an illegal memory access\nand more")

    monkeypatch.setattr(worker, "train", broken)
    ours, _theirs = multiprocessing.Pipe()
    job = {"run": "lr0.001", "config": done.runs["lr0.001"].as_dict()}
    message = worker._do(job, done.out, worker.Teller(ours, 0.0), 0)
    assert message == {
        "event": "failed",
        "error": "RuntimeError: CUDA error: an illegal memory access",
        "leave": True,
    }
    assert "Traceback" in capsys.readouterr().err


def test_compiled_code_of_the_run_before_is_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else every configuration counts as a variant, and after a few nothing is compiled."""
    resets = []
    monkeypatch.setattr(torch.compiler, "reset", lambda: resets.append(1))
    worker._forget(False)
    assert resets == []
    worker._forget(True)
    assert resets == [1]


def test_data_is_verified_once_and_before_anything_begins(
    write: Callable, description: dict, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chosen = load(write, description, tmp_path / "out")
    verified = []

    def refuse(folder: Path) -> None:
        verified.append(folder)
        raise UserError("shard: altered")

    monkeypatch.setattr("depth_memory.data.verify", refuse)
    with pytest.raises(UserError, match="shard: altered"):
        run_quietly(chosen)
    assert verified == [chosen.runs["ldm-lr0.001"].data.directory]
    assert not (tmp_path / "out" / "runs").exists()


def contents(out: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}


def changed(done: sweep.Sweep, description: dict, **changes) -> sweep.Sweep:
    again = copy.deepcopy(two(description))
    again["axes"].update(changes.pop("axes", {}))
    again["set"].update(changes)
    return sweep.Sweep(out=done.out, runs=sweep.resolve(again, done.out))


def test_a_changed_run_is_refused(done: sweep.Sweep, description: dict) -> None:
    before = contents(done.out)
    with pytest.raises(UserError) as error:
        run_quietly(changed(done, description, seed=3))
    message = "run lr0.001: seed: got 3; allowed: 0, as in "
    assert str(error.value) == f"{message}{done.out / 'sweep.json'}, or another --out"
    assert contents(done.out) == before


def test_a_run_that_is_left_out_is_refused(done: sweep.Sweep, description: dict) -> None:
    with pytest.raises(UserError, match=r"^runs: got \['lr0.001'\]; allowed: those of .*lr0.003"):
        run_quietly(changed(done, description, axes={"optim.lr": [0.001]}))


def test_runs_may_be_added_and_what_changes_no_weight_may_change(
    description: dict, tmp_path: Path
) -> None:
    runs = sweep.resolve({**description, "axes": {"optim.lr": [0.001]}}, tmp_path)
    first = sweep.Sweep(out=tmp_path, runs=runs)
    run_quietly(first)
    kept = (tmp_path / "results" / "lr0.001.json").read_bytes()
    outcome, said = run_quietly(changed(first, description, keep=1))
    assert [result["status"] for result in outcome.results.values()] == ["finished"] * 2
    assert not any("lr0.001 begins" in text for text in said)
    assert (tmp_path / "results" / "lr0.001.json").read_bytes() == kept
    assert [line["run"] for line in lines(tmp_path)] == ["lr0.001", "lr0.003"]


def test_a_directory_with_something_else_is_left_alone(
    write: Callable, description: dict, tmp_path: Path
) -> None:
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "thesis.tex").write_text("years of work")
    with pytest.raises(UserError, match=r"^out: got '.*'; allowed: a new directory, or one with"):
        run_quietly(load(write, description, tmp_path / "out"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^out: got '.*'; allowed: a directory that can be"):
        run_quietly(load(write, description, tmp_path / "file"))


def test_two_sweeps_cannot_share_a_directory(
    done: sweep.Sweep, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(state, "PATIENCE", 0.2)
    said: list[str] = []
    with (
        state.hold(done.out, print),
        pytest.raises(UserError, match=r"^out: got '.*'; allowed: a directory that no other"),
    ):
        sweep.run_sweep(done, CPU, note=said.append)
    assert said == [f"waiting for {done.out}, which another process uses"]


@pytest.mark.parametrize("name", ["sweep.json", "results/lr0.001.json"])
@pytest.mark.parametrize("text", ["", "[]", '{"format": 9, "runs": {}, "status": "finished"}'])
def test_damaged_files_are_named(description: dict, tmp_path: Path, name: str, text: str) -> None:
    chosen = sweep.Sweep(out=tmp_path, runs=sweep.resolve(two(description), tmp_path))
    state.claim(chosen)
    (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=f"^{tmp_path / name}: ") as error:
        run_quietly(chosen)
    assert "\n" not in str(error.value)


def test_one_slot_for_each_gpu_that_may_be_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert [slot.name for slot in devices.slots()] == ["cuda-0", "cuda-1", "cuda-2", "cuda-3"]
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2, 5")
    assert [slot.environment for slot in devices.slots()] == [
        {"CUDA_VISIBLE_DEVICES": "2"},
        {"CUDA_VISIBLE_DEVICES": "5"},
    ]
    assert len(devices.slots("auto", 1)) == 1
    three = [("cuda-2", "2"), ("cuda-5", "5"), ("cuda-2-2", "2")]  # the third shares the first GPU
    assert [(s.name, *s.environment.values()) for s in devices.slots("auto", 3)] == three
    with pytest.raises(UserError, match="--jobs: got 33; allowed: at most 16 for each of 2 GPUs"):
        devices.slots("auto", 33)
    assert [slot.name for slot in devices.slots("cpu", 2)] == ["cpu-0", "cpu-1"]


def test_processes_share_the_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda pid: set(range(8)))
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    assert devices.threads(2) == 3
    monkeypatch.delenv("OMP_NUM_THREADS")
    assert (devices.threads(1), devices.threads(3), devices.threads(16)) == (8, 2, 1)


def test_the_runs_are_listed(
    command: Callable, write: Callable, description: dict, done: sweep.Sweep
) -> None:
    path = write(two(description))
    code, out, _ = command("sweep", path, "--out", done.out, "--list")
    rows = [row.split() for row in out.splitlines()]
    assert code == 0
    assert rows[0] == ["run", "stream", "shape", "lr", "seed", "steps", "status"]
    assert rows[1] == ["lr0.001", "ldm", "2", "x", "32", "0.001", "0", "6", "finished"]
    listed = command("sweep", path, "--only", "*3", "--list", "--set", "keep=1", "--json")
    (config,) = json.loads(listed.out).values()
    assert Run.from_dict(config).keep == 1
    assert json.loads(command("sweep", path, "--print").out) == two(description)
    assert command("sweep", "rates-debug", "--print").code == 0
    rows = command("sweep", "rates-debug", "--out", done.out.with_name("no"), "--list").out
    assert rows.count(" new\n") == 9


def test_results_for_programs_and_the_curves(
    command: Callable, write: Callable, description: dict, done: sweep.Sweep
) -> None:
    path = write(two(description))
    code, out, _ = command("sweep", path, "--out", done.out, "--json", "--device", "cpu")
    assert code == 0
    assert json.loads(out) == lines(done.out)
    assert (done.out / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_mistakes_of_the_command_are_one_line(
    command: Callable, write: Callable, description: dict, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = write(description)
    for argv, message in {
        ("fly",): "sweep: got 'fly'; allowed: a JSON file, or one of ",
        (path, "--set", "seed"): "--set: got 'seed'; allowed: FIELD=VALUE",
        (path, "--set", "optim.lr=1"): "--set: got 'optim.lr'; allowed: a field that axis",
        (path, "--only", "fly"): "--only: got 'fly'; allowed: a pattern of names such as preln-",
        (path, "--jobs", "0"): "--jobs: got '0'; allowed: a whole number, at least 1, at most ",
        (path, "--device", "tpu"): "--device: got 'tpu'; allowed: auto, cpu, cuda",
    }.items():
        code, out, err = command("sweep", *argv)
        assert (code, out) == (2, "")
        assert err.startswith(f"error: {message}")
        assert err.count("\n") == 1
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert command("sweep", path).err.startswith("error: WORLD_SIZE: got '2'; allowed: 1: ")
