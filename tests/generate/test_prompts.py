"""Prompts from files, conversations by the model's own template, and what ends a text."""

from __future__ import annotations

import json

import pytest

from depth_memory.errors import UserError
from depth_memory.generate import chat, generate
from depth_memory.generate.prompts import check_lengths, encode, ends, read

TEMPLATE = """\
{%- for m in messages -%}
{%- if m.role + m.content == 'systemno' -%}{{ raise_exception('no system here') }}{%- endif -%}
{{ '<|' + m.role + '|>' + m.content + '\\n' }}
{%- endfor -%}
{%- if add_generation_prompt -%}{{ '<|assistant|>' }}{%- endif -%}
"""


@pytest.fixture
def talking(make):
    """A model whose directory has a tokenizer and a chat template."""
    loaded = make()
    loaded.tokenizer.save(loaded.path / "tokenizer.json")
    config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"}
    (loaded.path / "tokenizer_config.json").write_text(json.dumps(config))
    (loaded.path / "chat_template.jinja").write_text(TEMPLATE)
    return loaded


def test_a_conversation_is_written_by_the_template(talking):
    found = chat(talking, ["the hill", "a"], system="be old")
    expected = [
        "<|system|>be old\n<|user|>the hill\n<|assistant|>",
        "<|system|>be old\n<|user|>a\n<|assistant|>",
    ]
    assert [talking.tokenizer.decode(ids) for ids in found] == expected
    (without,) = chat(talking, ["a"])
    assert talking.tokenizer.decode(without) == "<|user|>a\n<|assistant|>"
    answers = generate(talking, found, tokens=3, temperature=0).continuations
    alone = generate(talking, expected, tokens=3, temperature=0).continuations
    assert answers == alone


def test_a_special_token_of_a_template_is_one(talking):
    (talking.path / "chat_template.jinja").write_text("{{ messages[0].content }}<|endoftext|>")
    assert chat(talking, ["a"])[0][-1] == talking.tokenizer.end_id
    assert encode(talking, ["a<|endoftext|>"])[0][-1] != talking.tokenizer.end_id


def refused(loaded, **options) -> str:
    with pytest.raises(UserError) as error:
        chat(loaded, ["a"], **options)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_a_model_without_a_template(talking):
    (talking.path / "chat_template.jinja").unlink()
    message = f"chat: got no template at {talking.path}; allowed: a model with one (chat_template"
    assert refused(talking).startswith(message)


def test_a_template_that_refuses(talking):
    assert refused(talking, system="no") == "chat: the template fails: no system here"
    (talking.path / "chat_template.jinja").write_text("{% for %}")
    assert refused(talking).startswith("chat: the template fails: ")


def test_a_template_that_writes_nothing(talking):
    (talking.path / "chat_template.jinja").write_text("{% for m in messages %}{% endfor %}")
    with pytest.raises(UserError, match=r"^prompt: tokens: got 0; allowed: at least 1$"):
        generate(talking, chat(talking, ["a"]))


def test_a_template_beside_a_tokenizer_alone(talking):
    expected = chat(talking, ["a"], system="be old")
    (talking.path / "tokenizer_config.json").unlink()
    assert chat(talking, ["a"], system="be old") == expected
    (talking.path / "chat_template.jinja").write_text("{{ messages[0].content }}<|endoftext|>")
    assert chat(talking, ["a"])[0][-1] == talking.tokenizer.end_id


def test_without_jinja(talking, monkeypatch):
    from transformers import PreTrainedTokenizerFast

    def missing(*_, **__):
        raise ImportError("no jinja2")

    monkeypatch.setattr(PreTrainedTokenizerFast, "apply_chat_template", missing)
    assert refused(talking) == "chat: needs jinja2; install it with pip install jinja2"


@pytest.mark.parametrize(("given", "expected"), [(None, {0}), (7, {0, 7}), ([7, 9], {0, 7, 9})])
def test_ends_of_the_tokenizer_and_of_the_configuration(make, given, expected):
    loaded = make()
    loaded.model.generation_config.eos_token_id = given
    assert ends(loaded) == expected


