"""`depth-memory generate`: what is shown and written, and what is refused."""

import errno
import io
import json
import re
import shutil
import sys
from types import SimpleNamespace

import pytest
import torch

from tests.cli.conftest import assert_refused, contents

pytestmark = pytest.mark.usefixtures("elsewhere")

REPORT = (
    r"(\d+) tokens, [\d.]+ tokens/s\n"
    r"state per token: \d+ bytes of keys and values are kept; \d+ of ldm live within one forward "
    r"pass\n"
)
TEMPLATE = """\
{% for m in messages %}<{{ m.role }}> {{ m.content }} {% endfor %}<answer> """


def test_text_is_streamed_and_its_speed_told(command, run):
    code, out, err = command("generate", run, "--prompt", "the old", "--tokens", 8, "--seed", 3)
    assert code == 0
    assert out.startswith("the old")
    assert re.fullmatch(REPORT, err)
    assert command("generate", run, "--prompt", "the old", "--tokens", 8, "--seed", 3).out == out


def test_it_continues_as_the_library_does(command, run):
    from transformers import AutoModelForCausalLM

    from depth_memory import data

    tokenizer = data.load_tokenizer(run / "model")
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    ids = torch.from_numpy(tokenizer.encode("the hill"))[None]
    for _ in range(6):
        ids = torch.cat([ids, model(ids).logits[:, -1:].argmax(-1)], 1)
    for greedy in (["--greedy"], ["--temperature", 0], ["--greedy", "--cache", "static"]):
        out = command("generate", run, "--prompt", "the hill", "--tokens", 6, *greedy).out
        assert out == tokenizer.decode(ids[0].numpy()) + "\n"


def test_a_prompt_from_standard_input(command, run, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.StringIO("we came\n"))
    out = command("generate", run, "--prompt", "-", "--tokens", 2, "--top-k", 5).out
    assert out.startswith("we came")


def test_it_begins_without_a_prompt(command, run):
    code, out, _ = command("generate", run, "--tokens", 3, "--top-p", 0.9, "--min-p", 0.01)
    assert code == 0
    assert out.endswith("\n")


def test_several_texts_are_whole_and_labelled(command, run):
    options = ["--tokens", 5, "--greedy"]
    prompts = ["the hill", "we", "it was"]
    alone = [command("generate", run, "--prompt", p, *options).out for p in prompts]
    given = [word for p in prompts for word in ("--prompt", p)]
    done = command("generate", run, *given, *options, "--batch", 2)
    assert done.out == "".join(f"== {i}\n{text}" for i, text in enumerate(alone, start=1))
    assert re.fullmatch(REPORT, done.err)[1] == "15"


def test_samples_of_a_prompt(command, run):
    options = ["--prompt", "the", "--tokens", 6, "--temperature", 1.5, "--seed", 4]
    out = command("generate", run, *options, "--samples", 3).out
    found = re.split(r"^== 1, sample \d\n", out, flags=re.M)[1:]
    assert len(set(found)) == 3
    assert all(text.startswith("the") for text in found)
    assert found[0] == command("generate", run, *options).out


def test_prompts_and_results_in_files(command, run, tmp_path):
    prompts = ["the hill", "we\ncame"]
    source, out = tmp_path / "prompts.jsonl", tmp_path / "new" / "texts.jsonl"
    source.write_text("\n".join(json.dumps({"prompt": p}) for p in prompts))
    options = ["--tokens", 5, "--seed", 1, "--samples", 2]
    done = command("generate", run, "--prompts", source, *options, "--out", out)
    assert (done.code, done.out) == (0, f"{out}\n")
    rows = [json.loads(line) for line in out.read_text().splitlines()]
    assert [(row["prompt"], row["sample"]) for row in rows] == [
        (prompt, sample) for prompt in prompts for sample in (0, 1)
    ]
    shown = command("generate", run, "--prompts", source, *options).out
    texts = re.split(r"^== .*\n", shown, flags=re.M)[1:]
    assert texts == [f"{row['prompt']}{row['text']}\n" for row in rows]
    assert all((row["tokens"], row["end"]) == (5, "length") for row in rows)
    assert [path.name for path in out.parent.iterdir()] == ["texts.jsonl"]


def test_a_text_ends_before_a_stop_text(command, run):
    whole = command("generate", run, "--prompt", "the", "--tokens", 8, "--greedy").out
    stop = whole[4:6]
    cut = command("generate", run, "--prompt", "the", "--tokens", 8, "--greedy", "--stop", stop).out
    assert cut == "the" + whole[3 : whole.index(stop, 3)] + "\n"


@pytest.fixture
def talking(run, tmp_path):
    """A model with a chat template, which ends a turn at a token of its own."""
    model = shutil.copytree(run / "model", tmp_path / "model")
    (model / "weights.json").unlink()
    (model / "chat_template.jinja").write_text(TEMPLATE)
    return model


