"""The training loop: one function, the same for one process and for many.

A step is a pure function of the weights, the optimiser's state, the configuration and the step's
number: data order and randomness are computed from it. A resumed run therefore repeats the
interrupted one to the bit.
"""

from __future__ import annotations

import signal
import time
from collections.abc import Generator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, NoReturn

import torch

from depth_memory.errors import Stopped
from depth_memory.tensors import Part
from depth_memory.train import (
    checkpoint,
    directory,
    files,
    loggers,
    optim,
    origin,
    provenance,
)
from depth_memory.train.build import prepare
from depth_memory.train.config import Run
from depth_memory.train.corpus import Corpus, open_corpus
from depth_memory.train.evaluate import Evaluation, evaluate
from depth_memory.train.export import check_replaceable, export, texts
from depth_memory.train.loss import head_of
from depth_memory.train.origin import Network
from depth_memory.train.parallel import World, connect
from depth_memory.train.progress import Progress
from depth_memory.train.report import Report
from depth_memory.train.saver import Saver
from depth_memory.train.step import Session, update
from depth_memory.train.stop import Request, listening
from depth_memory.train.throughput import meter
from depth_memory.train.watch import Watch

FAILED = 2**10
"""Stands for a failed checkpoint where processes agree; no signal has this number."""


@dataclass(frozen=True, kw_only=True)
class Result:
    """What a finished run leaves."""

    out: Path
    model: Path
    """Directory for `from_pretrained`."""
    step: int
    evaluation: Evaluation
    """Of the final weights, on the validation split."""
    skipped: tuple[str, ...]
    """Damaged checkpoints that the resume passed over, and why."""


def train(run: Run, *, resume: directory.Resume = "auto", show: bool | Progress = True) -> Result:
    """Train, or go on training, until `run.steps`; then evaluate and write `out/model`.

    Under `torchrun` every process calls it with the same run.

    Args:
        run: What to do.
        resume: `auto` goes on from the newest usable checkpoint in `run.out`, `never` wants an
            unused directory, `always` wants a checkpoint.
        show: Whether progress is shown, on standard error; or what takes it instead.

    Returns:
        Where the model is, and how good.

    Raises:
        UserError: A field, the data, the directory, a checkpoint or the disk; nothing that was
            there is lost.
        NonFiniteError: Loss or gradient stopped being finite; names step, place and the last good
            checkpoint.
    """
    began = time.perf_counter()
    run.validate()
    run = directory.located(run)
    with ExitStack() as stack:
        stack.enter_context(files.refusals_explained(run.out))
        world = stack.enter_context(connect(run.device, 2 * run.timeout))
        watch = stack.enter_context(Watch(world, run.timeout))
        stack.enter_context(_own_randomness(world.device))
        run.rows_per_process(world.size)
        world.do(lambda: loggers.check(run.loggers))
        corpus = open_corpus(run, world)
        world.do(lambda: stack.enter_context(directory.lock(run.out)))
        start = directory.Start(
            **world.do(lambda: asdict(directory.find_start(run, corpus.identity, resume)))
        )
        world.do(lambda: check_replaceable(run.out / "model"))
        source = world.do(lambda: origin.examine(run, start, corpus.train))
        saver = stack.enter_context(Saver(world, beside=run.async_save))
        fresh = start.checkpoint is None and run.origin is None
        session = _prepare(run, world, corpus, origin.network_of(run, start), saver, fresh=fresh)
        _begin(session, start, source)
        report = stack.enter_context(Report(run, start.step, world, show=show))
        for text in start.skipped:
            report.note(f"skipped damaged checkpoint {text}")
        if start.step:
            report.note(f"going on from step {start.step}")
        evaluation = _steps(session, start.step, report, began, watch)
        world.do(lambda: _export(session))
    return Result(
        out=run.out,
        model=run.out / "model",
        step=run.steps,
        evaluation=evaluation,
        skipped=tuple(start.skipped),
    )


def _prepare(
    run: Run, world: World, corpus: Corpus, network: Network | None, saver: Saver, *, fresh: bool
) -> Session:
    vocab_size, tokenizer = corpus.train.vocab_size, corpus.train.tokenizer
    config = None if network is None else network.config
    model, weights = prepare(run, vocab_size, tokenizer.end_id, world, config, fresh=fresh)
    return Session(
        run=run,
        world=world,
        corpus=corpus,
        model=model,
        weights=weights,
        optimizer=optim.build(weights.named, run.optim),
        network=network,
        texts=texts(run, vocab_size, tokenizer, network),
        saver=saver,
        head=head_of(run.loss_chunk, compiled=run.compile),
        meter=meter(
            model,
            length=run.length,
            precision=run.precision,
            device=world.device,
            devices=world.size,
        ),
    )