@pytest.mark.parametrize("given", ["<end>", [[7]], {"a": 1}, [7, 1.5]])
def test_an_end_that_is_no_id(make, given):
    loaded = make()
    loaded.model.generation_config.eos_token_id = given
    with pytest.raises(UserError) as error:
        generate(loaded, "a", tokens=1)
    allowed = "the id of a token, or a list of ids"
    field = f"{loaded.path / 'generation_config.json'}: eos_token_id"
    assert str(error.value) == f"{field}: got {given!r}; allowed: {allowed}"


NO_IDS = {
    "none": ([[]], "prompt: tokens: got 0; allowed: at least 1"),
    "none of several": ([[1], []], "prompt 2: tokens: got 0; allowed: at least 1"),
    "of another tokenizer": ([[1], [2, 270]], "prompt 2: tokens: got 270; allowed: 0 to the mod"),
    "negative": ([[-1]], "prompt: tokens: got -1; allowed: 0 to the model's 269"),
    "no number": ([[1.5]], "prompt: tokens: got [1.5]; allowed: whole numbers; or a text"),
    "of no prompt": ([1, 2], "prompt 1: tokens: got 1; allowed: whole numbers; or a text"),
    "text among ids": ([[1], "a"], "prompt 2: tokens: got 'a'; allowed: whole numbers; or a text"),
}


@pytest.mark.parametrize("case", NO_IDS)
def test_what_is_no_id_of_the_model(make, case):
    given, message = NO_IDS[case]
    with pytest.raises(UserError) as error:
        generate(make(), given, tokens=1)
    assert str(error.value).startswith(message)


def test_an_empty_prompt_follows_an_end_of_text(make):
    assert encode(make(), ["", "a"]) == [[0], [make().encode("a")[0, 0].item()]]


@pytest.mark.parametrize("name", ["a.txt", "a"])
def test_one_prompt_per_line(tmp_path, name):
    (tmp_path / name).write_bytes("\ufeffthe old\n\n  hill ß\r\nlast".encode())
    assert read(tmp_path / name) == ["the old", "  hill ß", "last"]


def test_prompts_in_json_lines(tmp_path):
    rows = [{"prompt": "a\nb"}, {"prompt": "", "id": 3}]
    (tmp_path / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    assert read(tmp_path / "a.jsonl") == ["a\nb", ""]


FILES = {
    "missing": ("a.txt", None, ": cannot be read: No such file"),
    "missing rows": ("a.jsonl", None, ": cannot be read: No such file"),
    "empty": (
        "a.txt",
        b" \n\n",
        ": got no prompt; allowed: one per line, or JSON lines in *.jsonl",
    ),
    "empty rows": ("a.jsonl", b"", ": got no prompt; allowed: "),
    "no text": ("a.txt", b"ab\xff", ": got bytes that are no text at 2; allowed: text in UTF-8"),
    "no row": ("a.jsonl", b"[]", ":1: got list; allowed: a JSON object"),
    "no field": (
        "a.jsonl",
        b'{"prompt": "a"}\n{"text": "a"}',
        ":2: prompt: got None; allowed: a s",
    ),
    "half a pair": ("a.jsonl", b'{"prompt": "\\ud800"}', ":1: prompt: got bytes that are no text"),
}


@pytest.mark.parametrize("case", FILES)
def test_a_file_without_prompts(tmp_path, case):
    name, content, message = FILES[case]
    if content is not None:
        (tmp_path / name).write_bytes(content)
    with pytest.raises(UserError) as error:
        read(tmp_path / name)
    assert str(error.value).startswith(f"{tmp_path / name}{message}")


def test_lengths():
    check_lengths([[1], [1, 2]], 6, 8)
    for prompts, tokens, message in (
        ([[1] * 8], 1, "prompt: tokens: got 8; allowed: at most 7: the position limit less 1"),
        ([[1], [1] * 9], 1, "prompt 2: tokens: got 9; allowed: at most 7: "),
        (
            [[1, 2, 3]],
            6,
            "tokens: got 6; allowed: at most 5: the position limit 8 less the prompt's 3",
        ),
        ([[1], [1, 2, 3]], 6, "tokens: got 6; allowed: at most 5: the position limit 8 less the p"),
    ):
        with pytest.raises(UserError) as error:
            check_lengths(prompts, tokens, 8)
        assert str(error.value).startswith(message)
