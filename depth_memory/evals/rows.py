"""Local rows to rows as the hub's data sets have them, which the harness's definitions read.

A local row is either a row of the hub's data set, or `query`, `choices`, `gold` (for WinoGrande
`context_options`, `continuation`, `gold`), as files of ready-made prompts have it. The text around
a question comes from the harness in both cases.
"""

from __future__ import annotations

from typing import Any

from depth_memory.errors import UserError, invalid

Row = dict[str, Any]


def wikitext(row: Row, where: str) -> Row:
    """WikiText: a page."""
    return {"page": _text(row, "page", where)}


def lambada(row: Row, where: str) -> Row:
    """LAMBADA: a passage whose last word is to be predicted."""
    return {"text": _text(row, "text", where)}


def piqa(row: Row, where: str) -> Row:
    """PIQA: a goal and two solutions."""
    if "query" in row:
        choices, gold = _choices(row, where, 2)
        goal = _question(row, where)
        return {"goal": goal, "sol1": choices[0], "sol2": choices[1], "label": gold}
    texts = {name: _text(row, name, where) for name in ("goal", "sol1", "sol2")}
    return {**texts, "label": _number(row, "label", where, range(2))}


def arc(row: Row, where: str) -> Row:
    """ARC: a question and its choices, usually four."""
    question = _question(row, where) if "query" in row else _text(row, "question", where)
    return {"question": question, **_lettered(row, where)}


def openbookqa(row: Row, where: str) -> Row:
    """OpenBookQA: a stem and four ways to complete it."""
    field = "query" if "query" in row else "question_stem"
    return {"question_stem": _text(row, field, where), **_lettered(row, where)}


def hellaswag(row: Row, where: str) -> Row:
    """HellaSwag: the start of a description and four endings."""
    texts = {name: _text(row, name, where) for name in ("activity_label", "ctx_a")}
    # what is often empty
    texts["ctx_b"] = _text(row, "ctx_b", where, empty=True)
    endings = _texts(row, "endings", where, 4)
    return {**texts, "endings": endings, "label": str(_number(row, "label", where, range(4)))}


def winogrande(row: Row, where: str) -> Row:
    """WinoGrande: a sentence with a gap, and two words for it."""
    if "context_options" in row:
        contexts = _texts(row, "context_options", where, 2)
        # each context whole is an option, which the gap at the very start gives back unchanged
        sentence = f"_ {_text(row, 'continuation', where)}"
        answer = _number(row, "gold", where, range(2)) + 1
    else:
        contexts = [_text(row, name, where) for name in ("option1", "option2")]
        sentence = _text(row, "sentence", where)
        answer = _number(row, "answer", where, range(1, 3))
        if "_" not in sentence:
            raise invalid(f"{where}: sentence", sentence[:40], "text with a gap _")
    option1, option2 = contexts
    return {"sentence": sentence, "option1": option1, "option2": option2, "answer": str(answer)}


def siqa(row: Row, where: str) -> Row:
    """Social IQA: a situation, a question and three answers."""
    names = ("context", "question", "answerA", "answerB", "answerC")
    texts = {name: _text(row, name, where) for name in names}
    return {**texts, "label": str(_number(row, "label", where, range(1, 4)))}


def _question(row: Row, where: str) -> str:
    """The question of a `query`, without the words that the harness puts around it."""
    query = _text(row, "query", where)
    return query.removeprefix("Question: ").removesuffix("Answer:").removesuffix("\n")


def _lettered(row: Row, where: str) -> Row:
    """Choices with labels, and the label of the right one."""
    if "query" in row:
        texts, gold = _choices(row, where)
        labels = [chr(ord("A") + i) for i in range(len(texts))]
        return {"choices": {"text": texts, "label": labels}, "answerKey": labels[gold]}
    inner, field = _field(row, "choices", where), f"{where}: choices"
    if not isinstance(inner, dict):
        raise invalid(field, inner, "an object with text and label")
    texts = _texts(inner, "text", field)
    labels = _texts(inner, "label", field, len(texts))
    key = _text(row, "answerKey", where).lstrip()
    if key not in labels:
        raise invalid(f"{where}: answerKey", key, ", ".join(labels))
    return {"choices": {"text": texts, "label": labels}, "answerKey": key}


def _choices(row: Row, where: str, count: int | None = None) -> tuple[list[str], int]:
    """`choices` and the index of the right one."""
    texts = _texts(row, "choices", where, count)
    return texts, _number(row, "gold", where, range(len(texts)))


def _field(row: Row, name: str, where: str) -> Any:
    if name not in row:
        names = ", ".join(sorted(map(str, row))) or "none"
        raise UserError(f"{where}: no field {name!r}; it has: {names}")
    return row[name]


def _text(row: Row, name: str, where: str, *, empty: bool = False) -> str:
    value = _field(row, name, where)
    if not _is_text(value, empty=empty):
        allowed = "a string of UTF-8" + ("" if empty else ", not empty")
        raise invalid(f"{where}: {name}", _cut(value), allowed)
    return value


def _texts(row: Row, name: str, where: str, count: int | None = None) -> list[str]:
    value = _field(row, name, where)
    known = isinstance(value, list) and all(_is_text(item) for item in value)
    if not known or (len(value) != count if count else len(value) < 2):
        allowed = f"a list of {count or 'at least 2'} strings, none empty"
        raise invalid(f"{where}: {name}", _cut(value), allowed)
    return value


def _is_text(value: object, *, empty: bool = False) -> bool:
    """Whether it is a string, and has no half of a surrogate pair, which JSON can hold."""
    if not isinstance(value, str) or not (empty or value.strip()):
        return False
    return not any("\ud800" <= character <= "\udfff" for character in value)


def _number(row: Row, name: str, where: str, allowed: range) -> int:
    """A whole number, which some data sets keep as text."""
    value = _field(row, name, where)
    known = {str(number): number for number in allowed}
    if isinstance(value, bool) or not isinstance(value, int | str) or str(value) not in known:
        raise invalid(f"{where}: {name}", _cut(value), f"{allowed[0]} to {allowed[-1]}")
    return known[str(value)]


def _cut(value: object) -> object:
    return value if len(str(value)) <= 40 else f"{str(value)[:40]}..."
