"""A file is whole or as it was; what cannot be written is named; JSON has finite numbers only."""

import errno
import json
import math
import os
from pathlib import Path

import pytest

from depth_memory import files
from depth_memory.cli.outputs import check_file
from depth_memory.errors import UserError
from depth_memory.files import (
    dumps,
    read_json,
    read_sealed,
    replaced_file,
    sealed,
    write_durably,
)


def write_half(path):
    path.write_text("half of the n")
    raise TypeError


def test_a_file_that_fails_leaves_the_old_one_and_no_part(tmp_path):
    (tmp_path / "a.json").write_text("old")
    with pytest.raises(TypeError), replaced_file(tmp_path / "a.json") as partial:
        write_half(partial)
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("a.json", "old")]


@pytest.mark.parametrize("linked", [False, True])
@pytest.mark.parametrize(("make", "kind"), [(os.mkfifo, "a pipe"), (os.mkdir, "a directory")])
def test_what_is_no_regular_file_is_never_replaced(tmp_path, make, kind, linked):
    place = tmp_path / "place"
    make(place)
    if linked:
        (tmp_path / "link").symlink_to(place)
    path = tmp_path / ("link" if linked else "place")
    before = [(p.name, p.lstat().st_ino, p.lstat().st_mode) for p in sorted(tmp_path.iterdir())]
    message = f"cannot write {path}: it is {kind}; allowed: a regular file"
    with pytest.raises(UserError) as error, replaced_file(path) as partial:
        partial.write_text("new")
    assert str(error.value) == message
    with pytest.raises(UserError) as error:
        check_file("--out", path)
    assert str(error.value) == f"--out: {message}"
    after = [(p.name, p.lstat().st_ino, p.lstat().st_mode) for p in sorted(tmp_path.iterdir())]
    assert after == before


@pytest.mark.parametrize("old", [None, "old"])
def test_through_a_link_what_it_points_to_is_written(tmp_path, old):
    (tmp_path / "folder").mkdir()
    target, link = tmp_path / "folder" / "a.json", tmp_path / "link.json"
    if old is not None:
        target.write_text(old)
    link.symlink_to(target)
    with replaced_file(link) as partial:
        partial.write_text("new")
    assert link.is_symlink()
    assert target.read_text() == "new"


def full():
    raise OSError(errno.ENOSPC, "No space left on device")
    yield b""


def test_a_full_disk_is_told_with_the_file(tmp_path):
    with pytest.raises(OSError, match="No space") as error:
        write_durably(tmp_path / "a.npy", full())
    assert error.value.filename == str(tmp_path / "a.npy")
    with pytest.raises(OSError, match="No space") as error, replaced_file(tmp_path / "b.json"):
        next(full())
    assert error.value.filename == str(tmp_path / "b.json")
    assert [path.name for path in tmp_path.iterdir()] == ["a.npy"]


@pytest.mark.parametrize(
    ("value", "name"),
    [
        (math.nan, "result"),
        ({"a": [1.0, {"b": -math.inf}]}, "a[1].b"),
        ([{"loss": math.nan}], "[0].loss"),
    ],
)
def test_json_has_no_number_that_is_not_finite(value, name):
    with pytest.raises(UserError) as error:
        dumps(value)
    assert str(error.value).startswith(f"{name}: got ")
    assert str(error.value).endswith("; allowed: a finite number")


def test_json_of_finite_numbers_comes_back():
    value = {"a": [1.5, None, True, "é", {"b": []}]}
    assert json.loads(dumps(value)) == value


NO_OBJECT = {
    "deep": b"[" * 100_000,
    "deep, but closed": b'{"a":' * 70 + b"1" + b"}" * 70,
    "list": b"[1]",
    "not UTF-8": b'{"a": "\xff"}',
    "cut": b'{"a": ',
}


@pytest.mark.parametrize("name", NO_OBJECT)
def test_what_is_no_json_object_is_one_line(tmp_path, name):
    path = tmp_path / "a.json"
    path.write_bytes(NO_OBJECT[name])
    with pytest.raises(UserError) as error:
        read_json(path, "a thing")
    assert str(error.value).startswith(f"{path}: not a thing (")
    assert "\n" not in str(error.value)
    assert read_sealed(path)[0].startswith("a.json cannot be read (")


def test_what_could_block_or_never_end_is_not_read(tmp_path, monkeypatch):
    os.mkfifo(tmp_path / "pipe")
    for path in (tmp_path / "pipe", Path("/dev/zero")):
        with pytest.raises(UserError, match="not a regular file"):
            read_json(path, "a thing")
    monkeypatch.setattr(files, "LARGEST", 4)
    (tmp_path / "long").write_text('{"a": 1}')
    with pytest.raises(UserError, match="longer than 4 bytes"):
        read_json(tmp_path / "long", "a thing")


@pytest.mark.parametrize(
    ("manifest", "missing"),
    [
        ({"files": {}}, "format"),
        ({"format": True, "files": {}}, "format"),
        ({"format": 1}, "files"),
        ({"format": 1, "files": {"a": 3}}, "files.a"),
        ({"format": 1, "files": {"../a": {"bytes": 1, "sha256": ""}}}, "files.../a"),
    ],
)
def test_a_sealed_manifest_without_its_parts(tmp_path, manifest, missing):
    path = tmp_path / "a.json"
    path.write_text(sealed(manifest))
    assert read_sealed(path) == (f"a.json has no valid {missing}", {})


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("no such key\nfile a, line 1", "no such key"),
        ("error for field 'width':\n    TypeError: got str\nmore", "error for field 'width': Type"),
        ("nothing follows:", "nothing follows:"),
        ("", "ValueError"),
    ],
)
def test_a_reason_is_a_line_with_what_it_announces(text, line):
    assert files.reason(ValueError(text)).startswith(line)
    assert "\n" not in files.reason(ValueError(text))
