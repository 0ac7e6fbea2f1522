"""Every mistake is one line that names the field, what it got and what is allowed; exit code 2."""

import errno
import io
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap

import pytest

from depth_memory import cli
from tests.cli.conftest import on, write_texts

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
    "not true or false": ([*TRAIN, "--compile", "yes"], "compile: got 'yes'; allowed: a bool"),
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


def assert_refused(outcome, message):
    """One line on standard error that begins as expected, nothing on standard output, code 2."""
    assert outcome.out == ""
    assert len(outcome.lines) == 1, outcome.err
    assert outcome.lines[0].startswith(f"error: {message}"), outcome.err
    assert outcome.code == 2


@pytest.fixture(autouse=True)
def _elsewhere(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("case", WRONG_ARGUMENTS)
def test_wrong_arguments(command, tmp_path, case):
    argv, message = WRONG_ARGUMENTS[case]
    assert_refused(command(*argv), message)
    assert list(tmp_path.iterdir()) == []


WRONG_USE = {
    "window above the limit": (
        ["evaluate", "RUN", "--length", "129"],
        "--length: got 129; allowed: at most the model's position limit 128",
    ),
    "unknown split": (["evaluate", "RUN", "--split", "test"], "--split: got 'test'; allowed: t"),
    "unknown device": (["evaluate", "RUN", "--device", "tpu"], "--device: got 'tpu'; allowed: "),
    "data of another tokenizer": (["evaluate", "RUN", "--data", "OTHER"], "vocab_size: got 300"),
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


def contents(folder):
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


@pytest.mark.parametrize("case", WRONG_USE)
def test_wrong_use_changes_nothing(command, corpus, other_corpus, run, case):
    argv, message = WRONG_USE[case]
    places = {"CORPUS": corpus, "OTHER": other_corpus, "RUN": run}
    for name, place in places.items():
        argv = [argument.replace(name, str(place)) for argument in argv]
    before = contents(run), contents(corpus)
    assert_refused(command(*argv), message)
    assert (contents(run), contents(corpus)) == before


def test_no_gpu(command, run, monkeypatch):
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    done = command("evaluate", run, "--device", "cuda")
    assert_refused(done, "device: got 'cuda'; allowed: auto or cpu")


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


def cut(path):
    path.write_bytes(path.read_bytes()[:-2])


def flip(path):
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize("damage", [cut, flip])
@pytest.mark.parametrize("file", ["train/00000.npy", "tokenizer.json", "manifest.json"])
def test_damaged_data(command, corpus, tmp_path, damage, file):
    damaged = shutil.copytree(corpus, tmp_path / "damaged")
    damage(damaged / file)
    for argv in (["data", "verify", damaged], ["train", "debug", *on(damaged, tmp_path / "run")]):
        done = command(*argv)
        assert done.code == 2
        assert [line for line in done.lines if line.startswith("error: ")] == done.lines[-1:]
        assert str(damaged) in done.lines[-1]
    assert not (tmp_path / "run" / "run.json").exists()


@pytest.mark.parametrize("damage", [cut, flip])
@pytest.mark.parametrize("file", ["model.safetensors", "state.json"])
def test_a_damaged_checkpoint(command, run, tmp_path, damage, file):
    checkpoint = shutil.copytree(run / "checkpoints" / "step-00000010", tmp_path / "checkpoint")
    damage(checkpoint / file)
    assert_refused(command("evaluate", checkpoint), f"{checkpoint}: damaged checkpoint: {file} ")


def test_a_run_whose_checkpoints_are_all_damaged(command, run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "model")
    for weights in copy.glob("checkpoints/*/model.safetensors"):
        cut(weights)
    assert_refused(command("evaluate", copy), f"{copy / 'checkpoints'}: no usable checkpoint; ")


def test_a_run_with_one_good_checkpoint_is_used(command, run, corpus, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    shutil.rmtree(copy / "model")
    cut(copy / "checkpoints" / "step-00000010" / "model.safetensors")
    done = command("evaluate", copy, "--json", "--windows", 1)
    assert done.code == 0
    assert done.lines[0].startswith("skipped damaged checkpoint step-00000010: ")
    assert json.loads(done.out)[0]["weights"].endswith("step-00000005")


def test_a_run_without_a_checkpoint(command, run, tmp_path):
    (tmp_path / "young").mkdir()
    shutil.copy(run / "run.json", tmp_path / "young" / "run.json")
    assert_refused(command("evaluate", tmp_path / "young"), "model: got ")


def saved_model(run, tmp_path):
    """A model as transformers saves it, without checksums."""
    model = shutil.copytree(run / "model", tmp_path / "model")
    (model / "weights.json").unlink()
    return model


def test_a_saved_model_that_lacks_weights(command, run, tmp_path):
    from safetensors.torch import load_file, save_file

    model = saved_model(run, tmp_path)
    weights = load_file(model / "model.safetensors")
    del weights["model.layers.0.mlp.up_proj.weight"]
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    message = f"{model}: weights are missing: model.layers.0.mlp.up_proj.weight"
    assert_refused(command("generate", model), message)


def test_a_saved_model_with_cut_weights(command, run, tmp_path):
    model = saved_model(run, tmp_path)
    shutil.copy(run / "model" / "weights.json", model)
    cut(model / "model.safetensors")
    assert_refused(command("generate", model), f"{model}: model.safetensors has ")
    (model / "weights.json").unlink()
    assert_refused(command("generate", model), f"{model}/model.safetensors: damaged: ")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model_type": "gpt2"}, "model_type: got 'gpt2'; allowed: depth_llama, "),
        ({"model_type": "no such type"}, "cannot be loaded: "),
        ({"stream": {"name": "fly"}}, "stream.name: got 'fly'; allowed: "),
        ({"stream": {"name": "ldm", "fly": 1}}, "stream.fly: got 1; allowed: a field of ldm"),
        ({"hidden_size": 64}, "cannot be loaded: "),
        ({"hidden_size": "x"}, "config.json: cannot be loaded: "),
        ({"rope_parameters": {"rope_type": "x"}}, "config.json: cannot be loaded: "),
        ({"hidden_act": "zzz"}, "config.json: cannot be loaded: 'zzz' is not known"),
        ({"dtype": "bogus"}, "config.json: cannot be loaded: "),
        ({"stream": 5}, "config.json: stream: got 5; allowed: "),
        ({"num_hidden_layers": 1}, "weights are not the model's: model.layers.1."),
    ],
)
def test_a_saved_model_with_another_configuration(command, run, tmp_path, change, message):
    model = saved_model(run, tmp_path)
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, **change}))
    done = command("generate", model)
    assert (done.code, done.out, len(done.lines)) == (2, "", 1), done.err
    assert message in done.err


