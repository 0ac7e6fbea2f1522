"""How fast the 400M presets train on one GPU and on several, and a kill that changes nothing.

    python device/train.py OUT [--data DIR] [--rows 16] [--gpus 1 2] [--steps 30]
    python device/train.py OUT --dry          # the same on the CPU with gloo, tiny

`speed`: every method on every number of GPUs (FSDP2 from two on), whole steps with their optimiser,
at the same rows per GPU; tokens per second and MFU are medians of the steps after the first ten.
`scaling`: their ratio to one GPU. `resume`: LDM on the most GPUs, killed in the middle of a step
and started again, against the same run left alone. Every record is a line of OUT/train.jsonl,
written as soon as it is known, and the exit code is 0 only if nothing failed. Training is the
library's own `train`; without --data its tokens are random, of the presets' vocabulary.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import statistics
import subprocess
import sys
import threading
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

WARM = 10
"""Steps that are not measured: compilers and allocators settle in them."""
FUSED = {"sites": "block", "impl": "triton", "state_dtype": "bfloat16"}
METHODS: dict[str, dict[str, Any]] = {
    "preln": {"name": "preln"},
    "ldm-dk4": {"name": "ldm", "key_dim": 4, **FUSED},
    "ldm-dk8": {"name": "ldm", "key_dim": 8, **FUSED},
}
TINY: dict[str, Any] = {
    "width": 64, "depth": 2, "heads": 2, "kv_heads": 2, "ffn": 96, "max_length": 64
}  # fmt: skip


def run_of(args: argparse.Namespace, method: str, gpus: int, out: Path) -> Any:
    """The preset, with what this script changes."""
    from depth_memory import presets, streams
    from depth_memory.train import DataSpec, ScheduleSpec

    base, stream = presets.get("llama-400m-preln"), dict(METHODS[method])
    model = base.model
    if args.dry:
        stream |= {"impl": "reference"} if "impl" in stream else {}
        model = replace(model, **TINY)
    steps = args.steps + WARM
    return replace(
        base,
        model=replace(model, stream=streams.resolve(stream)),
        data=DataSpec(directory=args.data),
        schedule=ScheduleSpec(warmup=steps),
        steps=steps + 2,
        rows=args.rows * args.accumulate * gpus,
        accumulate=args.accumulate,
        length=model.max_length,
        device="cpu" if args.dry else "cuda",
        compile=not args.dry,
        eval_every=0,
        eval_windows=gpus,
        save_every=0,
        log_every=1,
        out=out,
    )


def launch(args: argparse.Namespace, run: Any, gpus: int, **job: Any) -> dict[str, Any]:
    """Train in processes of its own; exit code, seconds, and the last lines that were printed."""
    path = run.out.with_suffix(".json")
    path.write_text(json.dumps({"run": run.as_dict(), **job}))
    worker = [str(Path(__file__).resolve()), "--worker", str(path)]
    command = [sys.executable, *worker]
    if gpus > 1:
        several = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(gpus)]
        command = [sys.executable, *several, *worker]
    began = time.time()
    log = run.out.with_suffix(".log")
    # what cuBLAS asks for to be deterministic
    env = {**os.environ, "CUBLAS_WORKSPACE_CONFIG": ":4096:8"} if job["deterministic"] else None
    with log.open("a") as file:
        done = subprocess.run(
            command, stdout=file, stderr=subprocess.STDOUT, timeout=args.limit, env=env
        )
    lines = log.read_text().splitlines()[-15:]
    return {"code": done.returncode, "seconds": round(time.time() - began, 1), "log": lines}


def work(path: Path) -> None:
    """A worker: train what `path` says; the first process may kill itself, at once or in a step."""
    import torch

    from depth_memory.train import Run, train
    from depth_memory.train.progress import Progress

    job = json.loads(path.read_text())
    if job["deterministic"]:
        torch.use_deterministic_algorithms(True, warn_only=True)

    def update(record: dict[str, Any]) -> None:
        if record["step"] % 5 == 0:
            print(record, flush=True)
        if record["step"] == job["stop_at"]:
            os._exit(9)  # measured: no need to save
        if record["step"] == job["kill_at"]:
            middle = 0.4 * record["tokens"] / record["tokens_per_second"]
            threading.Timer(middle, os.kill, (os.getpid(), signal.SIGKILL)).start()

    train(Run.from_dict(job["run"]), show=Progress(update, print, lambda: None))


def records_of(run: Any) -> list[dict[str, Any]]:
    """What the run logged, by step."""
    from depth_memory.train import read_metrics

    return read_metrics(run.out / "metrics.jsonl")


def facts_of(run: Any) -> dict[str, Any]:
    """Device, versions and commit, as `run.json` has them."""
    sessions = json.loads((run.out / "run.json").read_text())["sessions"]
    return {key: sessions[-1][key] for key in ("device", "versions", "commit", "parameters")}


def speed(args: argparse.Namespace, method: str, gpus: int) -> dict[str, Any]:
    """The row of one method on so many GPUs."""
    run = run_of(args, method, gpus, args.out / f"{method}-{gpus}")
    told = launch(args, run, gpus, stop_at=args.steps + WARM + 1, kill_at=None, deterministic=False)
    row = {"part": "speed", "method": method, "gpus": gpus, "rows_per_gpu": args.rows, **told}
    found = records_of(run)
    measured = [record for record in found if record["step"] > WARM]
    if len(measured) < args.steps:
        return {**row, "holds": False}
    mfu = [record["mfu"] for record in measured if record["mfu"] is not None]
    return {
        **row,
        "accumulate": args.accumulate,
        "length": run.length,
        "tokens_per_second": statistics.median(r["tokens_per_second"] for r in measured),
        "slowest": min(r["tokens_per_second"] for r in measured),
        "fastest": max(r["tokens_per_second"] for r in measured),
        "mfu": statistics.median(mfu) if mfu else None,
        "peak_memory_bytes": measured[-1]["peak_memory_bytes"],
        "seconds_to_first_step": found[0]["seconds_to_first_step"],
        "losses": [found[0]["loss"], found[-1]["loss"]],
        **facts_of(run),
        "log": [],
        "holds": True,
    }


def resume(args: argparse.Namespace, gpus: int) -> dict[str, Any]:
    """The run that was killed in a step against the one left alone."""
    steps = {"steps": 12, "save_every": 4}
    runs = {}
    for name, kill_at in (("alone", None), ("killed", 6)):
        run = replace(run_of(args, "ldm-dk8", gpus, args.out / f"resume-{name}"), **steps)
        run = replace(run, schedule=replace(run.schedule, warmup=4))
        job = {"stop_at": None, "kill_at": kill_at, "deterministic": True}
        told = [launch(args, run, gpus, **job)]
        if kill_at is not None:
            told.append(launch(args, run, gpus, **{**job, "kill_at": None}))
        runs[name] = run, told
    row: dict[str, Any] = {"part": "resume", "gpus": gpus, "kill_at": 6}
    (alone, first), (killed, second) = runs["alone"], runs["killed"]
    row |= {"codes": [told["code"] for told in (*first, *second)]}
    starts = json.loads((killed.out / "run.json").read_text())["sessions"]
    losses = [[r["loss"] for r in records_of(run)] for run in (alone, killed)]
    row |= {
        "from_steps": [start["from_step"] for start in starts],
        "losses": losses,
        "bit_equal": losses[0] == losses[1],
        "largest_difference": max(abs(a - b) for a, b in zip(*losses, strict=True)),
        "seconds": [told["seconds"] for told in (*first, *second)],
        **facts_of(killed),
    }
    died = row["codes"][1] != 0 and row["codes"][0] == row["codes"][2] == 0
    holds = died and row["from_steps"] == [0, 4] and row["largest_difference"] < 1e-3
    return {**row, "log": [] if holds else second[-1]["log"], "holds": holds}


def scaling(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Tokens per second on several GPUs over those on one, at the same rows per GPU."""
    speeds = {(r["method"], r["gpus"]): r.get("tokens_per_second") for r in rows}
    return [
        {"part": "scaling", "method": method, "gpus": gpus, "times": value / speeds[method, 1]}
        for (method, gpus), value in speeds.items()
        if gpus > 1 and value and speeds.get((method, 1))
    ]


