"""Prompts in, texts out."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from depth_memory import loading
from depth_memory.errors import UserError
from depth_memory.generate import decode, prompts, sampling
from depth_memory.generate.settings import Settings
from depth_memory.generate.texts import End, Text
from depth_memory.loading import Loaded

Prompts = Sequence[str] | Sequence[Sequence[int]]


@dataclass(frozen=True, kw_only=True)
class Continuation:
    """What a model wrote after a prompt."""

    prompt: int
    """The place of the prompt among all, from 0."""
    sample: int
    """Its number among the continuations of that prompt, from 0."""
    text: str
    """Without the prompt, the token that ended it, and a stop text."""
    ids: tuple[int, ...]
    """Its tokens; with those of a stop text, without the token that ended it."""
    tokens: int
    """How many were computed, with the one that ended it."""
    end: End
    """Why it ended: `end` of text or turn, `stop` text, or `length`."""


@dataclass(frozen=True, kw_only=True)
class Generation:
    """All continuations, by prompt and then by sample; and how long they took together."""

    continuations: tuple[Continuation, ...]
    seconds: float
    """Prompts included."""

    @property
    def tokens(self) -> int:
        """Those computed; what a row does in its batch after its own end does not count."""
        return sum(continuation.tokens for continuation in self.continuations)

    @property
    def tokens_per_second(self) -> float:
        """The speed."""
        return self.tokens / self.seconds


def load(path: str | Path, **options: Any) -> Loaded:
    """Load a run, one of its checkpoints or a saved model; see `depth_memory.loading.load`."""
    return loading.load(path, **options)


def generate(
    loaded: Loaded,
    prompts: str | Prompts,
    settings: Settings | None = None,
    *,
    show: Callable[[Continuation | None, str], None] | None = None,
    **changes: Any,
) -> Generation:
    """Continue prompts.

    Args:
        loaded: The model, from `load`.
        prompts: Texts, or token ids of each such as `chat` gives; or one text.
        settings: How; by default all defaults.
        show: Is told of pieces of text as they come, with `None`, and of each whole continuation
            when it is its turn, with the last piece. Pieces come only where there is one row.
        **changes: Fields of the settings.

    Returns:
        The continuations, and their speed. With the most probable token they are those of each
        prompt alone, and with a seed the same for any size of the batch: up to rounding, which may
        turn a choice between two tokens that are nearly as probable.

    Raises:
        UserError: A text is longer than the model's positions, there is no tokenizer, a setting is
            out of range, or logits are not finite.
    """
    settings = replace(settings or Settings(), **changes)
    began = time.perf_counter()
    found = []
    for piece, done in _run(loaded, _encoded(loaded, prompts), settings):
        if show is not None:
            show(done, piece)
        if done is not None:
            found.append(done)
    seconds = time.perf_counter() - began
    return Generation(continuations=tuple(found), seconds=seconds)


def stream(
    loaded: Loaded, prompt: str | Sequence[int], settings: Settings | None = None, **changes: Any
) -> Iterator[str]:
    """The pieces of a prompt's continuation, as they come; arguments and errors as in `generate`.

    Raises:
        UserError: As `generate`; also where more than one sample is asked for.
    """
    settings = replace(settings or Settings(), **changes)
    if settings.samples != 1:
        raise UserError(f"samples: got {settings.samples}; allowed: 1 where a text is streamed")
    given: Any = [prompt]
    rows = _encoded(loaded, given)
    return (piece for piece, _ in _run(loaded, rows, settings) if piece)


def _encoded(loaded: Loaded, given: str | Prompts) -> list[list[int]]:
    texts: Any = [given] if isinstance(given, str) else given
    if all(isinstance(text, str) for text in texts):
        return prompts.encode(loaded, texts)
    return prompts.check_ids(texts, loaded.model.config.vocab_size)


def _run(
    loaded: Loaded, given: list[list[int]], settings: Settings
) -> Generator[tuple[str, Continuation | None]]:
    """Pieces of the text, and each continuation with its last piece, in order."""
    prompts.check_lengths(given, settings.tokens, loaded.limit)
    rows = [(i, j) for i in range(len(given)) for j in range(settings.samples)]
    ends = prompts.ends(loaded)
    for start in range(0, len(rows), settings.batch):
        group = rows[start : start + settings.batch]
        texts = [Text(loaded.need_tokenizer(), given[i], ends, settings.stop) for i, _ in group]
        pieces = _batch(loaded, [given[i] for i, _ in group], group, texts, settings)
        if len(rows) == 1:
            yield from ((piece, None) for piece in pieces)
            yield "", _continuation(rows[0], texts[0])
            return
        for _ in pieces:
            pass
        for row, text in zip(group, texts, strict=True):
            yield text.text, _continuation(row, text)


def _batch(
    loaded: Loaded,
    given: list[list[int]],
    rows: list[tuple[int, int]],
    texts: list[Text],
    settings: Settings,
) -> Generator[str]:
    """Continue the rows of a batch until all have ended; yields the pieces of the first."""
    uniform = None if settings.greedy else sampling.draws(settings.seed, rows, settings.tokens)
    steps = decode.tokens(loaded.model, given, settings, uniform)
    for step, chosen in enumerate(steps, start=1):
        for row, (text, token) in enumerate(zip(texts, chosen, strict=True)):
            if text.end is not None:
                continue
            if token == sampling.LOST:
                message = "logits: got some not finite; allowed: finite numbers"
                raise UserError(f"{loaded.path}: {message}")
            piece = text.add(token, last=step == settings.tokens)
            if row == 0:
                yield piece
        if all(text.end is not None for text in texts):
            return


def _continuation(row: tuple[int, int], text: Text) -> Continuation:
    assert text.end is not None
    return Continuation(
        prompt=row[0],
        sample=row[1],
        text=text.text,
        ids=tuple(text.ids),
        tokens=text.count,
        end=text.end,
    )