def test_a_configuration_that_is_no_json(command, run, tmp_path):
    model = saved_model(run, tmp_path)
    (model / "config.json").write_text((model / "config.json").read_text()[:40])
    assert_refused(command("generate", model), f"{model}/config.json: cannot be loaded: ")


@pytest.mark.parametrize("content", [None, 5, {"model_type": ["depth_llama"]}])
def test_a_configuration_of_another_kind(command, run, tmp_path, content):
    model = saved_model(run, tmp_path)
    (model / "config.json").write_text(json.dumps(content))
    assert_refused(command("generate", model), f"{model}/config.json: cannot be loaded: ")


@pytest.mark.parametrize("content", [None, []])
def test_a_configuration_of_generation_of_another_kind(command, run, tmp_path, content):
    model = saved_model(run, tmp_path)
    (model / "generation_config.json").write_text(json.dumps(content))
    message = f"{model}/generation_config.json: cannot be loaded: "
    assert_refused(command("generate", model), message)


def test_a_configuration_of_a_far_larger_model_is_never_built(command, run, tmp_path):
    model = saved_model(run, tmp_path)
    (model / "config.json").write_text('{"model_type": "depth_llama"}')
    message = f"{model}/config.json: cannot be loaded: it asks for "
    assert_refused(command("generate", model), message)


