"""Every mistake is one line that names the field, what it got and what is allowed; exit code 2."""

import json

import pytest

from tests.cli.conftest import assert_refused, contents

pytestmark = pytest.mark.usefixtures("elsewhere")
TRAIN = ["train", "debug", "--print-config"]

LONG = 300 * "a"

WRONG_ARGUMENTS = {
    "no command": ([], "COMMAND: got nothing"),
    "unknown command": (["fly"], "COMMAND: got 'fly'; allowed: 'train', "),
    "unknown option": (["doctor", "--fast"], "argument: got '--fast'; allowed: "),
    "abbreviated option": (["presets", "--js"], "argument: got '--js'; allowed: "),
    "no preset": (["train"], "PRESET: got nothing"),
    "unknown preset": (["train", "fly"], "preset: got 'fly'; allowed: debug, demo, depth"),
    "unknown preset to list": (["presets", "fly"], "preset: got 'fly'; allowed: debug, "),
    "unknown preset to explain": (["train", "fly", "--help"], "preset: got 'fly'; allowed: "),
    "unknown stream": ([*TRAIN, "--stream", "fly"], "stream: got 'fly'; allowed: attnres, "),
    "no stream": ([*TRAIN, "--stream"], "--stream: got nothing; allowed: "),
    "unknown field": ([*TRAIN, "--optim.lrr", "1"], "argument: got '--optim.lrr'; allowed: "),
    "unknown field with =": ([*TRAIN, "--nosuch=1"], "argument: got '--nosuch'; allowed: "),
    "unknown option with =": (["doctor", "--fast=1"], "argument: got '--fast'; allowed: "),
    "long name of a run": (["train", "debug", "--out", LONG], f"out: got '{LONG[:190]}"),
    "long name of a source": (
        ["convert", LONG, "--out", "new", "--stream", "ldm"],
        f"source: got '{LONG[:190]}",
    ),
    "long name of rows": (["bench", "model", "--out", LONG], "--out: cannot read aaa"),
    "field of another stream": ([*TRAIN, "--model.stream.lanes", "3"], "argument: got '--model."),
    "no value": ([*TRAIN, "--steps"], "--steps: got nothing; allowed: one argument"),
    "not a number": ([*TRAIN, "--optim.lr", "high"], "optim.lr: got 'high'; allowed: a finite"),
    "not a whole number": ([*TRAIN, "--steps", "1.5"], "steps: got 1.5; allowed: a whole number"),
    "not true or false": (
        [*TRAIN, "--compile", "yes"],
        "compile: got 'yes'; allowed: true or false",
    ),
    "not a choice": ([*TRAIN, "--model.family", "gpt"], "model.family: got 'gpt'; allowed: llama"),
    "one beta": ([*TRAIN, "--optim.betas", "0.9"], "optim.betas: got [0.9]; allowed: 2 values"),
    "beta of 1": ([*TRAIN, "--optim.betas", "0.9", "1"], "optim.betas: got (0.9, 1.0); allowed: "),
    "infinite rate": ([*TRAIN, "--optim.lr", "Infinity"], "optim.lr: got inf; allowed: a finite"),
    "rate of 0": ([*TRAIN, "--optim.lr", "0"], "optim.lr: got 0.0; allowed: a number above 0"),
    "negative": (
        [*TRAIN, "--schedule.floor", "-0.5"],
        "schedule.floor: got -0.5; allowed: ",
    ),
    "no steps": ([*TRAIN, "--steps", "0"], "steps: got 0; allowed: at least 1"),
    "groups": ([*TRAIN, "--model.stream.groups", "3"], "stream.groups: got 3; allowed: a divisor"),
    "key_dim": (
        [*TRAIN, "--model.stream.key-dim", "0"],
        "stream.key_dim: got 0; allowed: at least",
    ),
    "text for key_dim": (
        [*TRAIN, "--model.stream.key-dim", "a"],
        "stream.key_dim: got 'a'; allowed",
    ),
    "forgetting": ([*TRAIN, "--model.stream.min-retention", "2"], "stream.min_retention: got 2.0"),
    "importance": (
        [*TRAIN, "--model.stream.importance", "x"],
        "stream.importance: got 'x'; allowed",
    ),
    "lanes": ([*TRAIN, "--stream", "hc", "--model.stream.lanes", "0"], "stream.lanes: got 0"),
    "position limit": (
        [*TRAIN, "--length", "4096"],
        "length: got 4096; allowed: 1 to the position",
    ),
    "unknown logger": (
        [*TRAIN, "--loggers", "paper"],
        "loggers: got 'paper'; allowed: tensorboard",
    ),
    "value for a flag": (
        ["train", "debug", "--print-config=1"],
        "--print-config: got '1'; allowed",
    ),
    "missing model": (["evaluate", "nowhere"], "model: got 'nowhere'; allowed: a directory of"),
    "empty model": (["evaluate", ""], "MODEL: got ''; allowed: a path"),
    "missing data": (["data", "info", "nowhere"], "nowhere: not a prepared corpus"),
    "missing sources": (["data", "prepare", "nowhere", "--out", "new"], "sources: no such"),
    "no out": (["data", "prepare", "nowhere"], "--out: got nothing; allowed: "),
    "no workers": (
        ["data", "prepare", "a", "--out", "b", "--workers", "0"],
        "--workers: got '0'; allowed: a whole number, at least 1, at most ",
    ),
    "bad validation": (
        ["data", "prepare", "a", "--out", "b", "--validation", "some"],
        "--validation: got 'some'; allowed: a share in [0, 1) or a number",
    ),
    "two tokenizers": (
        ["data", "prepare", "a", "--out", "b", "--tokenizer", "c", "--vocab-size", "300"],
        "--vocab-size: got ",
    ),
    "no temperature": (
        ["generate", "nowhere", "--temperature", "-1"],
        "--temperature: got '-1'; allowed: 0, or at least 0.001, at most 1000",
    ),
    "share": (["generate", "a", "--top-p", "0"], "--top-p: got '0'; allowed: a number above 0"),
    "huge seed": ([*TRAIN, "--seed", str(2**63)], f"seed: got {2**63}; allowed: at least 0, at"),
    "thousands of digits": (
        [*TRAIN, "--optim.lr", "9" * 5000],
        "optim.lr: got '999",
    ),
    "more digits than a float holds": (
        [*TRAIN, "--optim.lr", "9" * 400],
        f"optim.lr: got {'9' * 196} ...; allowed: a finite number",
    ),
    "whole with many digits": (
        [*TRAIN, "--seed", "9" * 400],
        f"seed: got {'9' * 196} ...; allowed: at least 0",
    ),
    "huge lanes": (
        [*TRAIN, "--stream", "mhc", "--model.stream.lanes", "1" + "0" * 23],
        "stream.lanes: got 1" + "0" * 23 + "; allowed: at least 1, at most 256",
    ),
    "nested": ([*TRAIN, "--steps", "[" * 100_000], "steps: got '[[[[["),
    "nested and closed": ([*TRAIN, "--steps", "[" * 300 + "]" * 300], "steps: got [[[[[["),
    "empty out": ([*TRAIN, "--out", ""], "out: got ''; allowed: a path"),
    "empty data": ([*TRAIN, "--data.directory", ""], "data.directory: got ''; allowed: a path"),
    "empty origin": ([*TRAIN, "--origin", ""], "origin: got ''; allowed: a path"),
    "huge vocabulary": (
        ["data", "prepare", "a", "--out", "b", "--vocab-size", "99999999999"],
        "--vocab-size: got '99999999999'; allowed: a whole number, at least 1, at most 1048576",
    ),
    "huge validation": (
        ["data", "prepare", "a", "--out", "b", "--validation", "1e400"],
        "--validation: got '1e400'; allowed: a share",
    ),
    "tiny temperature": (
        ["generate", "a", "--temperature", "1e-40"],
        "--temperature: got '1e-40'; allowed: 0, or at least 0.001, at most 1000",
    ),
    "no temperature at all": (["generate", "a", "--temperature", "nan"], "--temperature: got 'na"),
    "huge rows": (["evaluate", "a", "--rows", "9" * 20], "--rows: got '99999999999999999999'; all"),
    "prompt that is no text": (
        ["generate", "a", "--prompt", "a\udcff"],
        "--prompt: got bytes that are no text at 1; allowed: text in UTF-8",
    ),
    "nowhere to write": (["inspect", "nowhere"], "--out: got nothing; allowed: "),
}


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_wrong_arguments(command, tmp_path, case):
    argv, message = WRONG_ARGUMENTS[case]
    assert_refused(command(*argv), message)
    assert list(tmp_path.iterdir()) == []


