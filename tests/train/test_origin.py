"""Going on from a pretrained model: what is trained, how fast, and exactly when interrupted."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from depth_memory import data, models
from depth_memory.convert import convert
from depth_memory.errors import UserError
from depth_memory.files import sha256_of
from depth_memory.models.names import is_of_stream
from depth_memory.train import Run, ScheduleSpec, continued, load_run, read_metrics, train
from depth_memory.train import checkpoint as checkpoints
from depth_memory.train.optim import adamw, set_learning_rate
from tests.train.processes import call, call_ranks, start
from tests.train.runs import STEPS, curve, finish, sessions, short, weights
from tests.train.test_kill import die_at

LDM = {"name": "ldm", "groups": 2, "key_dim": 4, "read_rank": 8, "write_rank": 8}
AT_ONCE = ScheduleSpec(warmup=0)
SIZE = {
    "vocab_size": 270,  # more than the tokenizer has
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "max_position_embeddings": 64,
    "tie_word_embeddings": True,
    "attention_bias": True,  # which a run cannot say of a network of its own
    "rope_parameters": {"rope_type": "linear", "factor": 2.0, "rope_theta": 5000.0},
    "bos_token_id": None,
    "eos_token_id": 0,
}


@pytest.fixture(scope="module")
def pretrained(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of transformers with the tokenizer of the corpus."""
    folder = tmp_path_factory.mktemp("pretrained") / "plain"
    torch.manual_seed(0)
    LlamaForCausalLM(LlamaConfig(**SIZE)).save_pretrained(folder, max_shard_size="20KB")
    shutil.copy(corpus / "tokenizer.json", folder)
    (folder / "tokenizer_config.json").write_text(
        json.dumps({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|endoftext|>"})
    )
    (folder / "chat_template.jinja").write_text("{{ messages }}")
    return folder


@pytest.fixture(scope="module")
def grafted(pretrained: Path) -> Path:
    convert(pretrained, pretrained.with_name("ldm"), stream=LDM, check=False, shard_bytes=30_000)
    return pretrained.with_name("ldm")


@pytest.fixture
def source(grafted: Path, tmp_path: Path) -> Path:
    """A copy that a test may damage."""
    return shutil.copytree(grafted, tmp_path / "source")


def going_on(corpus: Path, source: Path, out: Path, **changes) -> Run:
    return continued(short(corpus, out, **changes), source)


def loaded(folder: Path) -> dict[str, torch.Tensor]:
    shards = sorted(folder.glob("model*.safetensors"))
    return {name: tensor for shard in shards for name, tensor in load_file(shard).items()}


@pytest.fixture(scope="module")
def whole(corpus: Path, grafted: Path, tmp_path_factory: pytest.TempPathFactory) -> Run:
    run = going_on(corpus, grafted, tmp_path_factory.mktemp("whole") / "run")
    call(finish, run)
    return run


def test_the_network_is_that_of_the_directory(whole: Run, grafted: Path, corpus: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(whole.out / "model")
    theirs = models.DepthLlamaConfig.from_pretrained(grafted)
    for field in ("vocab_size", "attention_bias", "rope_parameters", "stream", "eos_token_id"):
        assert getattr(model.config, field) == getattr(theirs, field), field
    assert whole.model.width == 32
    assert whole.model.rope_theta == 5000.0
    assert load_run(whole.out) == whole


def test_it_begins_with_the_weights_of_the_directory(
    corpus: Path, pretrained: Path, grafted: Path, tmp_path: Path
) -> None:
    """The first loss is that of the plain model, whatever the stream."""
    run = going_on(corpus, grafted, tmp_path / "run", steps=1, schedule=AT_ONCE)
    train(run, show=False)
    batch = data.open_split(corpus, "train").batch(0, rows=4, length=32, seed=0)
    ids = torch.from_numpy(batch)
    plain = LlamaForCausalLM.from_pretrained(pretrained)
    logits = plain(ids[:, :-1]).logits.flatten(0, 1)
    expected = torch.nn.functional.cross_entropy(logits, ids[:, 1:].flatten()).item()
    (record,) = read_metrics(run.out / "metrics.jsonl")
    assert record["loss"] == pytest.approx(expected, rel=1e-6)


def test_what_lies_beside_the_weights_goes_along(whole: Run, grafted: Path) -> None:
    for folder in (whole.out / "model", checkpoints.listed(whole.out / "checkpoints")[0]):
        for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
            assert (folder / name).read_bytes() == (grafted / name).read_bytes()
    tokenizer = AutoTokenizer.from_pretrained(whole.out / "model")
    assert tokenizer.eos_token == "<|endoftext|>"
    assert tokenizer.chat_template == "{{ messages }}"


def test_the_run_records_where_it_came_from(whole: Run, grafted: Path) -> None:
    origin = json.loads((whole.out / "run.json").read_text())["origin"]
    shards = sorted(grafted.glob("*.safetensors"))
    assert len(shards) > 1
    assert origin == {
        "path": str(grafted),
        "sha256": {shard.name: sha256_of(shard) for shard in shards},
    }


@pytest.mark.parametrize("part", [0.5, 0.75])
def test_killed_and_without_its_origin_it_ends_bit_equal(
    corpus: Path, grafted: Path, whole: Run, tmp_path: Path, part: float
) -> None:
    folder = shutil.copytree(grafted, tmp_path / "source")
    run = replace(whole, origin=folder, out=tmp_path / "run")
    count = call(die_at, replace(run, out=tmp_path / "count"), -1)
    process, _ = start(die_at, run, int(part * count))
    process.join(60)
    at = checkpoints.newest(run.out / "checkpoints")
    assert at is not None
    shutil.rmtree(folder)
    call(finish, run)
    assert sessions(run.out)[-1] == at.manifest["step"] < STEPS
    assert weights(run.out) == weights(whole.out)
    assert curve(run.out) == curve(whole.out)
    assert json.loads((run.out / "run.json").read_text())["origin"]["path"] == str(folder)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
def test_a_frozen_backbone_stays_and_the_stream_moves(
    corpus: Path, grafted: Path, tmp_path: Path, precision: str
) -> None:
    run = going_on(corpus, grafted, tmp_path / "run", freeze="backbone", precision=precision)
    train(run, show=False)
    before, after = loaded(grafted), loaded(run.out / "model")
    assert before.keys() == after.keys()
    moved = {n for n, t in before.items() if not torch.equal(t.to(after[n].dtype), after[n])}
    assert moved
    assert all(is_of_stream(name) for name in moved)
    final = checkpoints.listed(run.out / "checkpoints")[0]
    moments = load_file(final / "optimizer.safetensors")
    assert {name.rpartition(".")[0] for name in moments} == {n for n in before if is_of_stream(n)}
    again = replace(run, out=tmp_path / "again")
    train(replace(again, steps=STEPS), show=False)
    assert weights(again.out) == weights(run.out)


def test_a_frozen_run_resumes_to_the_bit(corpus: Path, grafted: Path, tmp_path: Path) -> None:
    run = going_on(corpus, grafted, tmp_path / "run", freeze="backbone", keep=3)
    finish(run)
    expected = weights(run.out)
    shutil.rmtree(run.out / "model")
    shutil.rmtree(run.out / "checkpoints" / f"step-{STEPS:08d}")
    finish(run)
    assert sessions(run.out) == [0, 4]
    assert weights(run.out) == expected


def test_without_freezing_everything_moves(whole: Run, grafted: Path) -> None:
    before, after = loaded(grafted), loaded(whole.out / "model")
    still = {n for n, tensor in before.items() if torch.equal(tensor, after[n])}
    assert still == set()


def test_the_stream_has_a_rate_of_its_own(corpus: Path, grafted: Path, tmp_path: Path) -> None:
    """Adam's first step is the rate in every entry, whatever the gradient."""
    run = going_on(corpus, grafted, tmp_path / "run", steps=1, schedule=AT_ONCE)
    optim = replace(run.optim, lr=1e-6, stream_lr=1e-2, weight_decay=0.0, eps=1e-12)
    train(replace(run, optim=optim), show=False)
    before, after = loaded(grafted), loaded(run.out / "model")
    for name, tensor in before.items():
        step = (after[name] - tensor).abs().max().item()
        if step:
            expected = (1e-2 if is_of_stream(name) else 1e-6) * run.schedule.floor
            assert step == pytest.approx(expected, rel=0.2), name
    (record,) = read_metrics(run.out / "metrics.jsonl")
    assert record["lr"] == pytest.approx(1e-6 * run.schedule.floor)


def test_without_it_the_groups_are_as_ever(corpus: Path, grafted: Path) -> None:
    model = AutoModelForCausalLM.from_pretrained(grafted)
    named = dict(model.named_parameters())
    run = going_on(corpus, grafted, Path("unused"))
    optimizer = adamw(named, run.optim)
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]
    set_learning_rate(optimizer, 0.3)
    assert {group["lr"] for group in optimizer.param_groups} == {0.3}
    assert sum(len(group["params"]) for group in optimizer.param_groups) == len(named)


def losses(run: Run) -> list[float]:
    return [record["loss"] for record in read_metrics(run.out / "metrics.jsonl")]


@pytest.mark.parametrize("freeze", ["none", "backbone"])
def test_two_processes_go_on_as_one(
    corpus: Path, grafted: Path, tmp_path: Path, freeze: str
) -> None:
    one = going_on(corpus, grafted, tmp_path / "one", freeze=freeze, steps=3)
    two = replace(one, out=tmp_path / "two")
    call(finish, one)
    call_ranks(2, finish, two)
    assert losses(two) == pytest.approx(losses(one), abs=1e-6)
    ours, theirs = loaded(two.out / "model"), loaded(one.out / "model")
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], atol=1e-5, rtol=0, msg=name)


