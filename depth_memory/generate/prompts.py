"""Prompts: their texts, from the command line or a file, and their token ids."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

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

    Raises:
        UserError: There is no tokenizer, or something there is no id.
    """
    given = loaded.model.generation_config.eos_token_id
    ids = [] if given is None else given if isinstance(given, list) else [given]
    if not all(type(i) is int for i in ids):
        field = f"{loaded.path / 'generation_config.json'}: eos_token_id"
        raise invalid(field, given, "the id of a token, or a list of ids")
    return frozenset((loaded.need_tokenizer().end_id, *ids))


def check_ids(prompts: Sequence[Sequence[int]], entries: int) -> list[list[int]]:
    """Refuse token ids that a model does not know, such as those of another tokenizer.

    Args:
        prompts: Token ids of each.
        entries: Of the model's vocabulary.

    Returns:
        The same, as lists.

    Raises:
        UserError: Names the prompt, if there are several, and the first that is no id; or there is
            none at all, as of a chat template that writes nothing.
    """
    found = []
    for i, prompt in enumerate(prompts, start=1):
        field = f"prompt{_number(i, prompts)}: tokens"
        try:
            ids = [operator.index(token) for token in prompt]
        except TypeError as error:
            raise invalid(field, prompt, "whole numbers; or a text, as all others") from error
        if not ids:
            raise invalid(field, 0, "at least 1")
        wrong = [token for token in ids if not 0 <= token < entries]
        if wrong:
            raise invalid(field, wrong[0], f"0 to the model's {entries - 1}")
        found.append(ids)
    return found


def _number(i: int, prompts: Sequence[Any]) -> str:
    return "" if len(prompts) == 1 else f" {i}"


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
        number = _number(i, prompts)
        if len(ids) >= limit:
            allowed = f"at most {limit - 1}: the position limit less 1"
            raise invalid(f"prompt{number}: tokens", len(ids), allowed)
        if len(ids) + tokens > limit:
            left = f"the position limit {limit} less the prompt{number}'s {len(ids)}"
            raise invalid("tokens", tokens, f"at most {limit - len(ids)}: {left}")