WRONG_USE = {
    "window above the limit": (
        ["evaluate", "RUN", "--length", "129"],
        "--length: got 129; allowed: at most the position limit 128 of RUN",
    ),
    "unknown split": (["evaluate", "RUN", "--split", "test"], "--split: got 'test'; allowed: t"),
    "unknown device": (["evaluate", "RUN", "--device", "tpu"], "--device: got 'tpu'; allowed: "),
    "data of another tokenizer": (
        ["evaluate", "RUN", "--data", "OTHER"],
        "RUN/model: vocab_size: got 300; allowed: at least the data's",
    ),
    "tokenizer of another size": (
        ["generate", "RUN", "--tokenizer", "OTHER"],
        "--tokenizer: entries: got 307; allowed: at most the model's 300",
    ),
    "no such tokenizer": (["generate", "RUN", "--tokenizer", "nowhere"], "tokenizer: cannot read"),
    "too many tokens": (
        ["generate", "RUN", "--prompt", "the", "--tokens", "128"],
        "--tokens: got 128; allowed: at most 126: the position limit 128 less the prompt's 2",
    ),
    "prompt above the limit": (
        ["generate", "RUN", "--prompt", "the old house " * 100],
        "--prompt: tokens: got ",
    ),
    "text above the limit": (
        ["inspect", "RUN", "--out", "pictures", "--text", "the old house " * 100],
        "--text: tokens: got ",
    ),
    "figure of no format": (
        ["evaluate", "RUN", "--figure", "curves.exe"],
        "--figure: got 'curves.exe'; allowed: a name that ends in one of ",
    ),
    "figure of no run": (
        ["evaluate", "CORPUS", "--figure", "curves.png"],
        "--figure: model: got ",
    ),
    "not a model": (["evaluate", "CORPUS"], "model: got "),
    "directory of another run": (
        ["train", "debug", "--data.directory", "CORPUS", "--out", "RUN", "--optim.lr", "1"],
        "optim.lr: got 1.0; allowed: 0.003, as in ",
    ),
    "directory that is used": (
        ["train", "debug", "--data.directory", "CORPUS", "--out", "RUN", "--resume", "never"],
        "out: got ",
    ),
    "nothing to go on from": (
        ["train", "debug", "--data.directory", "CORPUS", "--out", "new", "--resume", "always"],
        "out: got 'new'; allowed: a directory with a checkpoint",
    ),
    "no such way to resume": (
        ["train", "debug", "--data.directory", "CORPUS", "--out", "new", "--resume", "maybe"],
        "resume: got 'maybe'; allowed: always, auto, never",
    ),
    "data of another run": (
        ["train", "debug", "--data.directory", "OTHER", "--out", "RUN"],
        "data.tokenizer_sha256: got ",
    ),
    "out inside a file": (
        ["train", "debug", "--data.directory", "CORPUS", "--out", "CORPUS/manifest.json/run"],
        "out: got ",
    ),
    "rows longer than the data": (
        ["train", "debug", "--data.directory", "CORPUS", "--length", "9999", "--model.max-length",
         "9999", "--out", "new"],
        "length: got 9999; allowed: at most ",
    ),
    "prepared data that is there": (
        ["data", "prepare", "CORPUS/../texts-0", "--out", "CORPUS"],
        "out: ",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG_USE)
def test_wrong_use_changes_nothing(command, corpus, other_corpus, run, case):
    argv, message = WRONG_USE[case]
    places = {"CORPUS": corpus, "OTHER": other_corpus, "RUN": run}
    for name, place in places.items():
        argv = [argument.replace(name, str(place)) for argument in argv]
        message = message.replace(name, str(place))
    before = contents(run), contents(corpus)
    assert_refused(command(*argv), message)
    assert (contents(run), contents(corpus)) == before


def test_no_gpu(command, run, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = command("evaluate", run, "--device", "cuda")
    assert_refused(done, "--device: got 'cuda'; allowed: auto or cpu")


def test_a_tokenizer_of_the_same_size_that_did_not_make_the_data(command, corpus, run, tmp_path):
    text = (corpus / "tokenizer.json").read_text()
    changed = json.loads(text)
    merges = changed["model"]["merges"]
    merges[0], merges[1] = merges[1], merges[0]
    (tmp_path / "tokenizer.json").write_text(json.dumps(changed))
    done = command("evaluate", run, "--tokenizer", tmp_path / "tokenizer.json")
    assert_refused(done, "tokenizer: got ")


@pytest.mark.parametrize("content", ["", "  \n", None])
def test_a_corpus_without_text(command, tmp_path, content):
    sources = tmp_path / "texts"
    sources.mkdir()
    if content is not None:
        (sources / "a.txt").write_text(content)
    done = command("data", "prepare", sources, "--out", tmp_path / "new", "--tokenizer", "CORPUS")
    assert done.code == 2
    assert len(done.lines) == 1
    assert not (tmp_path / "new").exists()


def test_not_a_number_in_the_data(command, corpus, tmp_path):
    (tmp_path / "texts.jsonl").write_text('{"text": "fine"}\n{"text": NaN}\n')
    argv = ["--out", tmp_path / "new", "--tokenizer", corpus / "tokenizer.json"]
    done = command("data", "prepare", tmp_path / "texts.jsonl", *argv)
    assert_refused(done, f"{tmp_path / 'texts.jsonl'}:2")
    assert not (tmp_path / "new").exists()