def configured(folder: Path, **changes: object) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)


def without_end(folder: Path) -> None:
    path = folder / "tokenizer.json"
    path.write_text(path.read_text().replace("<|endoftext|>", "<|nothing|>"))


def lacking(folder: Path) -> None:
    (folder / "weights.json").unlink()
    shard = sorted(folder.glob("*.safetensors"))[0]
    state = load_file(shard)
    name = sorted(state)[0]
    save_file({k: v for k, v in state.items() if k != name}, shard)
    index = folder / "model.safetensors.index.json"
    content = json.loads(index.read_text())
    del content["weight_map"][name]
    index.write_text(json.dumps(content))


BROKEN: dict[str, tuple[Callable[[Path], object], str]] = {
    "nothing there": (shutil.rmtree, "config.json: not the configuration of a model"),
    "plain transformers": (
        lambda d: configured(d, model_type="llama"),
        "model_type: got 'llama'; allowed: a model with a stream; depth-memory convert",
    ),
    "another architecture": (lambda d: configured(d, model_type="gpt2"), "model_type: got 'gpt2'"),
    "a stream of a newer version": (
        lambda d: configured(d, stream={"name": "ldm", "fly": 1}),
        "config.json: stream.fly: got 1; allowed: a field of ldm",
    ),
    "altered weights": (
        lambda d: flip(sorted(d.glob("*.safetensors"))[1]),
        "model-00002-of-00005.safetensors was altered (SHA-256 differs)",
    ),
    "a weight too few": (lacking, "weights are missing: model."),
    "no tokenizer": (lambda d: (d / "tokenizer.json").unlink(), "tokenizer: cannot read "),
    "a tokenizer without an end": (without_end, "has no end-of-text token; looked for <|endoftext"),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_origin_is_refused_in_one_line(
    corpus: Path, grafted: Path, source: Path, tmp_path: Path, case: str
) -> None:
    damage, message = BROKEN[case]
    damage(source)
    with pytest.raises(UserError) as error:
        train(going_on(corpus, source, tmp_path / "run"), show=False)
    assert message in str(error.value)
    assert "\n" not in str(error.value)
    assert not (tmp_path / "run" / "run.json").exists()


def test_data_of_another_tokenizer_is_refused(grafted: Path, tmp_path: Path) -> None:
    (tmp_path / "text.txt").write_text("something else\n" * 99)
    (tmp_path / "more.txt").write_text("and once more\n" * 99)
    other = data.train_tokenizer(["something else, something more"], 262)
    texts = [tmp_path / "text.txt", tmp_path / "more.txt"]
    data.prepare(texts, tmp_path / "other", tokenizer=other, validation=1)
    with pytest.raises(UserError, match=r"other: tokenizer: got '\w{12}'; allowed: \w{12}, the mo"):
        train(going_on(tmp_path / "other", grafted, tmp_path / "run"), show=False)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": {"width": 64}}, r"^model\.width: got 64; allowed: 32, as in "),
        ({"model": {"stream": {"name": "hc"}}}, r"^model\.stream\.name: got 'hc'; allowed: 'ldm'"),
        ({"origin": None, "freeze": "backbone"}, r"^freeze: got 'backbone'; allowed: none, for"),
        ({"optim": {"stream_lr": 0.0}}, r"^optim\.stream_lr: got 0\.0; allowed: a number above 0"),
    ],
)
def test_what_does_not_fit_is_refused(
    corpus: Path, grafted: Path, tmp_path: Path, change: dict, message: str
) -> None:
    run = going_on(corpus, grafted, tmp_path / "run")
    for name, value in change.items():
        part = replace(getattr(run, name), **value) if isinstance(value, dict) else value
        run = replace(run, **{name: part})
    with pytest.raises(UserError, match=message):
        train(run, show=False)