def test_a_conversation(command, talking):
    from depth_memory import generate

    options = ["--tokens", 6, "--greedy"]
    asked = ["--chat", "--system", "be old", "--prompt", "a hill"]
    answer = command("generate", talking, *asked, *options)
    written = "<system> be old <user> a hill <answer> "
    whole = command("generate", talking, "--prompt", written, *options).out
    assert answer.out == whole.removeprefix(written)
    loaded = generate.load(talking)
    (one,) = generate.generate(loaded, written, tokens=6, temperature=0).continuations
    assert answer.out == one.text + "\n"
    turn = one.ids[2]
    path = talking / "generation_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "eos_token_id": [0, turn]}))
    ended = command("generate", talking, *asked, *options)
    assert one.text.startswith(ended.out.rstrip("\n"))
    assert re.fullmatch(REPORT, ended.err)[1] == str(one.ids.index(turn) + 1)


MISTAKES = {
    "no template": (["--chat", "--prompt", "a"], "--chat: got no template at "),
    "no message": (["--chat"], "--prompt: got nothing; allowed: the user's message, with --chat"),
    "system alone": (
        ["--system", "be old"],
        "--system: got 'be old'; allowed: a text, with --chat",
    ),
    "both": (
        ["--prompt", "a", "--prompts", "PROMPTS"],
        "--prompts: got 'PROMPTS'; allowed: a file, without --prompt",
    ),
    "no file": (["--prompts", "nowhere"], "nowhere: cannot be read: No such file or directory"),
    "greedy and a temperature": (
        ["--greedy", "--temperature", "1"],
        "--temperature: got it with --greedy; allowed: one of them",
    ),
    "equal samples": (
        ["--greedy", "--samples", "2"],
        "--samples: got 2; allowed: 1 where the most probable token is taken",
    ),
    "min p": (["--min-p", "2"], "--min-p: got '2'; allowed: at least 0, at most 1"),
    "penalty": (["--repetition-penalty", "0"], "--repetition-penalty: got '0'; allowed: at least"),
    "no stop": (["--stop", ""], "--stop: got ''; allowed: a text that is not empty"),
    "stop that is no text": (["--stop", "\udcff"], "--stop: got bytes that are no text at 0"),
    "unknown cache": (["--cache", "paged"], "--cache: got 'paged'; allowed: auto, dynamic, static"),
    "no batch": (["--batch", "0"], "--batch: got '0'; allowed: a whole number, at least 1"),
    "a long prompt of several": (
        ["--prompt", "a", "--prompt", "the old house " * 100],
        "--prompt 2: tokens: got ",
    ),
    "a long line": (["--prompts", "LONG"], "--prompts 2: tokens: got "),
    "nowhere to write": (["--prompt", "a", "--out", "PROMPTS/new"], "--out: cannot write PROMPTS/"),
}


@pytest.mark.parametrize("case", MISTAKES)
def test_mistakes_write_nothing(command, run, tmp_path, case):
    argv, message = MISTAKES[case]
    (tmp_path / "PROMPTS").write_text("the hill\n")
    (tmp_path / "LONG").write_text("the hill\n" + "the old house " * 100)
    before = contents(tmp_path)
    assert_refused(command("generate", run, *argv), message)
    assert contents(tmp_path) == before


def test_results_are_whole_or_not_there(command, run, tmp_path, monkeypatch):
    from depth_memory.generate import sampling

    calls, choose = [], sampling.choose

    def failing(*given):
        calls.append(given)
        found = choose(*given)
        return found if len(calls) < 8 else torch.full_like(found, sampling.LOST)

    monkeypatch.setattr(sampling, "choose", failing)
    out = tmp_path / "texts.jsonl"
    out.write_text("older\n")
    asked = ["--prompt", "the", "--prompt", "we", "--tokens", 5, "--batch", 1]
    done = command("generate", run, *asked, "--out", out)
    assert (done.code, done.out) == (2, "")
    assert done.lines[-1].endswith("logits: got some not finite; allowed: finite numbers")
    assert out.read_text() == "older\n"
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]


def test_a_full_disk_keeps_what_there_is(command, run, tmp_path, monkeypatch):
    from depth_memory.cli import generate

    def failing(row, **_):
        if row["sample"] == 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return "{}"

    monkeypatch.setattr(generate, "json", SimpleNamespace(dumps=failing))
    out = tmp_path / "texts.jsonl"
    out.write_text("older\n")
    done = command("generate", run, "--tokens", 2, "--samples", 2, "--out", out)
    assert (done.code, done.out) == (1, "")
    assert done.lines[-1] == f"error: {out}: No space left on device"
    assert out.read_text() == "older\n"
    assert [path.name for path in tmp_path.iterdir()] == ["texts.jsonl"]
