"""The data of a run, opened and checked before anything is written."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from depth_memory import data
from depth_memory.data import TokenData
from depth_memory.errors import invalid
from depth_memory.train.config import Run
from depth_memory.train.parallel import World


@dataclass(frozen=True, kw_only=True)
class Corpus:
    """What is trained on, and what is held out."""

    train: TokenData
    validation: TokenData

    @property
    def identity(self) -> dict[str, Any]:
        """What must not change while a run goes on, as JSON values."""
        shards = [
            shard.sha256 for split in (self.train, self.validation) for shard in split.info.shards
        ]
        return {
            "tokenizer_sha256": self.train.tokenizer_sha256,
            "vocab_size": self.train.vocab_size,
            "tokens": self.train.tokens,
            "content": hashlib.sha256("".join(shards).encode()).hexdigest(),
        }


def open_corpus(run: Run, world: World) -> Corpus:
    """Open both splits, the embedded corpus where the run names no directory.

    Raises:
        UserError: The data is missing, damaged, too short for a row of the run, or without the
            separators that its evaluation needs.
    """
    directory = Path(world.do(lambda: str(_locate(run))))
    corpus = Corpus(
        train=data.open_split(directory, "train"),
        validation=data.open_split(directory, "validation"),
    )
    if corpus.validation.tokens < 2:
        raise invalid("data.directory", str(directory), "data with a validation split")
    if run.eval_by == "documents":
        data.beginnings(corpus.validation, run.length)
    corpus.train.batch(0, rows=world.size, length=run.length, seed=run.seed)
    return corpus


def _locate(run: Run) -> Path:
    if run.data.directory is None:
        return data.ensure_default(default_directory())
    if run.data.verify:
        data.verify(run.data.directory)
    return run.data.directory


def default_directory() -> Path:
    """Where the embedded corpus is prepared: the user's cache."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(cache) / "depth-memory" / "prose"
