"""`depth-memory inspect`: several models on the same text, what it prints, and what it refuses."""

import json
import re
import shlex
import shutil
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.cli.conftest import assert_refused, contents, on

TEXT = "the old house on a hill"


@pytest.fixture(scope="module")
def attnres(corpus, tmp_path_factory):
    from depth_memory import cli

    out = tmp_path_factory.mktemp("run") / "attnres"
    argv = ["train", "debug", "--stream", "attnres", "--steps", 2, *on(corpus, out)]
    assert cli.main([str(word) for word in argv]) == 0
    return out


@pytest.fixture
def _no_pictures(monkeypatch):
    """Drawing takes most of the time."""
    monkeypatch.setitem(sys.modules, "matplotlib", None)


def rows_of(done):
    """The printed table, up to the empty line."""
    lines = done.out.partition("\n\n")[0].splitlines()
    return {line[:20].strip(): line[20:].split() for line in lines}


def test_a_report_its_table_and_where_it_is(command, run, tmp_path):
    out = tmp_path / "inspect"
    done = command("inspect", run, "--out", out, "--text", TEXT)
    assert done.code == 0
    table, _, files = done.out.partition("\n\n")
    assert sorted(files.split()) == sorted(str(path) for path in out.iterdir())
    document = json.loads((out / "inspect.json").read_text())
    (entry,) = document["models"]
    assert (entry["stream"]["name"], len(entry["weights"])) == ("ldm", 5)
    assert "".join(document["text"]["words"]) == TEXT
    assert document["text"]["kept"] == len(document["text"]["words"])
    rows, losses = rows_of(done), entry["ablation"]
    assert rows["none"] == [f"{losses['loss']:.4f}"]
    for row in losses["rows"]:
        difference = f"{row['difference']:+.4f}"
        shown = difference if float(difference) else "0.0000"
        assert rows[row["read"]] == [f"{row['loss']:.4f}", shown]
    assert list(rows)[-1] == "every one of these"
    assert table.split("\n")[0].split() == f"read switched off {run}: nats/token more".split()


@pytest.mark.usefixtures("_no_pictures")
def test_several_models_are_beside_each_other_on_the_same_text(command, run, attnres, tmp_path):
    out = tmp_path / "inspect"
    options = ["--rows", 2, "--tokens", 3, "--no-ablation"]
    done = command("inspect", run, attnres, "--out", out, *options)
    assert done.code == 0, done.err
    document = json.loads((out / "inspect.json").read_text())
    assert [entry["stream"]["name"] for entry in document["models"]] == ["ldm", "attnres"]
    assert document["text"]["rows"] == 2
    assert [entry["token_weights"]["kept"] for entry in document["models"]] == [3, 3]
    assert [entry["name"] for entry in document["models"]] == [str(run), str(attnres)]
    assert [entry["ablation"] for entry in document["models"]] == [None, None]
    assert done.out.split() == [str(out / name) for name in ("report.html", "inspect.json")]


def test_models_of_several_tokenizers_are_refused(command, run, other_corpus, tmp_path):
    other = shutil.copytree(run / "model", tmp_path / "other")
    (other / "weights.json").unlink()
    shutil.copy(other_corpus / "tokenizer.json", other)
    config = json.loads((other / "config.json").read_text())
    weights = load_file(other / "model.safetensors")
    name = "model.embed_tokens.weight"
    weights = {k: torch.cat([w, w[:200]]) if w.shape[0] == config["vocab_size"] else w
               for k, w in weights.items()}  # fmt: skip
    config["vocab_size"] = weights[name].shape[0]
    (other / "config.json").write_text(json.dumps(config))
    save_file(weights, other / "model.safetensors", {"format": "pt"})
    done = command("inspect", run, other, "--text", TEXT, "--out", tmp_path / "new")
    assert_refused(done, f"{other}: tokenizer: got '")
    assert f"allowed: that of {run}, " in done.err
    assert not (tmp_path / "new").exists()


@pytest.mark.usefixtures("_no_pictures")
def test_one_token_is_inspected_without_a_loss(command, run, tmp_path):
    done = command("inspect", run, "--text", "t", "--out", tmp_path / "new")
    assert done.code == 0
    assert len(json.loads((tmp_path / "new" / "inspect.json").read_text())["text"]["words"]) == 1
    assert done.lines[-1].startswith("one token predicts no other")
    assert "switched off" not in done.out


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "--text: got ''; allowed: at least one token"),
        ("a\udcff", "--text: got 'a\\udcff'; allowed: text in UTF-8"),
        (100 * TEXT, "--text: tokens: got "),
    ],
)
def test_a_text_that_cannot_be_read_is_one_line(command, run, tmp_path, text, message):
    done = command("inspect", run, "--out", tmp_path / "new", "--text", text)
    assert_refused(done, message)
    assert list(tmp_path.iterdir()) == []


def test_data_beside_a_text_is_refused(command, run, corpus, tmp_path):
    argv = ["inspect", run, "--out", tmp_path / "new", "--text", TEXT, "--data", corpus]
    assert_refused(command(*argv), f"--data: got '{corpus}'; allowed: it without --text")


def test_a_number_that_is_not_finite_is_named(command, run, tmp_path):
    broken = shutil.copytree(run / "model", tmp_path / "broken")
    (broken / "weights.json").unlink()
    weights = load_file(broken / "model.safetensors")
    weights["model.layers.1.mlp.down_proj.weight"][0, 0] = torch.nan
    save_file(weights, broken / "model.safetensors", {"format": "pt"})
    done = command("inspect", run, broken, "--text", TEXT, "--out", tmp_path / "new")
    assert done.code == 2
    assert done.lines[-1] == f"error: {broken}: mlp 1: output: got nan; allowed: finite numbers"
    assert (done.out, (tmp_path / "new").exists()) == ("", False)


@pytest.mark.usefixtures("_no_pictures")
def test_without_matplotlib_there_are_page_and_data(command, run, tmp_path):
    (tmp_path / "mine").write_text("kept")
    done = command("inspect", run, "--text", TEXT, "--out", tmp_path, "--no-ablation")
    assert done.code == 0
    assert done.lines[0] == "no PNGs, which need matplotlib: pip install 'depth-memory[plot]'"
    assert set(contents(tmp_path)) == {
        tmp_path / n for n in ("report.html", "inspect.json", "mine")
    }


@pytest.mark.usefixtures("_no_pictures")
def test_long_work_says_how_far_it_is(command, run, tmp_path, monkeypatch):
    monkeypatch.setattr("depth_memory.cli.inspect.SECONDS_BETWEEN_NOTES", 0.0)
    done = command("inspect", run, "--text", TEXT, "--out", tmp_path / "new")
    assert f"{run}: 7 of 7 passes with reads switched off" in done.lines


def test_commands_of_the_page_are_accepted():
    from depth_memory.cli.main import parser

    page = Path(__file__).parents[2] / "docs" / "inspection.md"
    shown = re.findall(r"^depth-memory (.*)$", page.read_text(), re.MULTILINE)
    assert len(shown) == 2
    for line in shown:
        known, rest = parser().parse_known_args(shlex.split(line))
        assert (known.command, rest) == ("inspect", [])