def test_a_stream_without_parameters_cannot_be_trained_alone(
    corpus: Path, pretrained: Path, tmp_path: Path
) -> None:
    convert(pretrained, tmp_path / "preln", stream={"name": "preln"}, check=False)
    run = going_on(corpus, tmp_path / "preln", tmp_path / "run", freeze="backbone")
    with pytest.raises(UserError, match=r"^freeze: got 'backbone'; allowed: none, for stream pre"):
        train(run, show=False)


def test_an_origin_that_changed_before_the_first_checkpoint(
    corpus: Path, source: Path, tmp_path: Path
) -> None:
    run = going_on(corpus, source, tmp_path / "run")
    finish(run)
    for path in (run.out / "model", *(run.out / "checkpoints").iterdir()):
        shutil.rmtree(path)
    (run.out / "metrics.jsonl").unlink()
    (source / "weights.json").unlink()
    flip(sorted(source.glob("*.safetensors"))[1])
    with pytest.raises(UserError, match=r"^origin: .*source has other weights than .* began with"):
        train(run, show=False)


def test_a_resume_may_compute_the_stream_in_another_way(
    corpus: Path, source: Path, tmp_path: Path
) -> None:
    run = going_on(corpus, source, tmp_path / "run", steps=2, schedule=AT_ONCE, eval_every=0)
    train(run, show=False)
    stream = replace(run.model.stream, impl="reference")
    other = replace(run, model=replace(run.model, stream=stream))
    train(other, show=False)
    assert models.DepthLlamaConfig.from_pretrained(run.out / "model").stream["impl"] == "reference"
