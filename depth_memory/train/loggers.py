"""Where metrics go beside `metrics.jsonl`. Each needs its extra and is imported on demand."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from depth_memory.errors import invalid
from depth_memory.train.metrics import Record

MODULES = {
    "tensorboard": "torch.utils.tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
}


class Sink(NamedTuple):
    """A logger: takes a step with its values, and is closed at the end."""

    log: Callable[[int, Record], None]
    close: Callable[[], None]


def check(names: Sequence[str]) -> None:
    """Import what the loggers need.

    Raises:
        UserError: One is not installed; names the extra that installs it.
    """
    for name in names:
        try:
            importlib.import_module(MODULES[name])
        except ImportError as error:
            allowed = f"it after pip install 'depth-memory[{name}]'"
            raise invalid("loggers", name, allowed) from error


def open_sink(name: str, *, out: Path, config: Any, step: int) -> Sink:
    """Start a logger.

    Args:
        name: A key of `MODULES`.
        out: Directory of the run; its name identifies the run, so that a resume continues it.
        config: The run's configuration as JSON values.
        step: The last step that the run has; what the logger has beyond it is dropped if it can.
    """
    module = importlib.import_module(MODULES[name])
    if name == "tensorboard":
        return _tensorboard(module, out, step)
    run = _identity(out)
    options = {"resume": "allow", "config": config}
    if name == "wandb":
        module.init(project="depth-memory", id=run, name=out.name, dir=str(out), **options)
    else:
        module.init(project="depth-memory", name=run, **options)
    return Sink(log=lambda at, values: module.log(values, step=at), close=module.finish)


def _tensorboard(module: Any, out: Path, step: int) -> Sink:
    writer = module.SummaryWriter(str(out / "tensorboard"), purge_step=step + 1)

    def log(at: int, values: Record) -> None:
        for key, value in values.items():
            writer.add_scalar(key, value, at)

    return Sink(log=log, close=writer.close)


def _identity(out: Path) -> str:
    """A name for the run that is the same after a resume."""
    return "-".join(out.resolve().parts[-2:]).replace("/", "")