def test_a_model_without_a_tokenizer(command, run, tmp_path):
    model = saved_model(run, tmp_path)
    (model / "tokenizer.json").unlink()
    assert_refused(command("generate", model), "--tokenizer: got nothing; allowed: a file")
    done = command("generate", model, "--tokenizer", run / "model", "--tokens", 1)
    assert done.code == 0


def spoiled_model(run, tmp_path):
    """A model whose logits are not numbers."""
    from safetensors.torch import load_file, save_file

    model = saved_model(run, tmp_path)
    weights = load_file(model / "model.safetensors")
    weights["model.norm.weight"].fill_(float("nan"))
    save_file(weights, model / "model.safetensors", metadata={"format": "pt"})
    return model


@pytest.mark.parametrize("temperature", [0, 1])
def test_logits_that_are_not_finite(command, run, tmp_path, temperature):
    model = spoiled_model(run, tmp_path)
    done = command("generate", model, "--prompt", "the", "--temperature", temperature)
    assert_refused(done, f"{model}: logits: got some not finite; allowed: finite numbers")


def test_a_prompt_from_standard_input_that_is_no_text(command, monkeypatch):
    for source, message in (
        (io.TextIOWrapper(io.BytesIO(b"ab\xff"), encoding="utf-8"), "bytes that are no text at 2"),
        (io.StringIO("\udcff"), "bytes that are no text at 0"),
        (None, "- with standard input closed"),
    ):
        monkeypatch.setattr(sys, "stdin", source)
        assert_refused(command("generate", "a", "--prompt", "-"), f"--prompt: got {message}; allo")


def fail_with(monkeypatch, error):
    from depth_memory import data

    def read_manifest(_):
        raise error

    monkeypatch.setattr(data, "read_manifest", read_manifest)


FAILURES = {
    errno.ENOSPC: "No space left on device",
    errno.EEXIST: "File exists",
    errno.ENOTDIR: "Not a directory",
    errno.EISDIR: "Is a directory",
    errno.ENAMETOOLONG: "File name too long",
    errno.ECONNREFUSED: "Connection refused",
}


@pytest.mark.parametrize("number", FAILURES)
def test_a_failure_of_the_machine(command, monkeypatch, number):
    fail_with(monkeypatch, OSError(number, FAILURES[number], "metrics.jsonl"))
    done = command("data", "info", "corpus")
    assert (done.code, done.err) == (1, f"error: metrics.jsonl: {FAILURES[number]}\n")


@pytest.mark.parametrize("error", [MemoryError("no"), RuntimeError("CUDA out of memory. Tried")])
def test_too_little_memory(command, monkeypatch, error):
    fail_with(monkeypatch, error)
    done = command("data", "info", "corpus")
    assert done.code == 1
    assert done.err == (
        f"error: memory: got too little ({error}); "
        "allowed: a smaller model, or fewer rows at a time\n"
    )


@pytest.mark.parametrize("argv", [["evaluate"], ["train", "debug", "--from"]])
def test_a_name_that_is_too_long(command, argv):
    done = command(*argv, "n" * 300)
    assert (done.code, done.out, len(done.lines)) == (1, "", 1)
    assert done.err.endswith("File name too long\n")


def test_a_full_disk_while_training_keeps_what_there_is(command, corpus, tmp_path, monkeypatch):
    from depth_memory.train import checkpoint

    out = tmp_path / "run"
    good, lost = (out / "checkpoints" / f"step-{step:08d}" for step in (5, 10))
    assert command("train", "debug", *on(corpus, out)).code == 0
    shutil.rmtree(lost)

    def save_file(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(checkpoint, "save_file", save_file)
    before = contents(good)
    done = command("train", "debug", *on(corpus, out))
    assert done.code == 2
    assert done.lines[-1].startswith("error: checkpoint of step 10 not written (")
    assert done.lines[-1].endswith(f"last good checkpoint: {good}")
    assert contents(good) == before
    assert not lost.exists()


def test_an_interrupt(command, monkeypatch):
    from depth_memory import data

    monkeypatch.setattr(data, "read_manifest", lambda _: signal.raise_signal(signal.SIGINT))
    # a test run in the background of a shell is started with the signal ignored
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done = command("data", "info", "corpus")
    assert (done.code, done.out, done.err) == (130, "", "error: interrupted\n")


def test_an_interrupt_that_a_library_turned_into_another_error(command, monkeypatch):
    from depth_memory import data

    def read_manifest(_):
        try:
            signal.raise_signal(signal.SIGINT)
        except KeyboardInterrupt:
            raise ImportError("half imported") from None

    monkeypatch.setattr(data, "read_manifest", read_manifest)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    done = command("data", "info", "corpus")
    assert (done.code, done.out, done.err) == (130, "", "error: interrupted\n")
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler


def test_an_interrupt_while_the_command_is_imported():
    program = """
        import signal, sys
        signal.signal(signal.SIGINT, signal.default_int_handler)
        class Finder:
            def find_spec(name, path, target=None):
                if name == "depth_memory.cli.sweep":
                    signal.raise_signal(signal.SIGINT)
        sys.meta_path.insert(0, Finder)
        from depth_memory.__main__ import main
        main()
    """
    argv = [sys.executable, "-c", textwrap.dedent(program)]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "")


