"""Kill -9 at random moments, go on, and compare with what nothing interrupted.

    python -m tests.reliability --kills 50 --out results/reliability-cpu.json

Each time a process is killed once: training at any time from its start on, training at any thing
that it asks the disk to do (most of them belong to a save), or the preparation of data, by either
way. The same call then goes on. Weights and records of the run, or the bytes of the prepared data,
must be those of an uninterrupted one. `tests/train/test_reliability.py` does a few of these.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from depth_memory import data
from depth_memory.data import encoding, staging
from depth_memory.train import checkpoint, provenance, train
from tests.killing import die_at
from tests.train.processes import call, start
from tests.train.runs import curve, weights
from tests.train.tiny import WORDS, tiny_run, write_corpus

KINDS = ("train: time", "train: disk", "prepare: time", "prepare: disk")
LIMIT = 120


@dataclass(frozen=True, kw_only=True)
class Attempt:
    """One kill, and what came of it."""

    kind: str
    moment: float
    """Seconds after the start, or the number of a request to the disk."""
    done: int
    """Steps in the newest checkpoint, or documents whose tokens are kept, after the kill."""
    equal: bool
    """Whether what came in the end is what an uninterrupted one leaves, to the bit."""


@dataclass(frozen=True)
class Work:
    """Something to kill."""

    action: Callable[[Path], None]
    done: Callable[[Path], int]
    result: Callable[[Path], dict[str, Any]]


def train_there(corpus: Path, out: Path) -> None:
    """A dozen steps of a tiny LDM, with a checkpoint after every third."""
    train(tiny_run(corpus, out), show=False)


def steps_done(out: Path) -> int:
    found = checkpoint.newest(out / "checkpoints")
    return 0 if found is None else found.manifest["step"]


def trained(out: Path) -> dict[str, Any]:
    """Final weights, and every record but for what was measured."""
    return {"model": weights(out), "records": curve(out)}


def write_texts(folder: Path) -> Path:
    """A few hundred documents, some of them empty, and a tokenizer."""
    draw = random.Random(0)
    texts = [" ".join(draw.choices(WORDS, k=draw.randint(0, 60))) for _ in range(300)]
    folder.mkdir()
    (folder / "texts.jsonl").write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    data.train_tokenizer(WORDS, 257).save(folder / "tokenizer.json")
    return folder


def prepare_there(texts: Path, out: Path) -> None:
    """The documents to shards of 500 tokens, by three workers."""
    encoding.GROUP_BYTES = 256
    options: dict[str, Any] = {"validation": 0.2, "workers": 3, "shard_tokens": 500}
    data.prepare([texts / "texts.jsonl"], out, tokenizer=texts / "tokenizer.json", **options)


def documents_done(out: Path) -> int:
    state = staging.load(staging.place_of(out))
    return 0 if state is None else state.documents


def prepared(out: Path) -> dict[str, Any]:
    """Every file; nothing may be left beside them."""
    assert not staging.place_of(out).exists()
    files = [path for path in out.rglob("*") if path.is_file()]
    return {path.relative_to(out).as_posix(): path.read_bytes() for path in files}


def attempts(folder: Path, kills: int, seed: int) -> list[Attempt]:
    """Kill so many times, at moments that `seed` draws; kinds take turns."""
    corpus, texts = write_corpus(folder / "corpus"), write_texts(folder / "texts")
    works = {
        "train": Work(partial(train_there, corpus), steps_done, trained),
        "prepare": Work(partial(prepare_there, texts), documents_done, prepared),
    }
    call(os.getpid)  # so that the first time measured is not that of all imports
    made, seconds, requests = {}, {}, {}
    for name, work in works.items():
        began = time.monotonic()
        call(work.action, folder / name)
        seconds[name] = time.monotonic() - began
        made[name] = work.result(folder / name)
        requests[name] = call(die_at, -1, work.action, folder / f"{name}-counted")
    found = []
    for i in range(kills):
        kind, draw = KINDS[i % len(KINDS)], random.Random(f"{seed} {i}")
        name, way = kind.split(": ")
        work, out = works[name], folder / str(i)
        limit = seconds[name] if way == "time" else requests[name]
        moment, out = killed(work, out, way, limit, draw)
        done = work.done(out)
        call(work.action, out)
        equal = work.result(out) == made[name]
        found.append(Attempt(kind=kind, moment=moment, done=done, equal=equal))
        print(i + 1, found[-1], file=sys.stderr, flush=True)
    return found


def killed(
    work: Work, out: Path, way: str, limit: float, draw: random.Random
) -> tuple[float, Path]:
    """Begin, and be killed at a moment up to `limit`: when, and in which folder.

    One that ends before is not counted; the next has a folder of its own.
    """
    while True:
        if way == "disk":
            moment = draw.randint(1, int(limit))
            process, _ = start(die_at, moment, work.action, out)
            process.join(LIMIT)
        else:
            moment = round(draw.uniform(0, limit), 4)
            process, _ = start(work.action, out)
            process.join(moment)
            process.kill()
            process.join(LIMIT)
        if process.exitcode == -9:
            return moment, out
        out = out.with_name(out.name + "x")


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    began = time.monotonic()
    with TemporaryDirectory() as folder:
        found = attempts(Path(folder), args.kills, args.seed)
    result = {
        "what": "kill -9 once at a random moment, then the same call again: are the final weights "
        "and records, or the prepared data, those of an uninterrupted one to the bit?",
        "command": f"python -m tests.reliability --kills {args.kills} --seed {args.seed}",
        "commit": provenance.commit(),
        "versions": provenance.versions(),
        "threads": os.environ.get("OMP_NUM_THREADS"),
        "seconds": round(time.monotonic() - began),
        "kills": Counter(attempt.kind for attempt in found),
        "equal": sum(attempt.equal for attempt in found),
        "attempts": [asdict(attempt) for attempt in found],
    }
    args.out.write_text(json.dumps(result, indent=1) + "\n")
    sys.exit(result["equal"] != len(found))


if __name__ == "__main__":
    main()