def make_data(args: argparse.Namespace) -> Path:
    """Random words, one token each, of the presets' vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    from depth_memory import data, presets

    size = 512 if args.dry else presets.vocab_size("llama-400m-preln")
    words = ["<|endoftext|>", *(f"w{i}" for i in range(1, size))]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, words[0]))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    text, file = args.out / "text", args.out / "tokenizer.json"
    text.mkdir(parents=True)
    backend.save(str(file))
    draw = random.Random(0)
    for i in range(16):
        count = 2_000 if args.dry else 100_000
        (text / f"{i}.txt").write_text(" ".join(draw.choices(words[1:], k=count)))
    data.prepare([text], args.out / "data", tokenizer=file, validation=1)
    shutil.rmtree(text)
    return args.out / "data"


def keep(args: argparse.Namespace, rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    """Write a record, and show it."""
    rows.append(row)
    text = json.dumps(row)
    with (args.out / "train.jsonl").open("a") as file:
        file.write(text + "\n")
    print(text, flush=True)


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("out", type=Path, nargs="?")
    parser.add_argument("--data", type=Path, help="a prepared data directory")
    parser.add_argument("--rows", type=int, default=16, help="rows per GPU and micro-batch")
    parser.add_argument("--accumulate", type=int, default=1, help="micro-batches per step")
    parser.add_argument("--steps", type=int, default=30, help="measured steps")
    parser.add_argument("--gpus", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--methods", nargs="+", default=list(METHODS), choices=METHODS)
    parser.add_argument("--parts", nargs="+", default=["speed", "resume"])
    parser.add_argument("--limit", type=int, default=420, help="seconds of one start")
    parser.add_argument("--dry", action="store_true")
    parser.add_argument("--worker", type=Path)
    return parser.parse_args()


def main() -> int:
    """Run everything; see the module."""
    args = arguments()
    if args.worker is not None:
        work(args.worker)
        return 0
    if args.dry:
        args.rows, args.steps = min(args.rows, 4), min(args.steps, 5)
    args.out.mkdir(parents=True, exist_ok=True)
    args.data = make_data(args) if args.data is None else args.data
    rows: list[dict[str, Any]] = []
    for gpus in args.gpus if "speed" in args.parts else ():
        for method in args.methods:
            keep(args, rows, attempted(speed, args, method, gpus))
    for row in scaling(rows):
        keep(args, rows, row)
    if "resume" in args.parts:
        keep(args, rows, attempted(resume, args, max(args.gpus)))
    for folder in args.out.glob("*/checkpoints"):
        shutil.rmtree(folder.parent)  # gigabytes that the records do not need
    return 0 if all(row.get("holds", True) for row in rows) else 1


def attempted(part: Any, args: argparse.Namespace, *which: Any) -> dict[str, Any]:
    """The record of a part, or why there is none: the parts after it still count."""
    try:
        return part(args, *which)
    except Exception as error:
        reason = f"{type(error).__name__}: {error}"
        return {"part": part.__name__, "of": list(which), "error": reason, "holds": False}


if __name__ == "__main__":
    sys.exit(main())