def test_an_interrupt_in_a_program_that_a_library_made_of_text(tmp_path):
    """`python -m` would end by the signal, not by the exit code."""
    program = """
        import signal, sys
        from depth_memory import cli, data
        signal.signal(signal.SIGINT, signal.default_int_handler)
        data.read_manifest = lambda _: exec("signal.raise_signal(signal.SIGINT)")
        sys.exit(cli.main(["data", "info", "corpus"]))
    """
    (tmp_path / "program.py").write_text(textwrap.dedent(program))
    argv = [sys.executable, "-m", "program"]
    done = subprocess.run(argv, capture_output=True, text=True, cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (130, "", "error: interrupted\n")


def shell(redirections, *argv, **environment):
    """A command as a process, with redirections as in a shell."""
    line = f'exec "$@" {redirections}'
    command = [sys.executable, "-m", "depth_memory", *map(str, argv)]
    env = {**os.environ, **environment}
    return subprocess.run(["sh", "-c", line, "sh", *command], capture_output=True, env=env)


def test_output_that_is_closed_or_full(corpus):
    info = ["data", "info", corpus]
    assert [shell(r, *info).returncode for r in ("<&-", ">&-", "<&- >&- 2>&-")] == [0, 0, 0]
    for argv in (info, ["--help"]):
        full = shell("> /dev/full", *argv)
        assert full.returncode == 1
        assert full.stderr == b"error: standard output: No space left on device\n"


def test_a_terminal_that_lacks_characters(corpus, tmp_path):
    shutil.copytree(corpus, tmp_path / "\u65e5")
    done = shell("", "data", "info", tmp_path / "\u65e5", PYTHONIOENCODING="ascii")
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.startswith(f"{tmp_path}/?: vocabulary 300, ".encode())


def test_a_reader_that_goes_away(corpus):
    read, write = os.pipe()
    os.close(read)
    argv = [sys.executable, "-m", "depth_memory", "data", "info", str(corpus)]
    done = subprocess.run(argv, stdout=write, stderr=subprocess.PIPE, text=True)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")


def test_a_bug_shows_its_traceback(monkeypatch):
    fail_with(monkeypatch, ZeroDivisionError("a bug"))
    with pytest.raises(ZeroDivisionError):
        cli.main(["data", "info", "corpus"])


def test_an_error_of_several_lines_becomes_one(command, monkeypatch):
    from depth_memory.errors import UserError

    fail_with(monkeypatch, UserError("field: got\n  two lines"))
    assert command("data", "info", "corpus").err == "error: field: got two lines\n"


def test_texts_can_be_prepared_by_the_default_separator_only_once(command, corpus, tmp_path):
    sources = write_texts(tmp_path / "texts", 5)
    argv = ["data", "prepare", sources, "--out", tmp_path / "new", "--validation", "2"]
    argv += ["--tokenizer", corpus / "tokenizer.json"]
    assert command(*argv).code == 0
    assert command(*argv).code == 0
    assert_refused(command(*argv, "--separator", "none"), "out: ")
    assert_refused(command(*argv, "--separator", "tab"), "separator: got 'tab'; allowed: ")
