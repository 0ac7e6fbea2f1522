"""From the tokens of a row to its text, in pieces that are never taken back."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from tokenizers.decoders import DecodeStream

from depth_memory.data import Tokenizer

End = Literal["end", "stop", "length"]
CONTEXT = 16
"""Tokens of the prompt that decide how the first ones after it are written."""


class Text:
    """The continuation of a row. Final.

    A character of several tokens waits for its last one, and what may begin a stop text for the
    token that shows whether it does.
    """

    def __init__(
        self, tokenizer: Tokenizer, prompt: Sequence[int], ends: frozenset[int], stop: Sequence[str]
    ):
        self._tokenizer, self._ends, self._stop = tokenizer, ends, stop
        self._prompt = list(prompt[-CONTEXT:])
        self._stream = DecodeStream(skip_special_tokens=False)
        self._before = "".join(filter(None, map(self._step, self._prompt)))
        self._given = 0
        self.text = ""
        self.ids: list[int] = []
        self.count = 0
        self.end: End | None = None

    def add(self, token: int, *, last: bool) -> str:
        """Take the next token; what there is to show now.

        Args:
            token: Its id.
            last: Whether no other may follow.
        """
        self.count += 1
        if token in self._ends:
            return self._finish("end")
        self.ids.append(token)
        self.text += self._step(token) or ""
        if self._stopped():
            return self._finish("stop")
        return self._finish("length") if last else self._piece(len(self.text) - self._waiting())

    def _step(self, token: int) -> str | None:
        return self._stream.step(self._tokenizer.backend, token)

    def _stopped(self) -> bool:
        """Whether a stop text is there; the text then ends before the first one."""
        places = [place for stop in self._stop if (place := self.text.find(stop, self._given)) >= 0]
        if places:
            self.text = self.text[: min(places)]
        return bool(places)

    def _waiting(self) -> int:
        """Characters at the end with which a stop text may begin."""
        return max((_overlap(self.text[self._given :], stop) for stop in self._stop), default=0)

    def _finish(self, end: End) -> str:
        self.end = end
        if end != "stop":
            # bytes that have waited for the rest of their character
            whole = self._tokenizer.decode([*self._prompt, *self.ids])
            self.text += whole[len(self._before) + len(self.text) :]
        return self._piece(len(self.text))

    def _piece(self, until: int) -> str:
        piece = self.text[self._given : until]
        self._given = until
        return piece


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` with which `stop` begins."""
    longest = min(len(text), len(stop) - 1)
    return next((n for n in range(longest, 0, -1) if text.endswith(stop[:n])), 0)
