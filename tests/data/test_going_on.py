"""A preparation that was killed goes on to the bytes of one that was not."""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depth_memory.data import encoding, filling, open_split, prepare, staging, verify
from depth_memory.errors import UserError
from tests.data.test_prepare import contents
from tests.killing import die_at
from tests.train.processes import call, start

TEXTS = [f"number {i} of the texts. " * (i % 9) for i in range(90)]


@pytest.fixture(scope="module")
def sources(tmp_path_factory) -> Path:
    """JSON lines, Parquet with several groups of rows, and plain text; some texts are empty."""
    folder = tmp_path_factory.mktemp("sources")
    rows = "".join(json.dumps({"text": text}) + "\n" for text in TEXTS[:30])
    (folder / "a.jsonl").write_text(rows)
    pq.write_table(pa.table({"text": TEXTS[30:60]}), folder / "b.parquet", row_group_size=7)
    (folder / "c.txt").write_text("\n<|endoftext|>\n".join(TEXTS[60:]))
    return folder


@pytest.fixture(scope="module")
def make(sources, tokenizer, tmp_path_factory):
    """The arguments of `prepare` for a folder: shards of 300 tokens, a third held out."""
    file = tmp_path_factory.mktemp("tokenizer") / "tokenizer.json"
    tokenizer.save(file)

    def arguments(out: Path, **changes) -> dict:
        given = {"sources": [sources], "out": out, "tokenizer": file, "validation": 0.3}
        return {**given, "shard_tokens": 300, **changes}

    return arguments


@pytest.fixture(scope="module")
def whole(make, tmp_path_factory) -> dict[str, bytes]:
    """What an uninterrupted preparation leaves."""
    out = tmp_path_factory.mktemp("whole") / "out"
    prepare(**make(out))
    found = contents(out)
    assert sum(name.startswith("validation/") for name in found) > 3
    return found


def small_groups(action, **arguments):
    """Documents go to the workers one by one, so that many are on their way at a kill."""
    encoding.GROUP_BYTES = 1
    return action(**arguments)


def killed(fatal: int, arguments: dict) -> bool:
    process, connection = start(die_prepared, fatal, arguments)
    process.join(60)
    assert process.exitcode in (0, -signal.SIGKILL), connection.recv()
    return process.exitcode != 0


def die_prepared(fatal: int, arguments: dict) -> int:
    return die_at(fatal, small_groups, prepare, **arguments)


@pytest.mark.parametrize("chain", range(2))
def test_killed_again_and_again_it_ends_byte_equal(tmp_path, make, whole, chain):
    draw = random.Random(chain)
    moments = call(die_prepared, -1, make(tmp_path / "counted"))
    assert moments > 40
    out = tmp_path / "corpus" / "out"
    for _ in range(3):
        killed(draw.randint(1, moments // 3), make(out, workers=draw.choice([1, 3])))
    prepare(**make(out, workers=2))
    assert contents(out) == whole
    verify(out)
    assert [path.name for path in out.parent.iterdir()] == ["out"]


def test_killed_at_every_moment_of_its_end_it_ends_byte_equal(tmp_path, make, whole):
    moments = call(die_prepared, -1, make(tmp_path / "counted"))
    for fatal in range(moments - 9, moments + 1, 3):
        out = tmp_path / str(fatal) / "out"
        assert killed(fatal, make(out))
        prepare(**make(out))
        assert contents(out) == whole
        assert [path.name for path in out.parent.iterdir()] == ["out"]


@pytest.fixture
def half(tmp_path, make) -> Path:
    """A folder whose preparation was killed half way."""
    out = tmp_path / "out"
    assert killed(25, make(out))
    assert staging.load(staging.place_of(out)).documents > 10
    return out


def test_finished_shards_and_read_documents_are_not_done_again(half, make, monkeypatch):
    done = staging.load(staging.place_of(half))
    notes, seen, taken = [], [], []
    real = filling.encode
    monkeypatch.setattr(filling, "encode", lambda *args: (taken.append(1), real(*args))[1])
    prepare(**make(half, on_note=notes.append, on_progress=seen.append))
    assert notes == [f"going on after document {done.documents}"]
    assert len(taken) == 90 - done.documents
    assert seen[0].documents == done.documents + 1
    splits = [open_split(half, name) for name in ("train", "validation")]
    assert seen[-1].tokens == sum(split.tokens for split in splits)
    assert (seen[-1].documents, seen[-1].share) == (90, 1.0)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"shard_tokens": 50}, "shard_tokens"),
        ({"validation": 0.2}, "validation"),
        ({"separator": "none", "text_field": "body"}, "separator, text_field"),
    ],
)
def test_another_command_over_half_finished_work_is_refused(half, make, refused, change, named):
    before = contents(half.parent)
    place = staging.place_of(half)
    with refused("out: ", half, f"half finished with another {named}, in {place}; ", "--restart"):
        prepare(**make(half, **change))
    assert contents(half.parent) == before


