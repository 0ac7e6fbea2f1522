"""Every command does what it says, on a model that the commands themselves trained."""

import argparse
import json
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from depth_memory import cli, train
from depth_memory.cli.main import COMMANDS, parser
from tests.cli.conftest import assert_refused, on

PAGES = [
    [],
    *([name] for name in COMMANDS),
    *(["data", a] for a in ("prepare", "verify", "info")),
    *(["bench", a] for a in ("model", "ops")),
]


def test_the_command_line_is_there_before_torch():
    """Parsing and help need nothing heavy, which keeps them quick."""
    code = (
        "import sys, depth_memory.cli as cli;"
        "code = cli.main(['--help']);"
        "heavy = {'torch', 'transformers', 'numpy', 'tokenizers', 'matplotlib', 'rich'};"
        "sys.exit(f'imported {heavy & set(sys.modules)}' if heavy & set(sys.modules) else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert set(COMMANDS) <= set(done.stdout.split())


def test_the_package_is_a_program():
    argv = [sys.executable, "-m", "depth_memory", "--version"]
    done = subprocess.run(argv, capture_output=True, text=True)
    assert re.fullmatch(r"depth-memory \d+\.\d+\.\d+\n", done.stdout)
    assert done.returncode == 0


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_every_command_has_help_with_an_example(command, page):
    code, out, err = command(*page, "--help")
    assert (code, err) == (0, "")
    examples = out.partition("example")[2]
    assert f"depth-memory {' '.join(page)}".strip() in examples


@pytest.mark.parametrize("page", PAGES, ids=" ".join)
def test_every_example_of_the_help_is_accepted(page, command):
    text = command(*page, "--help").out.partition("example")[2]
    examples = re.findall(r"depth-memory (.*)$", text, re.MULTILINE)
    assert examples
    for example in examples:
        known, rest = parser().parse_known_args(shlex.split(example))
        assert known.takes_fields or not rest


def test_help_of_a_preset_lists_every_field(command):
    from depth_memory import presets
    from depth_memory.cli import fields

    out = command("train", "debug", "--help").out
    for field in fields.fields_of(presets.debug()):
        assert field.doc, field.name
        assert f"--{field.name.replace('_', '-')} " in out


def test_help_of_a_preset_follows_the_stream(command):
    out = command("train", "debug", "--stream", "hc", "--help").out
    assert "--model.stream.lanes INT" in out
    assert "--model.stream.key-dim INT" not in out


def printed(command, *argv):
    code, out, err = command("train", *argv, "--print-config")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_any_field_can_be_changed(command):
    config = printed(
        command,
        *("debug", "--optim.lr", "1e-4", "--optim.betas", "0.8", "0.9", "--compile", "true"),
        *("--model.stream.key-dim", "3", "--model.stream.window", "2", "--loggers", "tensorboard"),
        *("--model.head_dim=8", "--schedule.kind", "wsd", "--out", "elsewhere", "--steps", "7"),
        *("--eval-windows", "none", "--data.directory", "7"),
    )
    assert config["optim"]["lr"] == 1e-4
    assert config["optim"]["betas"] == [0.8, 0.9]
    assert config["compile"] is True
    assert config["model"]["stream"]["key_dim"] == 3
    assert config["model"]["stream"]["window"] == 2
    assert config["model"]["head_dim"] == 8
    assert config["schedule"]["kind"] == "wsd"
    assert (config["out"], config["steps"], config["loggers"]) == ("elsewhere", 7, ["tensorboard"])
    assert config["eval_windows"] is None
    assert config["data"]["directory"] == "7"


def test_what_is_not_changed_is_the_preset(command):
    from depth_memory import presets

    assert printed(command, "demo") == presets.demo().as_dict()
    assert printed(command, "demo", "--seed", "1") == {**presets.demo().as_dict(), "seed": 1}


def test_the_stream_is_swapped_before_its_fields_change(command):
    config = printed(command, "debug", "--model.stream.lanes", "3", "--stream", "hc")
    assert config["model"]["stream"]["name"] == "hc"
    assert config["model"]["stream"]["lanes"] == 3


def test_train_leaves_a_run(run):
    assert train.load_run(run).out == run
    assert len(train.read_metrics(run / "metrics.jsonl")) == 10
    assert (run / "model" / "tokenizer.json").exists()


def test_train_goes_on_where_it_stopped(command, corpus, run, tmp_path):
    out = tmp_path / "run"
    half = command("train", "debug", *on(corpus, out), "--steps", 10)
    assert half.code == 0
    for stale in (out / "checkpoints" / "step-00000010", out / "model"):
        shutil.rmtree(stale)
    again = command("train", "debug", *on(corpus, out))
    assert again.code == 0
    assert again.out.startswith(f"{out / 'model'}: step 10, validation loss ")
    same = [path / "model" / "model.safetensors" for path in (run, out)]
    assert same[0].read_bytes() == same[1].read_bytes()


def test_train_separates_result_and_progress(command, corpus, tmp_path):
    code, out, err = command("train", "debug", "--steps", 2, *on(corpus, tmp_path / "run"))
    assert code == 0
    assert re.fullmatch(r".*/model: step 2, validation loss [\d.]+ nats/token, [\d.]+ .*\n", out)
    assert "step 2/2" in err


def test_evaluate_takes_a_run_a_checkpoint_and_a_model(command, run):
    paths = [run, run / "checkpoints" / "step-00000010", run / "model"]
    code, out, err = command("evaluate", *paths, "--json")
    results = json.loads(out)
    assert code == 0
    assert "evaluating" in err
    assert [result["model"] for result in results] == [str(path) for path in paths]
    assert len({result["loss"] for result in results}) == 1
    assert {result["stream"] for result in results} == {"ldm"}


def test_evaluate_agrees_with_the_library(command, corpus, run):
    from transformers import AutoModelForCausalLM

    from depth_memory import data

    (result,) = json.loads(command("evaluate", run, "--length", 16, "--json").out)
    model = AutoModelForCausalLM.from_pretrained(run / "model")
    split = data.open_split(corpus, "validation")
    expected = train.evaluate(model, split, length=16, rows=8)
    assert (result["loss"], result["bits_per_byte"]) == (expected.loss, expected.bits_per_byte)
    assert result["tokens"] == expected.tokens == split.tokens - 1


def test_evaluate_prints_a_table_of_all_models(command, run):
    code, out, _ = command("evaluate", run, run / "model", "--windows", 2)
    header, *rows = out.splitlines()
    assert code == 0
    columns = "model stream parameters nats/token perplexity bits/byte tokens"
    assert header.split() == columns.split()
    assert [row.split()[0] for row in rows] == [str(run), str(run / "model")]


def test_evaluate_draws_the_runs(command, run, tmp_path):
    figure = tmp_path / "new" / "curves.png"
    assert command("evaluate", run, "--windows", 2, "--figure", figure).code == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert list(figure.parent.iterdir()) == [figure]


@pytest.fixture
def plain(tmp_path, run):
    """A saved model of plain transformers, as other people have it."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=300,
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        max_position_embeddings=64,
    )
    LlamaForCausalLM(config).save_pretrained(tmp_path / "plain")
    return tmp_path / "plain"


def test_a_model_of_plain_transformers_is_evaluated(command, corpus, plain):
    (result,) = json.loads(
        command("evaluate", plain, "--data", corpus, "--length", 32, "--json").out
    )
    assert result["stream"] == "preln"
    assert result["parameters"] > 0


def test_a_model_of_plain_transformers_is_inspected(command, corpus, plain, tmp_path):
    out = tmp_path / "inspect"
    done = command("inspect", plain, "--data", corpus, "--out", out, "--rows", 1)
    assert done.code == 0
    (entry,) = json.loads((out / "inspect.json").read_text())["models"]
    assert entry["stream"] == {"name": "preln"}
    assert f"none{entry['ablation']['loss']:.4f}" in done.out.replace(" ", "")
    assert "every one of these" not in done.out


def test_curves_of_runs_with_any_name(run, tmp_path, monkeypatch):
    from matplotlib.legend import Legend

    from depth_memory.cli import curves
    from depth_memory.inspect import figure

    names = ["_hidden", "a$x", r"$\frac{1$", "\u65e5"]
    for name in names:
        (tmp_path / name).mkdir()
        shutil.copy(run / "metrics.jsonl", tmp_path / name)
    legends = []
    save = figure.save
    monkeypatch.setattr(
        figure, "save", lambda f, p: (legends.extend(f.findobj(Legend)), save(f, p))
    )
    curves.draw([tmp_path / name for name in names], tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")
    (legend,) = legends
    assert [text.get_text().partition(":")[0] for text in legend.get_texts()] == names


def test_data_is_prepared_verified_and_described(command, corpus):
    verified, described = command("data", "verify", corpus), command("data", "info", corpus)
    assert (verified.code, described.code) == (0, 0)
    assert verified.out == described.out
    manifest = json.loads(command("data", "info", corpus, "--json").out)
    assert manifest["vocab_size"] == 300
    assert manifest["splits"]["validation"]["documents"] == 4


def test_presets_show_every_stream(command):
    from depth_memory import streams

    code, out, _ = command("presets", "debug")
    assert code == 0
    assert set(streams.STREAMS) <= {line.split()[0] for line in out.splitlines() if line}
    costs = json.loads(command("presets", "debug", "--json").out)
    assert costs["debug"]["streams"]["preln"] == {
        "parameters": 0,
        "training_flops": 0,
        "state_bytes": 64,
    }


def test_presets_are_listed_in_groups_without_counting(command, monkeypatch):
    from depth_memory import presets
    from depth_memory.presets import counts

    monkeypatch.delattr(counts, "count_backbone")
    monkeypatch.delattr(counts, "count_parameters")
    code, out, _ = command("presets")
    assert code == 0
    shown = [line.split()[0].removesuffix(":") for line in out.splitlines() if line]
    for group in presets.GROUPS.values():
        first = shown.index(group.names[0])
        assert shown[first : first + len(group.names)] == group.names
    listed = json.loads(command("presets", "--json").out)
    assert list(listed) == [*presets.GROUPS, "sweep"]
    assert set(listed["sweep"]) == set(presets.FAMILIES)


def test_presets_show_the_sizes_of_a_group(command):
    sizes = json.loads(command("presets", "depthbench-1600m", "--json").out)
    assert [size["depth"] for size in sizes.values()] == [28, 40, 54]
    assert sizes["depthbench-1600m-l28"]["parameters"] == 1_615_349_760
    rows = command("presets", "depthbench-1600m").out.splitlines()[2:]
    assert [row.split()[:6] for row in rows if "l40" in row] == [
        ["depthbench-1600m-l40", "40", "x", "1728", "108", "1607179968"]
    ]


def test_doctor_finds_that_the_core_works(command):
    done = command("doctor", "--json")
    findings = json.loads(done.out)
    assert done.code == 0
    assert findings["core"] == {"forward and backward": "ok"}
    assert findings["versions"]["torch"] == torch.__version__
    assert set(findings["ops"]) >= {"rls_write", "mix", "attnres", "sinkhorn"}
    assert "forward and backward" in command("doctor").out


def test_doctor_fails_if_the_core_does(command, monkeypatch):
    from depth_memory import models

    def broken(*_, **__):
        raise RuntimeError("no such kernel")

    monkeypatch.setattr(models, "build_model", broken)
    done = command("doctor", "--json")
    assert done.code == 1
    assert json.loads(done.out)["core"] == {"forward and backward": "RuntimeError: no such kernel"}


def test_doctor_knows_every_extra():
    import tomllib

    from depth_memory.cli.doctor import EXTRAS

    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    assert set(EXTRAS) == set(project["optional-dependencies"]) - {"dev"}


def test_main_takes_the_arguments_of_the_process(monkeypatch, capsys):
    monkeypatch.setattr(sys, "argv", ["depth-memory", "--version"])
    assert cli.main() == 0
    assert capsys.readouterr().out.startswith("depth-memory ")


def numeric(parser):
    """The options of a command and its parts that take a number by default."""
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for part in action.choices.values():
                yield from numeric(part)
        elif action.metavar in ("N", "T", "K", "P"):
            yield action


def test_every_number_on_the_command_line_has_a_range():
    from depth_memory.cli import arguments

    found = list(numeric(parser()))
    assert len(found) > 12
    for action in found:
        assert isinstance(action.type, arguments.Number), action.option_strings
        for text in ("nan", "inf", "-inf", "1e400", "9" * 400, "x"):
            with pytest.raises(argparse.ArgumentTypeError, match="allowed: "):
                action.type(text)


def test_evaluate_by_documents_is_depthbenchs_loss(command, run, corpus):
    from depth_memory.data import beginnings, open_split

    done = command("evaluate", run, "--by", "documents", "--length", 16, "--json")
    (found,) = json.loads(done.out)
    split = open_split(corpus, "validation")
    assert found["by"] == "documents"
    assert found["tokens"] == sum(len(ids) - 1 for ids in beginnings(split, 16))
    refused = command("evaluate", run, "--by", "pages")
    assert_refused(refused, "--by: got 'pages'; allowed: documents, windows")
