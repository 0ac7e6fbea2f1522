import errno
import itertools
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from tokenizers.processors import TemplateProcessing

from depth_memory.data import (
    Progress,
    encoding,
    open_split,
    pipeline,
    prepare,
    read_manifest,
    verify,
)
from depth_memory.data.sources import Document
from depth_memory.data.tokenizer import tokenizer_from_json, tokenizers

AWKWARD = ["a", "", "x" * 10_000, " \n", "b"]


def contents(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def ids_of(folder, split="train"):
    data = open_split(folder, split)
    return data.read(0, data.tokens)


def with_begin(tokenizer, *, added):
    """The same tokenizer with a begin-of-text token, put before each text by itself if `added`."""
    backend = tokenizers.Tokenizer.from_str(tokenizer.json)
    backend.add_special_tokens(["<s>"])
    if added:
        begin = backend.token_to_id("<s>")
        backend.post_processor = TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", begin)]
        )
        assert backend.encode("a").ids[0] == begin
    return tokenizer_from_json(backend.to_str(), name="with begin")


@pytest.mark.parametrize("workers", [1, 4])
@pytest.mark.parametrize("begin", ["none", "defined", "added"])
def test_one_separator_per_document_that_is_not_empty(tmp_path, jsonl, tokenizer, begin, workers):
    expected = [[*tokenizer.encode(text), 0] for text in ("a", "x" * 10_000, "b")]
    if begin != "none":
        tokenizer = with_begin(tokenizer, added=begin == "added")
    manifest = prepare(
        [jsonl(*AWKWARD)], tmp_path / "out", tokenizer=tokenizer, validation=0, workers=workers
    )
    assert ids_of(tmp_path / "out").tolist() == list(itertools.chain(*expected))
    assert (manifest.splits["train"].documents, manifest.empty_documents) == (3, 2)
    assert manifest.splits["train"].bytes == 10_002
    assert manifest.recipe.separator == "eos"
    assert (manifest.end_id, manifest.recipe.end) == (0, "<|endoftext|>")


def test_separator_none_puts_nothing_between(tmp_path, jsonl, tokenizer):
    prepare([jsonl("a", "b")], tmp_path / "o", tokenizer=tokenizer, validation=0, separator="none")
    assert ids_of(tmp_path / "o").tolist() == [*tokenizer.encode("a"), *tokenizer.encode("b")]


def test_a_text_that_spells_the_separator_gets_no_extra_one(tmp_path, jsonl, tokenizer):
    text = "before <|endoftext|> after"
    prepare([jsonl(text)], tmp_path / "out", tokenizer=tokenizer, validation=0)
    ids = ids_of(tmp_path / "out")
    assert (ids == 0).sum() == 1
    assert tokenizer.decode(ids[:-1]) == text


