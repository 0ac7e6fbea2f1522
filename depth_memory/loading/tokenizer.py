"""A tokenizer of transformers, for any model directory."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from depth_memory import data
from depth_memory.errors import UserError
from depth_memory.files import explained, reason

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

TEMPLATE = "chat_template.jinja"
ALLOWED = "a tokenizer with an end-of-text token (eos_token)"


def load_tokenizer(path: Path) -> PreTrainedTokenizerBase:
    """The tokenizer of a directory of transformers, or of a `tokenizer.json`.

    Args:
        path: A directory, whose `tokenizer_config.json` decides as in transformers; or a file, or a
            directory without one, which is read as by `data.load_tokenizer`.

    Raises:
        UserError: Nothing of the kind is there, or the tokenizer has no end-of-text token.
    """
    if (path / "tokenizer_config.json").exists():
        tokenizer = _of_transformers(path)
    else:
        tokenizer = _of_file(path)
    if tokenizer.eos_token_id is None:
        raise UserError(f"tokenizer: got {str(path)!r}, which has none; allowed: {ALLOWED}")
    return tokenizer


def _of_transformers(path: Path) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(path, local_files_only=True, trust_remote_code=False)
    # what transformers and tokenizers raise for files that they cannot read
    except Exception as error:
        raise UserError(f"tokenizer: {path} cannot be loaded: {reason(error)}") from error


def _of_file(path: Path) -> PreTrainedTokenizerBase:
    from transformers import PreTrainedTokenizerFast

    found = data.load_tokenizer(path)
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=found.backend, eos_token=found.end)
    template = path / TEMPLATE
    if template.is_file():
        with explained(template, "cannot be read"):
            tokenizer.chat_template = template.read_text(encoding="utf-8")
    return tokenizer
