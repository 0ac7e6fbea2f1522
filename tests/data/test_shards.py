import numpy as np
import pytest

from depth_memory.data import open_split, prepare
from depth_memory.data.manifest import token_dtype
from depth_memory.data.shards import SplitWriter, open_shard

SIZES = [(65_535, "<u2"), (65_536, "<u2"), (65_537, "<u4"), (151_669, "<u4")]


@pytest.mark.parametrize(("size", "dtype"), SIZES)
def test_every_id_of_a_vocabulary_round_trips(tmp_path, size, dtype):
    ids = np.arange(size)[::-1]
    writer = SplitWriter(tmp_path, "train", token_dtype(size), 50_000)
    writer.add(ids, text_bytes=1)
    split = writer.close()
    shards = [open_shard(tmp_path, shard, np.dtype(dtype)) for shard in split.shards]
    assert np.array_equal(np.concatenate(shards), ids)
    assert [len(shard) for shard in shards[:-1]] == [50_000] * (len(shards) - 1)


@pytest.mark.parametrize(("size", "dtype"), SIZES)
def test_every_vocabulary_round_trips_end_to_end(tmp_path, jsonl, words, size, dtype):
    chosen = [1, 2, 32_767, 32_768, 65_533, size - 2, size - 1]
    source = jsonl(" ".join(f"w{i}" for i in chosen), "w1 w2")
    tokenizer = words(size)
    assert tokenizer.vocab_size == size
    manifest = prepare([source], tmp_path / "out", tokenizer=tokenizer, validation=0)
    assert (manifest.dtype, manifest.vocab_size) == (dtype, size)
    data = open_split(tmp_path / "out", "train")
    assert data.read(0, data.tokens).tolist() == [*chosen, 0, 1, 2, 0]


def test_an_id_that_would_wrap_is_refused(tmp_path, refused):
    writer = SplitWriter(tmp_path, "train", np.dtype("<u2"), 10)
    for bad in (65_536, -1):
        with refused("token id", bad, "0 to 65535"):
            writer.add(np.array([1, bad]), text_bytes=1)


def test_impossible_vocabularies_are_refused(refused):
    for size in (0, 2**32 + 1):
        with refused("vocab_size", size):
            token_dtype(size)


def test_a_shard_is_a_plain_numpy_file(tmp_path):
    writer = SplitWriter(tmp_path, "train", np.dtype("<u2"), 4)
    writer.add(np.arange(6), text_bytes=3)
    writer.add(np.arange(3), text_bytes=2)
    split = writer.close()
    assert (split.documents, split.tokens, split.bytes) == (2, 9, 5)
    assert [shard.file for shard in split.shards] == [f"train/0000{i}.npy" for i in range(3)]
    assert np.load(tmp_path / "train/00001.npy").tolist() == [4, 5, 0, 1]


def test_a_shard_takes_no_more_memory_than_its_tokens(tmp_path):
    writer = SplitWriter(tmp_path, "train", np.dtype("<u2"), 10**18)
    for _ in range(3):
        writer.add(np.arange(5), text_bytes=1)
    split = writer.close()
    assert [shard.tokens for shard in split.shards] == [15]
    found = open_shard(tmp_path, split.shards[0], np.dtype("<u2"))
    assert found.tolist() == [*range(5)] * 3