def test_restart_throws_half_finished_work_away(half, make, whole):
    notes = []
    prepare(**make(half, restart=True, on_note=notes.append))
    assert notes == []
    assert contents(half) == whole


def test_a_source_that_changed_in_between_is_noticed(half, make, sources, refused, whole):
    path = sources / "c.txt"
    text = path.read_text()
    try:
        path.write_text(text.replace("number 89", "number 98"))
        with refused("half finished with another sources (c.txt has changed)"):
            prepare(**make(half))
    finally:
        path.write_text(text)
    prepare(**make(half))  # another time, but the same content
    assert contents(half) == whole


def test_a_source_that_changes_while_it_is_read_is_noticed(tmp_path, jsonl, tokenizer, refused):
    source = jsonl("a", "b")

    def touch(progress):
        os.utime(source, ns=(1, 1))

    with refused(f"{source}: changed while it was read"):
        prepare([source], tmp_path / "o", tokenizer=tokenizer, validation=0, on_progress=touch)
    assert list(tmp_path.iterdir()) == [source]


def test_a_source_that_vanishes_while_it_is_read_is_named(tmp_path, jsonl, tokenizer, refused):
    source = jsonl("a", "b")
    with refused(f"{source}: cannot be read: No such file or directory"):
        prepare(
            [source],
            tmp_path / "o",
            tokenizer=tokenizer,
            validation=0,
            on_progress=lambda progress: source.unlink(missing_ok=True),
        )
    assert list(tmp_path.iterdir()) == []


def test_a_link_to_an_empty_folder_is_filled(tmp_path, make, whole):
    real, out = tmp_path / "elsewhere" / "real", tmp_path / "out"
    real.mkdir(parents=True)
    out.symlink_to(real)
    assert killed(25, make(out))
    prepare(**make(out))
    assert contents(real) == whole
    assert out.is_symlink()
    assert [path.name for path in real.parent.iterdir()] == ["real"]


def test_a_mount_point_is_refused_before_anything_is_read(tmp_path, make, refused, monkeypatch):
    out = tmp_path / "out"
    out.mkdir()
    monkeypatch.setattr(Path, "is_mount", lambda path: path == out)
    with refused("out: got ", str(out), "a folder that is no mount point"):
        prepare(**make(out))
    assert list(tmp_path.iterdir()) == [out]


def test_half_finished_work_is_not_taken_for_data(half, refused):
    for place in (half, staging.place_of(half)):
        with refused(f"{place}: not a prepared corpus: half finished; give its command"):
            verify(place)


@pytest.mark.parametrize("damage", ["state.json", "tails", "corpus", "cut"])
def test_damaged_half_finished_work_is_refused(half, make, refused, damage, whole):
    place = staging.place_of(half)
    if damage == "state.json":
        (place / damage).write_text((place / damage).read_text().replace('"empty": ', '"empty": 1'))
    else:
        state = staging.load(place)
        split = max(state.tails, key=lambda name: state.tails[name].tokens)
        tail = staging.tail_name(split, len(state.splits[split].shards))
        shard = next(shards[0] for s in state.splits.values() if (shards := s.shards)).file
        if damage == "cut":
            os.truncate(place / "corpus" / shard, 200)
        else:
            (place / damage / (tail if damage == "tails" else shard)).unlink()
    with refused(place, "--restart"):
        prepare(**make(half))
    prepare(**make(half, restart=True))
    assert contents(half) == whole


def test_a_failure_half_way_keeps_what_is_finished(tmp_path, make, whole, monkeypatch, refused):
    out, real = tmp_path / "out", filling.encode

    def encode(document, *rest):
        if document.end.file == 2:
            raise UserError("the disk has a bad day")
        return real(document, *rest)

    monkeypatch.setattr(encoding, "GROUP_BYTES", 1)
    monkeypatch.setattr(filling, "encode", encode)
    with refused(f"the disk has a bad day; what is finished stays in {staging.place_of(out)} for"):
        prepare(**make(out))
    monkeypatch.setattr(filling, "encode", real)
    notes = []
    prepare(**make(out, on_note=notes.append))
    assert len(notes) == 1
    assert contents(out) == whole


def test_what_another_process_made_meanwhile_is_taken(tmp_path, make, whole, monkeypatch):
    prepare(**make(tmp_path / "theirs"))
    real = staging.finish

    def finish(place, target):
        shutil.copytree(tmp_path / "theirs", target)
        real(place, target)

    monkeypatch.setattr(staging, "finish", finish)
    prepare(**make(tmp_path / "out"))
    assert contents(tmp_path / "out") == whole
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out", "theirs"]


def test_killed_before_anything_is_noted_it_begins_again(tmp_path, make, whole):
    noted = 0
    for fatal in range(1, 14, 2):
        out = tmp_path / str(fatal) / "out"
        assert killed(fatal, make(out))
        noted += (staging.place_of(out) / "state.json").exists()
        prepare(**make(out))
        assert contents(out) == whole
    assert 0 < noted < 7
