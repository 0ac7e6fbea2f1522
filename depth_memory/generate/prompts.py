"""Prompts: their texts, from the command line or a file, and their token ids."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from depth_memory.errors import UserError, invalid
from depth_memory.files import reason

if TYPE_CHECKING:
    from depth_memory.loading import Loaded

FIELD = "prompt"
"""Of a row of JSON lines."""
ROWS = (".jsonl", ".jsonl.gz", ".jsonl.xz")


def check_text(field: str, text: str) -> str:
    """The text, which bytes that are no text reach as lone surrogates.

    Raises:
        UserError: It cannot be written as UTF-8.
    """
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise no_text(field, error) from None
    return text


def no_text(field: str, error: UnicodeError) -> UserError:
    """The error for bytes that are no text."""
    place = getattr(error, "start", 0)
    return UserError(f"{field}: got bytes that are no text at {place}; allowed: text in UTF-8")


def read(path: Path) -> list[str]:
    """The prompts in a file: one per line, or in the field `prompt` of each row of JSON lines.

    Raises:
        UserError: It cannot be read, has no prompt, or a row has none; names the file and the line.
    """
    found = _rows(path) if path.name.lower().endswith(ROWS) else _lines(path)
    if not found:
        raise UserError(f"{path}: got no prompt; allowed: one per line, or JSON lines in *.jsonl")
    return found


def _rows(path: Path) -> list[str]:
    from depth_memory.data import read_rows

    found = []
    for row, where in read_rows(path):
        if not isinstance(row.get(FIELD), str):
            raise invalid(f"{where}: {FIELD}", row.get(FIELD), "a string")
        found.append(check_text(f"{where}: {FIELD}", row[FIELD]))
    return found


def _lines(path: Path) -> list[str]:
    try:
        text = path.read_text(encoding="utf-8-sig")
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {reason(error)}") from error
    except UnicodeDecodeError as error:
        raise no_text(str(path), error) from None
    return [line for line in text.split("\n") if line.strip()]


def encode(loaded: Loaded, prompts: Sequence[str]) -> list[list[int]]:
    """Token ids of texts and nothing else; an empty one is what follows an end of text.

    Raises:
        UserError: There is no tokenizer, or a text is none.
    """
    for prompt in prompts:
        check_text("prompt", prompt)
    return [loaded.encode(prompt)[0].tolist() for prompt in prompts]


def chat(loaded: Loaded, messages: Sequence[str], *, system: str | None = None) -> list[list[int]]:
    """Token ids of conversations that a user has begun, up to where the answer begins.

    Args:
        loaded: The model, with whose own chat template the conversation is written.
        messages: The user's, each of a conversation of its own.
        system: What comes before each.

    Raises:
        UserError: The model has no template, or the template does not take these messages.
    """
    from depth_memory.loading import load_tokenizer

    for text in (*messages, system or ""):
        check_text("chat", text)
    tokenizer = load_tokenizer(loaded.tokenizer_path)
    if not tokenizer.chat_template:
        allowed = "a model with one (chat_template.jinja, or chat_template in its tokenizer_config)"
        raise UserError(f"chat: got no template at {loaded.tokenizer_path}; allowed: {allowed}")
    first = [] if system is None else [{"role": "system", "content": system}]
    found = []
    for message in messages:
        conversation = [*first, {"role": "user", "content": message}]
        try:
            text = tokenizer.apply_chat_template(
                conversation, tokenize=False, add_generation_prompt=True
            )
        except ImportError as error:
            raise UserError("chat: needs jinja2; install it with pip install jinja2") from error
        # what jinja2 raises for a template that is wrong, or that refuses a role
        except Exception as error:
            raise UserError(f"chat: the template fails: {reason(error)}") from error
        found.append(tokenizer(text, add_special_tokens=False)["input_ids"])
    return found


def ends(loaded: Loaded) -> frozenset[int]:
    """The tokens that end a text: that of the tokenizer, and those of `generation_config.json`.

    A model that was tuned for conversation says there what ends a turn.
    """
    ids = loaded.model.generation_config.eos_token_id
    ids = [] if ids is None else ids if isinstance(ids, list) else [ids]
    return frozenset((loaded.need_tokenizer().end_id, *ids))


def check_lengths(prompts: Sequence[Sequence[int]], tokens: int, limit: int) -> None:
    """Refuse a text longer than the positions that the model knows.

    Args:
        prompts: Token ids.
        tokens: That may follow each.
        limit: Positions.

    Raises:
        UserError: Names the prompt, if there are several, and the numbers.
    """
    for i, ids in enumerate(prompts, start=1):
        number = "" if len(prompts) == 1 else f" {i}"
        if len(ids) >= limit:
            allowed = f"at most {limit - 1}: the position limit less 1"
            raise invalid(f"prompt{number}: tokens", len(ids), allowed)
        if len(ids) + tokens > limit:
            left = f"the position limit {limit} less the prompt{number}'s {len(ids)}"
            raise invalid("tokens", tokens, f"at most {limit - len(ids)}: {left}")
