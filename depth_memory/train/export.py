"""The trained model as a directory for `from_pretrained`, with its tokenizer."""

from __future__ import annotations

import re
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import torch
from safetensors.torch import load_file

from depth_memory import __version__
from depth_memory.data import Tokenizer
from depth_memory.errors import UserError
from depth_memory.files import read_sealed
from depth_memory.models.export import MODULE
from depth_memory.train import checkpoint, files, precision
from depth_memory.train.build import build_from, build_model
from depth_memory.train.config import Run
from depth_memory.train.origin import Network
from depth_memory.weights import INDEX, MANIFEST, TEXTS, read_manifest, write_manifest

OWN = re.compile(
    r"(model(-\d+-of-\d+)?\.safetensors|"
    + "|".join(map(re.escape, ("config.json", INDEX, MANIFEST, f"{MODULE}.py", *TEXTS)))
    + ")"
)
"""Names of the files that `export` may write."""


def texts(
    run: Run, vocab_size: int, tokenizer: Tokenizer, network: Network | None = None
) -> dict[str, str]:
    """The small files beside the weights of a checkpoint, name to content.

    Those of a pretrained network, if the run goes on from one, go along as they were.
    """
    if network is not None:
        return {"config.json": network.config.to_json_string(), **network.texts}
    with torch.device("meta"):
        model = build_model(run.model, vocab_size, tokenizer.end_id)
    return {"config.json": model.config.to_json_string(), **tokenizer_files(run, tokenizer)}


def tokenizer_files(run: Run, tokenizer: Tokenizer) -> dict[str, str]:
    """`tokenizer.json`, and what lets transformers' `AutoTokenizer` read it."""
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": tokenizer.end,
        "model_max_length": run.model.max_length,
        "clean_up_tokenization_spaces": False,
    }
    return {"tokenizer.json": tokenizer.json, "tokenizer_config.json": files.dumps(config)}


def export(
    run: Run,
    source: Path,
    target: Path,
    vocab_size: int,
    tokenizer: Tokenizer,
    network: Network | None = None,
) -> None:
    """Write `target` from the checkpoint `source`, with the step and the checksums of its weights.

    The weights are what the network computed with: rounded where the run's precision rounds.

    Raises:
        UserError: The disk refused it, or as `check_replaceable`; an older `target` is still there.
    """
    dtype = precision.DTYPES[run.precision]
    weights = {
        name: weight if precision.stays_float32(name) else weight.to(dtype)
        for name, weight in load_file(source / checkpoint.MODEL).items()
    }
    with torch.device("meta"):
        if network is None:
            model = build_model(run.model, vocab_size, tokenizer.end_id)
        else:
            model = build_from(network.config)
    missing, unexpected = model.load_state_dict(weights, strict=False, assign=True)
    model.tie_weights()
    tied = {"lm_head.weight"} if run.model.tie_embeddings else set()
    if unexpected or set(missing) - tied:
        raise UserError(f"{source}: not the weights of this model: {missing} {unexpected}")
    check_replaceable(target)
    with files.replaced_directory(target) as folder:
        with _no_bars():
            model.save_pretrained(folder)
        own = tokenizer_files(run, tokenizer) if network is None else network.texts
        for name, text in own.items():
            (folder / name).write_text(text, encoding="utf-8")
        facts = {"step": checkpoint.step_of(source), "version": __version__}
        write_manifest(folder, facts)


def check_replaceable(target: Path) -> None:
    """Refuse to replace what `export` did not write: its removal would lose it.

    Raises:
        UserError: `target` is no directory, or names the first such file in it.
    """
    if target.is_symlink() or (target.exists() and not target.is_dir()):
        raise UserError(f"out: {target} is not the directory of a model; move it away")
    _, manifest = read_sealed(target / MANIFEST)
    written = manifest.get("files", {})
    for path in sorted(target.iterdir()) if target.exists() else ():
        if path.is_dir() or not (path.name in written or OWN.fullmatch(path.name)):
            advice = "move it away, as the directory is replaced when the run ends"
            raise UserError(f"out: {path} was not written by a run; {advice}")


def step_of(target: Path) -> int | None:
    """The step at which `export` wrote `target`; None if it does not say.

    Raises:
        UserError: What it says was altered.
    """
    return (read_manifest(target) or {}).get("step")


@contextmanager
def _no_bars() -> Generator[None]:
    """Keep transformers from drawing over our progress line."""
    from transformers.utils import logging

    shown = logging.is_progress_bar_enabled()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        if shown:
            logging.enable_progress_bar()
