"""`convert` and `train --from`, as typed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import assert_refused, contents, on


@pytest.fixture
def plain(tmp_path, corpus):
    """A saved model of plain transformers with the tokenizer of the corpus."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
        eos_token_id=0,
    )
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "plain")
    shutil.copy(corpus / "tokenizer.json", tmp_path / "plain")
    return tmp_path / "plain"


@pytest.fixture
def grafted(command, plain):
    out = plain.with_name("grafted")
    assert command("convert", plain, "--stream", "ldm", "--out", out, "--no-check").code == 0
    return out


def test_it_says_what_came_out(command, plain, tmp_path):
    done = command("convert", plain, "--stream", "ldm", "--out", tmp_path / "out")
    first, second = done.out.splitlines()
    assert done.code == 0
    assert first.startswith(f"{tmp_path / 'out'}: ")
    assert first.endswith(" of them new; stream ldm")
    assert second.startswith("logits: max difference 0.0 between logits of up to ")
    assert done.err == ""


def test_any_field_of_the_stream_can_be_given(command, plain, tmp_path):
    options = ["--stream.key-dim", 3, "--stream.gate=false", "--stream.window", "auto"]
    done = command(
        "convert", plain, "--out", tmp_path / "out", "--stream", "ldm", *options, "--seed", 2
    )
    assert done.code == 0
    stream = json.loads((tmp_path / "out" / "config.json").read_text())["stream"]
    # `auto` became the number of writes: four sublayers and the embedding
    assert (stream["key_dim"], stream["gate"], stream["window"]) == (3, False, 5)


def test_without_a_check_it_says_so(command, plain, tmp_path):
    argv = ["--stream", "hc", "--out", tmp_path / "out", "--no-check", "--dtype", "bfloat16"]
    done = command("convert", plain, *argv)
    assert done.code == 0
    (line,) = done.lines
    assert line == "logits not compared; --check does it, and needs the memory for the model"


def test_a_tokenizer_that_no_data_can_be_made_with_is_told(command, plain, tmp_path):
    text = (plain / "tokenizer.json").read_text()
    (plain / "tokenizer.json").write_text(text.replace("<|endoftext|>", "<|nothing|>"))
    done = command("convert", plain, "--stream", "ldm", "--out", tmp_path / "out")
    assert done.code == 0
    (line,) = done.lines
    assert line.startswith("no data can be prepared for this model: tokenizer: ")
    assert "has no end-of-text token" in line


def test_a_run_there_and_back(command, corpus, tmp_path):
    argv = ["train", "debug", "--stream", "preln", "--steps", 2, *on(corpus, tmp_path / "run")]
    assert command(*argv).code == 0
    done = command("convert", tmp_path / "run", "--to", "transformers", "--out", tmp_path / "out")
    assert done.code == 0
    assert "0 of them new; plain transformers" in done.out
    ours, theirs = (
        json.loads(command("evaluate", path, "--data", corpus, "--length", 32, "--json").out)[0]
        for path in (tmp_path / "run", tmp_path / "out")
    )
    assert ours["loss"] == theirs["loss"]


def test_train_goes_on_from_a_model(command, corpus, grafted, plain, tmp_path):
    argv = ["--from", grafted, "debug", *on(corpus, tmp_path / "run"), "--freeze", "backbone"]
    done = command("train", *argv, "--optim.stream-lr", "1e-3", "--steps", 2)
    assert done.code == 0, done.err
    config = json.loads((tmp_path / "run" / "run.json").read_text())["config"]
    assert config["origin"] == str(grafted)
    assert (config["freeze"], config["optim"]["stream_lr"]) == ("backbone", 1e-3)
    assert config["model"]["max_length"] == 64
    again = command("train", "--from", tmp_path / "run", "debug", *on(corpus, tmp_path / "more"))
    assert again.code == 0, again.err
    found = json.loads((tmp_path / "more" / "run.json").read_text())
    assert found["origin"]["path"] == str(tmp_path / "run" / "model")
    both = command("evaluate", plain, grafted, "--data", corpus, "--length", 32, "--json")
    assert len({result["loss"] for result in json.loads(both.out)}) == 1


def test_print_config_of_a_model(command, grafted):
    argv = ["--from", grafted, "--length", 64, "--print-config"]
    config = json.loads(command("train", "demo", *argv).out)
    assert config["model"]["width"] == 32
    assert config["model"]["stream"]["name"] == "ldm"
    assert config["length"] == 64


