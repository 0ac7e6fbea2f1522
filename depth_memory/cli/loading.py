"""From a path on the command line to a model, and to the data that fits it."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console
from depth_memory.errors import UserError, within

if TYPE_CHECKING:
    from transformers import PreTrainedModel

    from depth_memory.data import TokenData
    from depth_memory.loading import Loaded


OPTIONS = {"device": "--device", "dtype": "--dtype"}
"""What loading calls a field -> where it comes from."""


def add_model(parser: argparse.ArgumentParser, **options: Any) -> None:
    """Add the arguments that `load` takes: model, `--tokenizer` and `--device`."""
    kinds = "a run, one of its checkpoints, or the directory of a saved model"
    parser.add_argument("model", metavar="MODEL", type=arguments.path, help=kinds, **options)
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        type=arguments.path,
        help="a tokenizer.json, where the model has none beside it",
    )
    arguments.add_device(parser)


def load(path: Path, args: argparse.Namespace) -> Loaded:
    """Load a model as the arguments of `add_model` say, and show what there is to know of it."""
    from depth_memory import loading

    options = {"tokenizer": args.tokenizer, "device": args.device}
    with arguments.as_options(OPTIONS):
        return loading.load(path, **options, dtype=_dtype(args), note=console.note)


def load_any(folder: Path, args: argparse.Namespace) -> PreTrainedModel:
    """Load a model of any architecture; see `depth_memory.loading.load_any`."""
    from depth_memory import loading

    with arguments.as_options(OPTIONS):
        return loading.load_any(folder, device=args.device, dtype=_dtype(args))


def _dtype(args: argparse.Namespace) -> str:
    """That of the command, if it lets one choose."""
    return getattr(args, "dtype", "auto")


def locate(path: Path, *, name: str = "model") -> Path:
    """The directory with the weights that `path` means, with what there is to know of it shown."""
    from depth_memory import loading

    return loading.locate(path, console.note, name=name)


def open_split(loaded: Loaded, directory: Path | None, split: str) -> TokenData:
    """A split to run a model on, checked against its tokenizer.

    Args:
        loaded: The model.
        directory: Prepared data; by default that of the model's run, else the embedded corpus.
        split: Its name.

    Raises:
        UserError: The data is not there, is damaged, or was made by another tokenizer; or nothing
            says which data fits.
    """
    from depth_memory import data
    from depth_memory.train.corpus import default_directory

    if directory is None and loaded.run is not None:
        directory = loaded.run.data.directory
    elif directory is None and loaded.tokenizer is None:
        allowed = f"data for this model, or a --tokenizer ({loaded.path} has none)"
        raise UserError(f"--data: got nothing; allowed: {allowed}")
    if directory is None:
        directory = data.ensure_default(default_directory())
    opened = data.open_split(directory, split)
    with within(loaded.path):
        opened.check_vocabulary(loaded.model.config.vocab_size)
    if loaded.tokenizer is not None:
        opened.check_tokenizer(loaded.tokenizer)
    opened.verify()
    return opened
