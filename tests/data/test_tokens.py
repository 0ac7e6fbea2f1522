import json
import math

import numpy as np
import pytest

from depth_memory.data import bits_per_byte, open_split, prepare
from depth_memory.data.manifest import _checksum

TEXTS = [f"w{i} w{i + 1} w{i + 2}" for i in range(1, 60)]


@pytest.fixture
def folder(tmp_path, jsonl, words):
    """Shards of 16 tokens of a vocabulary of 70, ids 1 to 61 and the separator 0."""
    prepare([jsonl(*TEXTS)], tmp_path / "d", tokenizer=words(70), validation=5, shard_tokens=16)
    return tmp_path / "d"


@pytest.fixture
def train(folder):
    return open_split(folder, "train")


def flat(data):
    return np.concatenate(data.shards).astype(np.int64)


def resign(folder, **changes):
    """Edit the manifest and give it a valid checksum, as a determined user might."""
    path = folder / "manifest.json"
    content = {**json.loads(path.read_text()), **changes}
    content.pop("checksum")
    path.write_text(json.dumps({**content, "checksum": _checksum(content)}))


def test_counts(train):
    assert (train.tokens, train.documents, train.vocab_size) == (54 * 4, 54, 70)
    assert train.bytes == sum(map(len, TEXTS)) - open_split(train.directory, "validation").bytes
    assert train.separator == "eos"


@pytest.mark.parametrize("span", [(0, 1), (0, 216), (15, 17), (16, 32), (40, 200), (215, 216)])
def test_reading_crosses_shards(train, span):
    assert np.array_equal(train.read(*span), flat(train)[slice(*span)])
    assert train.read(*span).dtype == np.int64


def test_an_epoch_of_batches_is_every_window_once(train):
    length, windows = 7, 215 // 7
    batches = np.concatenate(
        [train.batch(step, rows=6, length=length, seed=5) for step in range(windows // 6)]
    )
    expected = {tuple(flat(train)[i * length : (i + 1) * length + 1]) for i in range(windows)}
    assert batches.shape == (windows, length + 1)
    assert batches.dtype == np.int64
    assert set(map(tuple, batches.tolist())) == expected


@pytest.mark.parametrize("world", [2, 4])
def test_ranks_together_are_the_single_process(train, world):
    whole = train.batch(9, rows=8, length=5, seed=1)
    parts = [train.batch(9, rows=8, length=5, seed=1, rank=r, world=world) for r in range(world)]
    assert np.array_equal(np.concatenate(parts), whole)


def test_a_batch_is_a_function_of_its_arguments(folder, train):
    again = open_split(folder, "train")
    for step in (3, 1000, 0):
        batch = train.batch(step, rows=4, length=9, seed=0)
        assert np.array_equal(batch, again.batch(step, rows=4, length=9, seed=0))
    assert not np.array_equal(batch, train.batch(0, rows=4, length=9, seed=1))
    assert not np.array_equal(batch, train.batch(1, rows=4, length=9, seed=0))


@pytest.mark.parametrize("length", [1, 10, 43, 215, 500])
def test_windows_hold_every_target_once(train, length):
    windows = list(train.windows(length))
    assert np.array_equal(np.concatenate([w[1:] for w in windows]), flat(train)[1:])
    assert all(len(window) == length + 1 for window in windows[:-1])


def test_data_shorter_than_a_window_is_refused(train, refused):
    assert train.batch(0, rows=1, length=215, seed=0).shape == (1, 216)
    with refused("length", 216, "at most 215", "216 tokens"):
        train.batch(0, rows=1, length=216, seed=0)
    for call in (lambda: train.batch(0, rows=1, length=0, seed=0), lambda: train.windows(0)):
        with refused("length", 0, "at least 1"):
            call()


def test_one_token_cannot_be_evaluated(tmp_path, jsonl, words, refused):
    prepare([jsonl("w1")], tmp_path / "d", tokenizer=words(5), validation=0, separator="none")
    with refused("train", "tokens", 1, "at least 2"):
        open_split(tmp_path / "d", "train").windows(4)


def test_bits_per_byte_charges_separators_to_the_bytes_of_text(train):
    # one bit for each of 216 tokens, separators included
    assert train.bits_per_byte(math.log(2)) == pytest.approx(216 / train.bytes, rel=1e-12)
    assert bits_per_byte(math.log(256), tokens=10, text_bytes=10) == pytest.approx(8, rel=1e-12)


def test_another_tokenizer_or_vocabulary_is_refused(train, words, refused):
    train.check_tokenizer(words(70))
    train.check_tokenizer(words(70).sha256)
    with refused("tokenizer", train.tokenizer_sha256, words(71).sha256):
        train.check_tokenizer(words(71))
    train.check_vocabulary(70)
    train.check_vocabulary(128)
    with refused("vocab_size", 69, "at least the data's 70"):
        train.check_vocabulary(69)


def test_mixing_policies_is_refused(tmp_path, train, jsonl, words, refused):
    train.check_matches(open_split(train.directory, "validation"))
    source = jsonl("w1 w2", name="other.jsonl")
    prepare([source], tmp_path / "n", tokenizer=words(70), validation=0, separator="none")
    with refused("separator", "none", "eos"):
        train.check_matches(open_split(tmp_path / "n", "train"))
    prepare([source], tmp_path / "t", tokenizer=words(71), validation=0)
    with refused("tokenizer"):
        train.check_matches(open_split(tmp_path / "t", "train"))


def test_missing_folders_and_splits_are_named(tmp_path, folder, refused):
    with refused(tmp_path / "nowhere", "not a prepared corpus"):
        open_split(tmp_path / "nowhere", "train")
    with refused("split", "test", "train, validation"):
        open_split(folder, "test")


def shard_of(folder):
    return folder / "train/00003.npy"


def cut(path):
    path.write_bytes(path.read_bytes()[:-1])


def cut_header(path):
    path.write_bytes(path.read_bytes()[:20])


def empty(path):
    path.write_bytes(b"")


def extend(path):
    path.write_bytes(path.read_bytes() + b"\0\0")


def edit_dtype(path):
    path.write_bytes(path.read_bytes().replace(b"<u2", b"<i2"))


def edit_width(path):
    path.write_bytes(path.read_bytes().replace(b"<u2", b"<u4").replace(b"(16,)", b"(8,) "))


def edit_shape(path):
    path.write_bytes(path.read_bytes().replace(b"(16,)", b"(15,)"))


def pickle_header(path):
    path.write_bytes(path.read_bytes().replace(b"'<u2'", b"'|O' "))


@pytest.mark.parametrize(
    "damage",
    [cut, cut_header, empty, extend, edit_dtype, edit_width, edit_shape, pickle_header],
)
def test_a_shard_of_another_size_or_header_does_not_open(folder, refused, damage):
    before = shard_of(folder).read_bytes()
    damage(shard_of(folder))
    assert shard_of(folder).read_bytes() != before
    with refused(shard_of(folder)):
        open_split(folder, "train")


def test_a_flipped_bit_is_found_by_verify(folder, train, refused):
    train.verify()
    content = bytearray(shard_of(folder).read_bytes())
    content[-2] ^= 1
    shard_of(folder).write_bytes(content)
    data = open_split(folder, "train")
    with refused(shard_of(folder), "altered"):
        data.verify()


def test_an_altered_tokenizer_is_found_by_verify(folder, train, refused, words):
    words(71).save(folder / "tokenizer.json")
    with refused("tokenizer"):
        open_split(folder, "train").verify()


@pytest.mark.parametrize(
    "edit",
    [('"vocab_size": 70', '"vocab_size": 99'), ('"<u2"', '"<u4"'), ('"eos"', '"none"')],
)
def test_an_edited_manifest_does_not_open(folder, refused, edit):
    path = folder / "manifest.json"
    path.write_text(path.read_text().replace(*edit))
    with refused(path, "altered"):
        open_split(folder, "train")


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("", "not the manifest"),
        ("[" * 10**5, "not the manifest"),
        ("[]", "no JSON object"),
        ("{}", "format"),
        ('{"format": 2}', "allowed: 1"),
    ],
)
def test_a_damaged_manifest_does_not_open(folder, refused, content, word):
    (folder / "manifest.json").write_text(content)
    with refused(folder / "manifest.json", word):
        open_split(folder, "train")