WRONG = {
    "no out": (["convert", "PLAIN", "--stream", "ldm"], "--out: got nothing; allowed: "),
    "no stream": (
        ["convert", "PLAIN", "--out", "OUT"],
        "--stream, --to: got 'neither'; allowed: one of the two",
    ),
    "both": (
        ["convert", "PLAIN", "--out", "OUT", "--stream", "ldm", "--to", "transformers"],
        "--stream, --to: got 'both'; allowed: one of the two",
    ),
    "unknown stream": (
        ["convert", "PLAIN", "--out", "OUT", "--stream", "fly"],
        "--stream: got 'fly'; allowed: attnres, ",
    ),
    "unknown field": (
        ["convert", "PLAIN", "--out", "OUT", "--stream", "hc", "--stream.key-dim", "3"],
        "argument: got '--stream.key-dim'; allowed: --stream.lanes, ",
    ),
    "field of a stream without": (
        ["convert", "PLAIN", "--out", "OUT", "--stream", "preln", "--fast"],
        "argument: got '--fast'; allowed: no field: preln has none",
    ),
    "not a number": (
        ["convert", "PLAIN", "--out", "OUT", "--stream", "ldm", "--stream.key-dim", "a"],
        "stream.key_dim: got 'a'; allowed: a value of type int",
    ),
    "unknown target": (
        ["convert", "PLAIN", "--out", "OUT", "--to", "gguf"],
        "--to: got 'gguf'; allowed: transformers",
    ),
    "fields of nothing": (
        ["convert", "PLAIN", "--out", "OUT", "--to", "transformers", "--stream.key-dim", "3"],
        "argument: got '--stream.key-dim'; allowed: ",
    ),
    "unknown dtype": (
        ["convert", "PLAIN", "--out", "OUT", "--stream", "ldm", "--dtype", "int4"],
        "--dtype: got 'int4'; allowed: bfloat16, float16, float32",
    ),
    "no source": (["convert", "nowhere", "--out", "OUT", "--stream", "ldm"], "source: got 'now"),
    "a corpus": (["convert", "CORPUS", "--out", "OUT", "--stream", "ldm"], "model: got "),
    "back from a stream": (
        ["convert", "GRAFTED", "--out", "OUT", "--to", "transformers"],
        "GRAFTED: stream: got 'ldm'; allowed: preln",
    ),
    "cannot": (
        ["convert", "PLAIN", "--out", "OUT", "--stream", "attnres"],
        "stream attnres: AttnResPort: no parameters make it an ordinary residual; max difference",
    ),
    "out is there": (
        ["convert", "PLAIN", "--out", "GRAFTED", "--stream", "ldm"],
        "--out: got 'GRAFTED'; allowed: a new directory",
    ),
    "from nowhere": (["train", "--from", "nowhere", "debug"], "--from: got 'nowhere'; allowed: "),
    "from plain": (
        ["train", "--from", "PLAIN", "debug"],
        "PLAIN/config.json: model_type: got 'llama'; allowed: a model with a stream",
    ),
    "from one to another stream": (
        ["train", "--from", "GRAFTED", "debug", "--stream", "hc"],
        "--stream: got 'hc'; allowed: ldm, as in GRAFTED, or convert",
    ),
    "freeze without a model": (
        ["train", "debug", "--freeze", "backbone", "--print-config"],
        "freeze: got 'backbone'; allowed: none, for a model that is not trained yet",
    ),
    "freeze something else": (
        ["train", "--from", "GRAFTED", "debug", "--freeze", "head"],
        "freeze: got 'head'; allowed: none, backbone",
    ),
    "data of another tokenizer": (
        ["train", "--from", "GRAFTED", "debug", "--data.directory", "OTHER", "--out", "OUT"],
        "OTHER: tokenizer: got ",
    ),
    "another width": (
        ["train", "--from", "GRAFTED", "debug", "--data.directory", "CORPUS", "--out", "OUT",
         "--model.width", "64"],
        "model.width: got 64; allowed: 32, as in GRAFTED",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_mistakes_are_one_line(command, plain, grafted, corpus, other_corpus, tmp_path, case):
    places = {"PLAIN": plain, "GRAFTED": grafted, "CORPUS": corpus, "OTHER": other_corpus}
    places["OUT"] = tmp_path / "out"
    argv, message = WRONG[case]
    for name, place in places.items():
        argv = [argument.replace(name, str(place)) for argument in argv]
        message = message.replace(name, str(place))
    before = contents(plain), contents(grafted)
    assert_refused(command(*argv), message)
    assert (contents(plain), contents(grafted)) == before
    out = Path(places["OUT"])
    assert not out.exists() or [path.name for path in out.iterdir()] == [".lock"]
