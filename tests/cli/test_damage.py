"""Damage to data, checkpoints and saved models is one line that names what is damaged."""

import json
import shutil

import pytest

from tests.cli.conftest import assert_refused, on

pytestmark = pytest.mark.usefixtures("elsewhere")


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


def empty(path):
    path.write_bytes(b"")


def remove(path):
    path.unlink()


def replace_by_a_folder(path):
    path.unlink()
    path.mkdir()


def grow(path):
    path.write_bytes(path.read_bytes() + b"\n")


@pytest.mark.parametrize("damage", [cut, flip, empty, remove, replace_by_a_folder, grow])
@pytest.mark.parametrize("file", ["train/00000.npy", "tokenizer.json", "manifest.json"])
def test_verify_says_in_one_line_what_is_wrong(command, corpus, tmp_path, damage, file):
    damaged = shutil.copytree(corpus, tmp_path / "damaged")
    damage(damaged / file)
    done = command("data", "verify", damaged)
    if damage is grow and file.endswith(".json"):
        assert done.code == 0  # white space at the end of JSON means nothing
        return
    assert (done.code, done.out) == (2, "")
    assert [line for line in done.lines if line.startswith("error: ")] == done.lines[-1:]
    assert str(damaged) in done.lines[-1]
    if file != "manifest.json":
        assert file in done.lines[-1] or "tokenizer" in done.lines[-1]


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