def test_a_manifest_of_other_fields_does_not_open(folder, refused):
    resign(folder, colour="red")
    with refused(folder / "manifest.json", "not a manifest"):
        open_split(folder, "train")
    resign(folder, dtype="<u4")
    with refused(folder / "manifest.json"):
        open_split(folder, "train")


def test_ids_beyond_the_vocabulary_are_refused_before_a_step(folder, refused):
    resign(folder, vocab_size=40)
    data = open_split(folder, "train")
    with refused("token id", "below the vocabulary size 40"):
        data.batch(0, rows=4, length=53, seed=0)
    with refused("token id"):
        list(data.windows(8))


def test_a_separator_policy_from_elsewhere_is_refused(folder, refused):
    recipe = json.loads((folder / "manifest.json").read_text())["recipe"]
    resign(folder, recipe={**recipe, "separator": "bos"})
    with refused("separator", "bos", "eos, none"):
        open_split(folder, "train")


def test_bytes_of_the_first_targets_are_those_of_their_text(tmp_path, jsonl, tokenizer):
    texts = ["the naïve — £3", "漢字 🙂", "the end"]
    prepare([jsonl(*texts)], tmp_path / "d", tokenizer=tokenizer, validation=0)
    data = open_split(tmp_path / "d", "train")
    first = len(tokenizer.decode(data.read(0, 1)).encode())
    assert data.target_bytes(data.tokens - 1) == data.bytes - first
    sizes = [data.target_bytes(n) for n in range(1, data.tokens)]
    assert sizes == sorted(sizes)
    for n, size in enumerate(sizes, start=1):
        text = tokenizer.decode(data.read(1, n + 1)).replace(tokenizer.end, "")
        if "\ufffd" not in text:
            assert size == len(text.encode())
    ends = [i for i in range(1, data.tokens) if data.read(i, i + 1)[0] == data.manifest.end_id]
    assert [data.target_bytes(i) - data.target_bytes(i - 1) for i in ends] == [0, 0, 0]


def test_targets_without_text_have_no_bits_per_byte(tmp_path, jsonl, tokenizer, refused):
    prepare([jsonl("a", "b")], tmp_path / "d", tokenizer=tokenizer, validation=0)
    data = open_split(tmp_path / "d", "train")
    with refused("windows", "1 tokens without text"):
        data.bits_per_byte(1.0, targets=1)
