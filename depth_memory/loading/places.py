"""What a path means: a run, one of its checkpoints, or a saved model."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

from depth_memory.errors import UserError, invalid
from depth_memory.train import Run, checkpoint, directory, export, load_run

KINDS = "a directory of a run, of one of its checkpoints, or of a saved model"

T = TypeVar("T")
Note = Callable[[str], None]
"""Is told what a user may want to know."""


class GoneError(UserError):
    """Weights were removed between the choice and the reading of them."""


def silent(text: str) -> None:
    """Tell nobody."""
    del text


@contextmanager
def held(folder: Path) -> Generator[None]:
    """Say that the folder has gone, where that is why something failed.

    Raises:
        GoneError: It has.
    """
    try:
        yield
    except (UserError, OSError) as error:
        if folder.exists():
            raise
        why = "a run in progress removes its older checkpoints"
        raise GoneError(f"{folder}: has gone since it was chosen; {why}") from error


def use_newest(path: Path, use: Callable[[Path], T], note: Note, tries: int = 3) -> T:
    """Use what `path` means; its next choice where training removed that in the meantime."""
    folder = locate(path, note)
    try:
        with held(folder):
            return use(folder)
    except GoneError:
        if tries == 1 or folder == path:
            raise
    return use_newest(path, use, note, tries - 1)


def locate(path: Path, note: Note = silent, *, name: str = "model") -> Path:
    """The directory with the weights that `path` means.

    For a run that is its final model, or its newest usable checkpoint where that is newer.

    Args:
        path: Of a run, a checkpoint or a saved model.
        note: Is told which step of an unfinished run that is, and of damaged checkpoints.
        name: What the user calls the path, for errors.

    Raises:
        UserError: There are no weights, or they are damaged.
    """
    if (path / directory.RUN).exists():
        return _of_run(path, note, name)
    if (path / checkpoint.STATE).exists():
        problem, _ = checkpoint.examine(path)
        if problem is not None:
            raise UserError(f"{path}: damaged checkpoint: {problem}")
        return path
    if not (path / "config.json").exists():
        raise invalid(name, str(path), KINDS)
    return path


def _of_run(path: Path, note: Note, name: str) -> Path:
    """The newer of a run's final model and its newest usable checkpoint; says if it goes on."""
    steps, final, root = load_run(path).steps, path / "model", path / "checkpoints"
    step = export.step_of(final) if final.exists() else None
    found, skipped = checkpoint.search(root, after=-1 if step is None else step)
    if found is None and not final.exists():
        checkpoint.newest(root)  # says what is wrong with those there are
        raise invalid(name, str(path), "a run that has saved a checkpoint")
    for text in skipped:
        note(f"skipped damaged checkpoint {text}")
    if found is not None:
        final, step = found.path, found.manifest["step"]
    if step is not None and step != steps:
        note(f"{path}: step {step} of {steps}, from {final.name}")
    return final


def run_of(folder: Path) -> Run | None:
    """The run in whose directory `folder` lies, as its model or one of its checkpoints."""
    for parent in list(folder.resolve().parents)[:2]:
        if (parent / directory.RUN).exists():
            return load_run(parent)
    return None
