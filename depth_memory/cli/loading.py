"""From a path on the command line to a model: a run, a checkpoint, or a saved model."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Generator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory.cli import arguments, console, saved
from depth_memory.errors import UserError, choose, invalid

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from transformers import PreTrainedModel

    from depth_memory.data import TokenData, Tokenizer
    from depth_memory.models import DepthForCausalLM
    from depth_memory.train import Run

KINDS = "a directory of a run, of one of its checkpoints, or of a saved model"
PLAIN = ("llama", "qwen3")
DTYPES = ("auto", "float32", "bfloat16", "float16")
"""What weights may be cast to; `auto` leaves them as they were saved."""


class _GoneError(UserError):
    """Weights were removed between the choice and the reading of them."""


@contextmanager
def _held(folder: Path) -> Generator[None]:
    try:
        yield
    except (UserError, OSError) as error:
        if folder.exists():
            raise
        why = "a run in progress removes its older checkpoints"
        raise _GoneError(f"{folder}: has gone since it was chosen; {why}") from error


@dataclass(frozen=True, kw_only=True)
class Loaded:
    """A model, with what lies around it."""

    path: Path
    """The directory that holds the weights."""
    model: DepthForCausalLM
    """On its device, in evaluation mode."""
    tokenizer: Tokenizer | None
    """The one beside the weights, or the one asked for."""
    run: Run | None
    """The run that made it, if it lies where that run left it."""

    @property
    def limit(self) -> int:
        """Positions that the model knows."""
        return self.model.config.max_position_embeddings

    def need_tokenizer(self) -> Tokenizer:
        """The tokenizer.

        Raises:
            UserError: There is none.
        """
        if self.tokenizer is None:
            raise UserError(f"--tokenizer: got nothing; allowed: a file ({self.path} has none)")
        return self.tokenizer

    def encode(self, text: str) -> Tensor:
        """Token ids of a text, [1, length]; an empty one is what follows an end of text.

        Raises:
            UserError: There is no tokenizer.
        """
        import torch

        tokenizer = self.need_tokenizer()
        ids = tokenizer.encode(text).tolist() or [tokenizer.end_id]
        return torch.tensor([ids], device=self.model.device)


def add_model(parser: argparse.ArgumentParser, **options: Any) -> None:
    """Add the arguments that `load` takes: model, `--tokenizer` and `--device`."""
    parser.add_argument("model", metavar="MODEL", type=arguments.path, help=KINDS, **options)
    parser.add_argument(
        "--tokenizer",
        metavar="FILE",
        type=arguments.path,
        help="a tokenizer.json, where the model has none beside it",
    )
    arguments.add_device(parser)


def load(path: Path, *, tokenizer: Path | None = None, device: str = "auto") -> Loaded:
    """Load a model. One of plain transformers gets the ordinary residual as its stream.

    Args:
        path: Of a run, a checkpoint or a saved model.
        tokenizer: A `tokenizer.json`; by default the one beside the weights.
        device: `auto`, `cpu` or `cuda`.

    Raises:
        UserError: Nothing of the kind is there, it is damaged, or the tokenizer does not fit.
    """
    from depth_memory.train.parallel import choose_device

    target = choose_device(choose("--device", device, ("auto", "cpu", "cuda")))
    return _newest(path, lambda folder: _load(folder, tokenizer, target))


def _newest(path: Path, use: Callable[[Path], Loaded], tries: int = 3) -> Loaded:
    """Use what `path` means; its next choice where training removed that in the meantime."""
    folder = locate(path)
    try:
        with _held(folder):
            return use(folder)
    except _GoneError:
        if tries == 1 or folder == path:
            raise
    return _newest(path, use, tries - 1)


def _load(folder: Path, tokenizer: Path | None, device: torch.device) -> Loaded:
    from depth_memory.data import load_tokenizer

    model = _model(folder).to(device).eval()
    source = tokenizer or (folder if (folder / "tokenizer.json").exists() else None)
    found = None if source is None else load_tokenizer(source)
    if found is not None and found.vocab_size > model.config.vocab_size:
        allowed = f"at most the model's {model.config.vocab_size}"
        raise invalid("--tokenizer: entries", found.vocab_size, allowed)
    return Loaded(path=folder, model=model, tokenizer=found, run=_run_of(folder))


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
    opened.check_vocabulary(loaded.model.config.vocab_size)
    if loaded.tokenizer is not None:
        opened.check_tokenizer(loaded.tokenizer)
    opened.verify()
    return opened


def locate(path: Path) -> Path:
    """The directory with the weights that `path` means.

    For a run that is its final model, or its newest usable checkpoint where that is newer.

    Raises:
        UserError: There are no weights, or they are damaged.
    """
    from depth_memory.train import checkpoint, directory

    if (path / directory.RUN).exists():
        return _of_run(path)
    if (path / checkpoint.STATE).exists():
        problem, _ = checkpoint.examine(path)
        if problem is not None:
            raise UserError(f"{path}: damaged checkpoint: {problem}")
        return path
    if not (path / "config.json").exists():
        raise invalid("model", str(path), KINDS)
    return path


def _of_run(path: Path) -> Path:
    """The newer of a run's final model and its newest usable checkpoint; says if it goes on."""
    from depth_memory.train import checkpoint, export, load_run

    steps, final, root = load_run(path).steps, path / "model", path / "checkpoints"
    step = export.step_of(final) if final.exists() else None
    found, skipped = checkpoint.search(root, after=-1 if step is None else step)
    if found is None and not final.exists():
        checkpoint.newest(root)  # says what is wrong with those there are
        raise invalid("model", str(path), "a run that has saved a checkpoint")
    for text in skipped:
        console.note(f"skipped damaged checkpoint {text}")
    if found is not None:
        final, step = found.path, found.manifest["step"]
    if step is not None and step != steps:
        console.note(f"{path}: step {step} of {steps}, from {final.name}")
    return final


def _run_of(folder: Path) -> Run | None:
    """The run in whose directory `folder` lies, as its model or one of its checkpoints."""
    from depth_memory.train import directory, load_run

    for parent in list(folder.resolve().parents)[:2]:
        if (parent / directory.RUN).exists():
            return load_run(parent)
    return None


def load_any(folder: Path, *, device: str = "auto", dtype: str = "auto") -> PreTrainedModel:
    """A causal language model of this package or of transformers, whatever its architecture.

    Args:
        folder: With the weights, as `locate` finds it.
        device: `auto`, `cpu` or `cuda`.
        dtype: One of `DTYPES`.

    Raises:
        UserError: The model is damaged or incomplete, or there is no such device or dtype.
    """
    from depth_memory.train.parallel import choose_device

    target = choose_device(choose("--device", device, ("auto", "cpu", "cuda")))
    with _held(folder):
        return _cast(saved.read(folder), dtype).to(target).eval()


def _cast(model: PreTrainedModel, dtype: str) -> PreTrainedModel:
    import torch

    choose("--dtype", dtype, DTYPES)
    return model if dtype == "auto" else model.to(getattr(torch, dtype))


def _model(folder: Path) -> DepthForCausalLM:
    from depth_memory import models
    from depth_memory.models import DepthForCausalLM

    model = saved.read(folder, [*(f"depth_{name}" for name in PLAIN), *PLAIN])
    return model if isinstance(model, DepthForCausalLM) else models.graft(model, {"name": "preln"})
