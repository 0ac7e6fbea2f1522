"""One optimiser step of a run: a pure function of weights, optimiser, configuration and number."""

from __future__ import annotations

import math
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from depth_memory.train import checkpoint, diagnose, optim, schedule
from depth_memory.train.config import Run
from depth_memory.train.corpus import Corpus
from depth_memory.train.evaluate import NonFiniteError
from depth_memory.train.loss import Head, add_gradient, shift
from depth_memory.train.metrics import Record
from depth_memory.train.origin import Network
from depth_memory.train.parallel import World, full
from depth_memory.train.precision import Weights
from depth_memory.train.saver import Saver
from depth_memory.train.throughput import Meter

if TYPE_CHECKING:
    from depth_memory.models import DepthForCausalLM


@dataclass(frozen=True, kw_only=True)
class Session:
    """What the steps of a run share."""

    run: Run
    world: World
    corpus: Corpus
    model: DepthForCausalLM
    weights: Weights
    optimizer: torch.optim.Optimizer
    network: Network | None
    texts: dict[str, str]
    saver: Saver
    head: Head
    meter: Meter


def update(session: Session, step: int) -> Record:
    """One optimiser step.

    Returns:
        The record of the step: its number from 1, loss in nats, norm of the gradient before
        clipping, learning rate, tokens predicted, and what the meter reads.
    """
    run, world, began = session.run, session.world, time.perf_counter()
    torch.manual_seed(_seed(run.seed, step, world.rank))
    inputs, targets = _rows(session, step)
    weights = list(session.weights.named.values())
    loss, valid = add_gradient(
        session.model, inputs, targets, pieces=run.accumulate, world=world, head=session.head
    )
    norm = optim.gradient_norm(weights)
    record = {"step": step + 1, "loss": loss.item(), "gradient_norm": full(norm).item()}
    _stop_unless_finite(session, record, inputs, targets)
    optim.clip_(weights, run.optim.clip, norm)
    lr = run.optim.lr * schedule.factor(run.schedule, step, run.steps)
    optim.set_learning_rate(session.optimizer, lr)
    session.optimizer.step()
    session.optimizer.zero_grad()
    session.weights.publish()
    tokens = int(valid.item())  # waits for the device, and so for all of the step
    speed = session.meter.read(tokens, time.perf_counter() - began)
    return {**record, "lr": lr, "tokens": tokens, **speed}


def _rows(session: Session, step: int) -> tuple[Tensor, Tensor]:
    """This process's inputs and targets of a step, int64 [rows, length]."""
    run, world = session.run, session.world
    batch = session.corpus.train.batch(
        step, rows=run.rows, length=run.length, seed=run.seed, rank=world.rank, world=world.size
    )
    return shift(torch.from_numpy(batch).to(world.device))


def _stop_unless_finite(session: Session, record: Record, inputs: Tensor, targets: Tensor) -> None:
    named, world = session.weights.named, session.world
    if not math.isfinite(record["loss"]):
        what = f"loss is {record['loss']}"
        where = diagnose.blame_loss(session.model, named, inputs, targets, world)
    elif not math.isfinite(record["gradient_norm"]):
        what = f"norm of the gradient is {record['gradient_norm']}"
        where = diagnose.blame_gradient(session.model, named, inputs, targets, world)
    else:
        return
    saved = checkpoint.listed(session.run.out / "checkpoints")
    last = f"last good checkpoint: {saved[0]}" if saved else "no checkpoint was saved yet"
    raise NonFiniteError(f"step {record['step']}: {what}; first non-finite: {where}; {last}")


def _seed(seed: int, step: int, rank: int) -> int:
    return int(np.random.SeedSequence((seed, step, rank)).generate_state(1)[0])
