"""Tiny saved models of transformers, with a tokenizer, in one file or in several."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers.utils import logging

from depth_memory import data
from tests.models.conftest import ORIGINALS, SHAPE

TEXT = "the sea was calm and old men sat on the wall"


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    level = logging.get_verbosity()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    yield
    logging.set_verbosity(level)


@pytest.fixture(params=list(ORIGINALS))
def family(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def saved(tmp_path: Path) -> Callable[..., Path]:
    """Save a model of transformers; returns its directory."""

    def save(
        family: str = "llama",
        *,
        dtype: torch.dtype = torch.float32,
        shard: str = "5GB",
        name: str = "plain",
        **changes: Any,
    ) -> Path:
        torch.manual_seed(0)
        kind = ORIGINALS[family]
        folder = tmp_path / name
        model = kind(kind.config_class(**(SHAPE | changes))).to(dtype)
        model.save_pretrained(folder, max_shard_size=shard)
        data.train_tokenizer([TEXT], 257).save(folder / "tokenizer.json")
        (folder / "tokenizer_config.json").write_text('{"eos_token": "<|endoftext|>"}')
        return folder

    return save