def _begin(session: Session, start: directory.Start, source: dict[str, Any] | None) -> None:
    """Load what to start from, if anything, and note the session in `run.json`."""
    run, world, named = session.run, session.world, session.weights.named
    if start.checkpoint is not None:
        checkpoint.restore(Path(start.checkpoint), named, session.optimizer, world)
    elif run.origin is not None:
        origin.load_(named, run.origin, world)
    session.weights.publish()
    parameters = sum(p.numel() for p in named.values())
    facts = {
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "from_step": start.step,
        "processes": world.size,
        "device": provenance.device_name(world.device),
        "parameters": parameters,
        "skipped": list(start.skipped),
        "commit": provenance.commit(),
        "versions": provenance.versions(),
    }
    world.do(lambda: directory.claim(run, session.corpus.identity, facts, start, source))


def _steps(session: Session, first: int, report: Report, began: float, watch: Watch) -> Evaluation:
    """Every step from `first` on, with its evaluation, record and checkpoint when they are due.

    The first record of a session also says how long it took from `began` to the end of its first
    step.
    """
    run, once = session.run, {}
    evaluation = None
    with listening() as request:
        for step in range(first, run.steps):
            done = step + 1
            with watch.step(done):
                record = update(session, step)
            if step == first:
                once = {"seconds_to_first_step": round(time.perf_counter() - began, 3)}
            evaluation = _evaluate(session) if _due(done, run.eval_every, run.steps) else None
            with watch.step(done):
                asked = _agree(session, request)
            if evaluation is not None:
                record |= {
                    "validation_loss": evaluation.loss,
                    "bits_per_byte": evaluation.bits_per_byte,
                }
            report.show(record)
            if evaluation is not None or _due(done, run.log_every, run.steps):
                report.write(record | once)
                once = {}
            if asked or _due(done, run.save_every, run.steps):
                _save(session, done, records=report.sync())
            if asked:
                _stop(session, done, asked, report)
        # what came during the last evaluation and save must not be lost
        if asked := _agree(session, request):
            _stop(session, run.steps, asked, report)
    session.saver.settle()
    return _evaluate(session) if evaluation is None else evaluation


def _agree(session: Session, request: Request) -> int:
    """The signal by which any process was asked to stop, 0 if none was.

    Raises:
        UserError: The checkpoint that is written beside the steps has failed.
    """
    asked = session.world.most(FAILED if session.saver.failed else request.number)
    if asked == FAILED:
        session.saver.settle()
    return asked


def _stop(session: Session, done: int, number: int, report: Report) -> NoReturn:
    session.saver.settle()
    saved = session.run.out / "checkpoints" / f"step-{done:08d}"
    why = f"stopped by {signal.Signals(number).name} after step {done}"
    report.note(f"{why}, saved as {saved}; go on with the same command")
    raise Stopped(128 + number)


def _evaluate(session: Session) -> Evaluation:
    run, world = session.run, session.world
    return evaluate(
        session.model,
        session.corpus.validation,
        length=run.length,
        rows=run.rows_per_process(world.size) // run.accumulate,
        windows=run.eval_windows,
        by=run.eval_by,
        world=world,
        head=session.head,
    )


def _save(session: Session, step: int, *, records: int) -> None:
    run = session.run
    weights, moments = checkpoint.collect(session.weights.named, session.optimizer)
    count = len(weights)
    facts: dict[str, Any] = {
        "config": run.as_dict(),
        "data": session.corpus.identity,
        "versions": provenance.versions(),
        "records": records,
    }

    def write(parts: Sequence[Part]) -> None:
        checkpoint.save(
            run.out / "checkpoints",
            step,
            weights=parts[:count],
            moments=parts[count:],
            texts=session.texts,
            facts=facts,
            keep=run.keep,
        )

    session.saver.save([*weights, *moments], write)


def _export(session: Session) -> None:
    run, split = session.run, session.corpus.train
    source = checkpoint.listed(run.out / "checkpoints")[0]
    target = run.out / "model"
    export(run, source, target, split.vocab_size, split.tokenizer, session.network)


def _due(done: int, every: int, steps: int) -> bool:
    return done == steps or (every > 0 and done % every == 0)


@contextmanager
def _own_randomness(device: torch.device) -> Generator[None]:
    """Leave torch's global generators as they were."""
    with torch.random.fork_rng([device] if device.type == "cuda" else []):
        yield