def test_a_text_that_encodes_to_the_separator_is_refused(tmp_path, jsonl, words, refused):
    # here the end of text is an ordinary word of the vocabulary
    source = jsonl("w1 w2", "w1 <|endoftext|>")
    with refused(f"{source}:2", "separator"):
        prepare([source], tmp_path / "out", tokenizer=words(5), validation=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("validation", [5, 0.3])
def test_output_is_the_same_for_any_number_of_workers(
    tmp_path, jsonl, tokenizer, monkeypatch, validation
):
    monkeypatch.setattr(encoding, "GROUP_BYTES", 64)
    source = jsonl(*(f"text {i} " * (i % 7) for i in range(60)))
    for workers in (1, 2, 4):
        prepare(
            [source],
            tmp_path / str(workers),
            tokenizer=tokenizer,
            validation=validation,
            workers=workers,
            shard_tokens=100,
        )
    one = contents(tmp_path / "1")
    assert len(one) > 5
    assert contents(tmp_path / "2") == one == contents(tmp_path / "4")


def test_splits_share_no_document_and_lose_none(tmp_path, jsonl, tokenizer):
    texts = [f"number {i}." for i in range(40)]
    source = jsonl(*texts, *texts[:10])
    manifest = prepare([source], tmp_path / "out", tokenizer=tokenizer, validation=6)
    decoded = {
        split: tokenizer.decode(ids_of(tmp_path / "out", split)).split("<|endoftext|>")[:-1]
        for split in manifest.splits
    }
    train, held_out = set(decoded["train"]), set(decoded["validation"])
    assert len(held_out) == 6
    assert train.isdisjoint(held_out)
    assert sorted(decoded["train"] + decoded["validation"]) == sorted(texts + texts[:10])
    assert manifest.splits["train"].documents == len(decoded["train"])


def test_counts_and_manifest(tmp_path, tokenizer):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/a.txt").write_text("naïve\n<|endoftext|>\nfox\n")
    manifest = prepare([tmp_path / "in"], tmp_path / "out", tokenizer=tokenizer, validation=0)
    split = manifest.splits["train"]
    assert split.bytes == len("naïve".encode()) + len("fox")
    assert split.tokens == len(tokenizer.encode("naïve")) + len(tokenizer.encode("fox")) + 2
    assert [source.name for source in manifest.recipe.sources] == ["a.txt"]
    assert manifest == read_manifest(tmp_path / "out") == verify(tmp_path / "out")
    assert list(manifest.splits) == ["train"]


def test_a_failed_read_leaves_nothing(tmp_path, jsonl, tokenizer, refused):
    source = jsonl("a", "b")
    source.write_text(source.read_text() + '{"text": null}\n')
    with refused(f"{source}:3"):
        prepare([source], tmp_path / "out", tokenizer=tokenizer, validation=0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [source.name]


def test_empty_corpora_are_refused(tmp_path, jsonl, tokenizer, refused):
    for texts in ((), ("", " \n")):
        with refused("sources", "no text"):
            prepare([jsonl(*texts)], tmp_path / "out", tokenizer=tokenizer, validation=0)
    with refused("validation", "0.5", "pass a number"):
        prepare([jsonl("a")], tmp_path / "out", tokenizer=tokenizer, validation=0.5)
    with refused("validation", "1"):
        prepare([jsonl("a")], tmp_path / "out", tokenizer=tokenizer, validation=1)
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("argument", "value", "allowed"),
    [
        ("workers", 0, "at least 1"),
        ("shard_tokens", 0, "at least 1"),
        ("separator", "bos", "eos, none"),
        ("validation", 2.0, "a share"),
    ],
)
def test_bad_arguments_are_refused(tmp_path, jsonl, tokenizer, refused, argument, value, allowed):
    with refused(argument, value, allowed):
        prepare([jsonl("a")], tmp_path / "out", tokenizer=tokenizer, **{argument: value})


def test_the_same_recipe_is_verified_and_reused(tmp_path, jsonl, tokenizer, monkeypatch):
    source = jsonl("a", "b", "c")
    first = prepare([source], tmp_path / "out", tokenizer=tokenizer, validation=1)
    before = contents(tmp_path / "out")
    monkeypatch.setattr(pipeline, "filling", None)
    assert prepare([source], tmp_path / "out", tokenizer=tokenizer, validation=1) == first
    assert contents(tmp_path / "out") == before


def test_an_existing_folder_is_never_overwritten(tmp_path, jsonl, tokenizer, words, refused):
    source, out = jsonl("w1 w2", "w3"), tmp_path / "out"
    prepare([source], out, tokenizer=tokenizer, validation=1)
    before = contents(out)
    for change, named in (
        ({"separator": "none"}, "separator"),
        ({"validation": 0}, "validation"),
        ({"tokenizer": words(5)}, "tokenizer"),
        ({"shard_tokens": 7}, "shard_tokens"),
    ):
        with refused("out", out, "another", named):
            prepare([source], out, **{"tokenizer": tokenizer, "validation": 1, **change})
    with refused("out", "another sources"):
        prepare([jsonl("w1", "w2", name="2.jsonl")], out, tokenizer=tokenizer, validation=1)
    assert contents(out) == before


def test_an_altered_or_foreign_target_is_left_as_it_is(tmp_path, jsonl, tokenizer, refused):
    source, out = jsonl("a", "b"), tmp_path / "out"
    out.mkdir()
    (out / "thesis.txt").write_text("mine")
    with refused("out", out, "exists"):
        prepare([source], out, tokenizer=tokenizer, validation=0)
    assert contents(out) == {"thesis.txt": b"mine"}
    with refused("out", "exists"):
        prepare([source], source, tokenizer=tokenizer, validation=0)
    prepare([source], tmp_path / "two", tokenizer=tokenizer, validation=0)
    (tmp_path / "two/train/00000.npy").unlink()
    with refused("out", "exists", "missing shard"):
        prepare([source], tmp_path / "two", tokenizer=tokenizer, validation=0)


def test_an_empty_folder_may_be_filled(tmp_path, jsonl, tokenizer):
    (tmp_path / "out").mkdir()
    prepare([jsonl("a")], tmp_path / "out", tokenizer=tokenizer, validation=0)
    verify(tmp_path / "out")


@pytest.mark.parametrize("module", ["shards", "tokenizer", "manifest"])
def test_a_full_disk_leaves_nothing(tmp_path, jsonl, tokenizer, monkeypatch, refused, module):
    def full(path, blocks):
        path.write_bytes(b"half")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    source = jsonl("a", "b")
    monkeypatch.setattr(f"depth_memory.data.{module}.write_durably", full)
    with refused("out", tmp_path / "out", "No space left on device"):
        prepare([source], tmp_path / "out", tokenizer=tokenizer, validation=0)
    assert list(tmp_path.iterdir()) == [source]


KILLED = """
import os, signal, sys
import depth_memory.data.filling as filling, depth_memory.data.pipeline as pipeline
filling.write_manifest = lambda *_: os.kill(os.getpid(), signal.SIGKILL)
pipeline.prepare([sys.argv[1]], sys.argv[2], tokenizer=sys.argv[3], validation=0)
"""


def test_a_killed_run_is_not_taken_for_a_whole_one(tmp_path, jsonl, tokenizer, refused):
    source, out = jsonl("a", "b"), tmp_path / "out"
    tokenizer.save(tmp_path / "tokenizer.json")
    command = [sys.executable, "-c", KILLED, source, out, tmp_path / "tokenizer.json"]
    assert subprocess.run(list(map(str, command))).returncode == -signal.SIGKILL
    with refused(out, "not a prepared corpus"):
        open_split(out, "train")
    partial = tmp_path / ".out.preparing" / "corpus"
    assert (partial / "train/00000.npy").exists()
    with refused(partial, "not a prepared corpus"):
        open_split(partial, "train")
    prepare([source], out, tokenizer=tokenizer, validation=0)
    verify(out)
    assert not (tmp_path / ".out.preparing").exists()


def test_documents_are_taken_only_as_fast_as_they_are_written(monkeypatch):
    monkeypatch.setattr(encoding, "GROUP_BYTES", 1)
    taken = []

    def endless():
        for i in itertools.count():
            taken.append(i)
            yield Document(text="a", utf8=b"a", where=str(i))

    encoded = encoding.encoded_in_order(endless(), lambda document: document, 3)
    assert [document.where for document in itertools.islice(encoded, 20)] == list(
        map(str, range(20))
    )
    assert len(taken) < 20 + 10
    encoded.close()


def test_progress_ends_at_the_totals(tmp_path, jsonl, tokenizer):
    seen = []
    prepare(
        [jsonl(*AWKWARD)],
        tmp_path / "out",
        tokenizer=tokenizer,
        validation=0,
        on_progress=seen.append,
    )
    tokens = open_split(tmp_path / "out", "train").tokens
    assert seen[-1] == Progress(documents=5, tokens=tokens, bytes=10_002, share=1.0)
    assert [progress.documents for progress in seen] == [1, 2, 3, 4, 5]
    shares = [progress.share for progress in seen]
    assert shares == sorted(shares)


def test_the_folder_carries_its_tokenizer(tmp_path, jsonl, tokenizer):
    prepare([jsonl("a", "b")], tmp_path / "out", tokenizer=tokenizer, validation=0)
    data = open_split(tmp_path / "out", "train")
    assert data.tokenizer.sha256 == data.tokenizer_sha256 == tokenizer.sha256
    assert np.array_equal(data.tokenizer.encode("fox"), tokenizer.encode("fox"))
    assert json.loads((tmp_path / "out/manifest.json").read_text())["format"] == 1
