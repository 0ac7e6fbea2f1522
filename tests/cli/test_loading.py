"""Which weights and which data a path on the command line means, and that they are as written."""

import json
import shutil
import sys

import pytest
import torch
from safetensors.torch import load_file

from tests.cli.conftest import assert_refused, contents, on
from tests.cli.test_damage import cut, flip


@pytest.fixture
def copy(run, tmp_path):
    """A run of 10 steps, saved at 5 and 10, with a model."""
    return shutil.copytree(run, tmp_path / "run")


def weights_of(command, path):
    done = command("evaluate", path, "--windows", 1, "--json")
    assert done.code == 0, done.err
    return json.loads(done.out)[0]["weights"], done.lines


def extend(path, step, checkpoint=True):
    """What a run leaves that was asked for more steps, and killed at `step`."""
    from depth_memory.files import sealed

    content = json.loads((path / "run.json").read_text())
    content["config"]["steps"] = 40
    (path / "run.json").write_text(json.dumps(content))
    if checkpoint:
        new = path / "checkpoints" / f"step-{step:08d}"
        shutil.copytree(path / "checkpoints" / "step-00000010", new)
        state = json.loads((new / "state.json").read_text())
        state.pop("checksum")
        (new / "state.json").write_text(sealed({**state, "step": step}))
        return new
    return None


def test_a_finished_run_means_its_model(command, copy):
    found, lines = weights_of(command, copy)
    assert found == str(copy / "model")
    assert len(lines) == 1


def test_a_run_that_went_on_means_its_newest_checkpoint(command, copy):
    new = extend(copy, 20)
    found, lines = weights_of(command, copy)
    assert found == str(new)
    assert lines[0] == f"{copy}: step 20 of 40, from step-00000020"
    done = command("generate", copy, "--tokens", 1)
    assert done.lines[0] == lines[0]
    done = command("inspect", copy, "--out", copy.parent / "pictures")
    assert done.lines[0] == lines[0]


def test_a_run_that_went_on_in_vain_means_its_model(command, copy):
    cut(extend(copy, 20) / "model.safetensors")
    found, lines = weights_of(command, copy)
    assert found == str(copy / "model")
    assert lines[0].startswith("skipped damaged checkpoint step-00000020: model.safetensors ")
    assert lines[1] == f"{copy}: step 10 of 40, from model"


def test_a_run_extended_and_killed_at_once_says_how_far_its_model_is(command, copy):
    extend(copy, 20, checkpoint=False)
    found, lines = weights_of(command, copy)
    assert (found, lines[0]) == (str(copy / "model"), f"{copy}: step 10 of 40, from model")


def test_a_model_of_a_run_without_a_step_gives_way_to_a_checkpoint(command, copy):
    (copy / "model" / "weights.json").unlink()
    assert weights_of(command, copy)[0] == str(copy / "checkpoints" / "step-00000010")
    shutil.rmtree(copy / "checkpoints")
    assert weights_of(command, copy)[0] == str(copy / "model")


@pytest.mark.parametrize(
    "file",
    [
        "config.json",
        "generation_config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
        "weights.json",
    ],
)
def test_a_flipped_byte_of_a_model_is_seen(command, copy, file):
    flip(copy / "model" / file)
    for argv in (["evaluate", copy], ["generate", copy / "model"]):
        assert_refused(command(*argv), f"{copy / 'model'}: {file} ")


@pytest.mark.parametrize("command_line", [["evaluate", "RUN"], ["inspect", "RUN", "--out", "NEW"]])
def test_a_flipped_byte_of_the_data_is_seen(command, run, corpus, tmp_path, command_line):
    damaged = shutil.copytree(corpus, tmp_path / "damaged")
    flip(damaged / "validation" / "00000.npy")
    places = {"RUN": run, "NEW": tmp_path / "new"}
    argv = [places.get(word, word) for word in command_line]
    shard = damaged / "validation" / "00000.npy"
    assert_refused(command(*argv, "--data", damaged), f"{shard}: altered (sha256 differs)")
    assert not (tmp_path / "new").exists()


@pytest.fixture
def vanishing(monkeypatch):
    """Lets so many of the chosen checkpoints be removed before they are read; those chosen."""
    from depth_memory.loading import saved

    chosen, read = [], saved.read

    def install(times):
        def weights(folder, known=None):
            chosen.append(folder.name)
            if len(chosen) <= times:
                shutil.rmtree(folder)
            return read(folder, known)

        monkeypatch.setattr(saved, "read", weights)
        return chosen

    return install


def test_a_checkpoint_removed_meanwhile_gives_way_to_another(command, copy, vanishing):
    shutil.rmtree(copy / "model")
    chosen = vanishing(1)
    done = command("generate", copy, "--tokens", 1)
    assert done.code == 0, done.err
    assert chosen == ["step-00000010", "step-00000005"]


def test_a_checkpoint_that_has_gone_is_said_to(command, copy, vanishing):
    folder = copy / "checkpoints" / "step-00000010"
    chosen = vanishing(1)
    done = command("generate", folder)
    assert_refused(done, f"{folder}: has gone since it was chosen; a run in progress removes ")
    assert chosen == [folder.name]


def test_checkpoints_that_go_again_and_again_are_given_up(command, copy, vanishing):
    extend(copy, 20)
    shutil.rmtree(copy / "model")
    chosen = vanishing(3)
    done = command("evaluate", copy)
    assert (done.code, len(chosen)) == (2, 3)
    message = "step-00000005: has gone since it was chosen; a run in progress removes its older"
    assert message in done.lines[-1]


def pickled(folder):
    """The weights of a saved model as a pickle, and no others."""
    torch.save(load_file(folder / "model.safetensors"), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    (folder / "weights.json").unlink()


def pickled_adapter(folder):
    (folder / "adapter_config.json").write_text(json.dumps({"base_model_name_or_path": "x"}))
    torch.save({}, folder / "adapter_model.bin")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (pickled, "no weights; looked for model.safetensors and model.safetensors.index.json; "),
        (pickled_adapter, "no weights of its adapter; looked for adapter_model.safetensors; "),
    ],
)
def test_a_pickle_is_never_loaded(command, copy, monkeypatch, tmp_path, change, message):
    model = copy / "model"
    change(model)
    monkeypatch.setattr(torch, "load", None)
    expected = f"{model}: {message}pickled ones, such as *.bin, are never read"
    to = ["--stream", "ldm", "--out", tmp_path / "new"]
    for argv in (["evaluate", model], ["generate", model], ["convert", model, "--check", *to]):
        done = command(*argv)
        assert (done.code, done.lines[-1]) == (2, f"error: {expected}"), done.err
    assert not (tmp_path / "new").exists()


def test_a_model_that_does_not_say_its_tokenizer_needs_data(command, copy, corpus, tmp_path):
    model = shutil.copytree(copy / "model", tmp_path / "model")
    (model / "tokenizer.json").unlink()
    (model / "weights.json").unlink()
    allowed = f"data for this model, or a --tokenizer ({model} has none)"
    for argv in (["evaluate", model], ["inspect", model, "--out", tmp_path / "new"]):
        assert_refused(command(*argv), f"--data: got nothing; allowed: {allowed}")
    assert command("evaluate", model, "--data", corpus, "--windows", 1).code == 0


def test_more_windows_and_rows_than_there_are_is_all(command, run, tmp_path, monkeypatch):
    done = command("evaluate", run, "--windows", 10**6, "--rows", 10**6, "--json")
    assert done.code == 0, done.err
    whole = json.loads(command("evaluate", run, "--json").out)
    assert json.loads(done.out)[0]["tokens"] == whole[0]["tokens"]
    monkeypatch.setitem(sys.modules, "matplotlib", None)  # drawing takes most of the time
    argv = ["inspect", run, "--rows", 10**6, "--no-ablation", "--out", tmp_path / "new"]
    assert command(*argv).code == 0
    text = json.loads((tmp_path / "new" / "inspect.json").read_text())["text"]
    assert text["rows"] == whole[0]["tokens"] // text["length"]


def test_a_loss_that_is_not_finite_is_an_error(command, copy, monkeypatch, tmp_path):
    def lost(*_, **__):
        return torch.tensor(float("nan"))

    monkeypatch.setattr(sys.modules["depth_memory.train.evaluate"], "summed_loss", lost)
    out, figure = tmp_path / "out.json", tmp_path / "out.png"
    done = command("evaluate", copy, "--json", "--out", out, "--figure", figure)
    assert done.code == 2
    assert done.out == ""
    assert done.lines[-1].endswith("(validation) is nan")
    assert not out.exists()
    assert not figure.exists()


def test_a_score_that_is_not_finite_is_an_error(command, copy, monkeypatch, tmp_path):
    monkeypatch.setattr("depth_memory.cli.evaluate._evaluated", lambda *_: {"loss": float("inf")})
    done = command("evaluate", copy, "--out", tmp_path / "out.json")
    assert_refused(done, "[0].loss: got inf; allowed: a finite number")
    assert not (tmp_path / "out.json").exists()


def test_a_picture_comes_after_the_evaluation(command, copy, tmp_path):
    figure = tmp_path / "new" / "curves.png"
    done = command("evaluate", copy, "--figure", figure, "--length", 10_000)
    assert_refused(done, "--length: got 10000; allowed: ")
    assert not figure.parent.exists()
    assert command("evaluate", copy, "--figure", figure, "--windows", 1).code == 0
    assert figure.read_bytes()[:4] == b"\x89PNG"


@pytest.mark.parametrize("name", ["file", "file/new", "taken"])
def test_a_place_that_cannot_be_written_is_found_before_the_work(command, copy, tmp_path, name):
    (tmp_path / "file").write_text("mine")
    (tmp_path / "taken" / "statistics.png").mkdir(parents=True)
    before = contents(tmp_path)
    done = command("inspect", copy, "--out", tmp_path / name)
    assert_refused(done, "--out: ")
    assert str(tmp_path / name) in done.err
    if name == "file/new":
        assert_refused(command("evaluate", copy, "--out", tmp_path / name), "--out: cannot write ")
    assert contents(tmp_path) == before


def test_a_run_trained_from_its_corpus_is_evaluated_elsewhere(
    command, corpus, tmp_path, monkeypatch
):
    monkeypatch.chdir(corpus.parent)
    assert command("train", "debug", *on(corpus.name, tmp_path / "new")).code == 0
    monkeypatch.chdir(tmp_path)
    assert weights_of(command, "new")[0] == "new/model"
