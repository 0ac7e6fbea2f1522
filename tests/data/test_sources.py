import errno
import gzip
import json
import lzma
import os
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depth_memory.data import read_rows
from depth_memory.data.sources import find_files, read_documents


def read(path, field="text"):
    return [document.text for document in read_documents(find_files([path]), text_field=field)]


def places(path):
    return [d.where for d in read_documents(find_files([path]), text_field="text")]


@pytest.mark.parametrize(
    ("content", "texts"),
    [
        ("", []),
        ("one", ["one"]),
        ("one\n", ["one"]),
        ("one\n\n", ["one\n"]),
        ("one\n<|endoftext|>\ntwo\n", ["one", "two"]),
        ("one\r\n<|endoftext|>\r\ntwo\r\n", ["one", "two"]),
        ("one\n<|endoftext|>\n", ["one"]),
        ("a\n<|endoftext|>\n<|endoftext|>\nb", ["a", "", "b"]),
        ("in <|endoftext|> line", ["in <|endoftext|> line"]),
        ("\ufeffmarked", ["marked"]),
        ("lone \r stays\n", ["lone \r stays"]),
    ],
)
def test_plain_text_is_cut_at_separator_lines(tmp_path, content, texts):
    path = tmp_path / "a.txt"
    path.write_bytes(content.encode())
    assert read(path) == texts


def test_a_document_knows_its_line(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("one\nmore\n<|endoftext|>\ntwo\n")
    assert places(path) == [f"{path}:1", f"{path}:4"]


def test_a_folder_is_read_recursively_in_sorted_order(tmp_path):
    for name in ("b/2.txt", "b/1.md", "a.txt", "c.jsonl"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('{"text": "c.jsonl"}' if "jsonl" in name else name)
    for ignored in (".hidden.txt", "b/image.png", ".git/x.txt"):
        (tmp_path / ignored).parent.mkdir(exist_ok=True)
        (tmp_path / ignored).write_text("no")
    assert read(tmp_path) == ["a.txt", "b/1.md", "b/2.txt", "c.jsonl"]
    assert [file.name for file in find_files([tmp_path])] == [
        "a.txt",
        "b/1.md",
        "b/2.txt",
        "c.jsonl",
    ]


def test_several_sources_keep_the_order_given(tmp_path):
    for name in ("z.txt", "a.txt"):
        (tmp_path / name).write_text(name)
    files = find_files([tmp_path / "z.txt", tmp_path / "a.txt"])
    assert [d.text for d in read_documents(files, text_field="text")] == ["z.txt", "a.txt"]


def test_json_lines_use_the_field_and_skip_blank_lines(tmp_path):
    path = tmp_path / "a.jsonl"
    path.write_text('{"page": "one\\ntwo", "n": 1}\n\n{"page": ""}\n')
    assert read(path, "page") == ["one\ntwo", ""]


def test_compressed_files_read_like_plain_ones(tmp_path):
    (tmp_path / "a.txt.xz").write_bytes(lzma.compress(b"a\n<|endoftext|>\nb\n"))
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(b'{"text": "c"}\n'))
    assert read(tmp_path) == ["a", "b", "c"]


def test_parquet_uses_the_column(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one", "", "two"], "n": [1, 2, 3]}), path)
    assert read(path) == ["one", "", "two"]
    assert places(path)[2] == f"{path}: row 3"


def test_documents_are_read_as_they_are_needed(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"good\n<|endoftext|>\n\xff\n")
    documents = read_documents(find_files([path]), text_field="text")
    assert next(documents).text == "good"


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b'{"text": null}', ["text", "None", "a string"]),
        (b'{"text": NaN}', ["text", "nan", "a string"]),
        (b'{"text": 3}', ["text", "3", "a string"]),
        (b'{"text": ["a"]}', ["text", "a string"]),
        (b'{"text": "a\\u0000b"}', ["NUL"]),
        (b'{"text": "\\ud800"}', ["surrogate"]),
        (b'{"body": "a", "id": 1}', ["no field 'text'", "body, id"]),
        (b'["a"]', ["list", "JSON object"]),
        (b'{"text": "a"', ["not a line of JSON"]),
        (b'{"text": "\xff"}', ["0xff", "not UTF-8"]),
    ],
)
def test_a_bad_row_names_its_line(tmp_path, refused, line, words):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "fine"}\n' + line + b"\n")
    with refused(f"{path}:2", *words):
        read(path)


@pytest.mark.parametrize(
    ("content", "words"),
    [(b"fine\nbad \xe9t\xe9\n", [":2", "byte 5 (0xe9)"]), (b"fine\nbinary \0\n", ["NUL"])],
)
def test_bad_text_names_file_and_place(tmp_path, refused, content, words):
    path = tmp_path / "a.txt"
    path.write_bytes(content)
    with refused(path, *words):
        read(path)


def test_bad_parquet_names_row_or_columns(tmp_path, refused):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["one", None]}), path)
    with refused(f"{path}: row 2", "a string"):
        read(path)
    pq.write_table(pa.table({"text": [1.0, float("nan")]}), path)
    with refused(f"{path}: row 1", "a string"):
        read(path)
    with refused(path, "no column 'body'", "text"):
        read(path, "body")
    path.write_bytes(b"not parquet")
    with refused(path, "not a readable Parquet file"):
        read(path)


def test_parquet_without_pyarrow_names_the_extra(tmp_path, refused, monkeypatch):
    (tmp_path / "a.parquet").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with refused("depth-memory[data]"):
        read(tmp_path)


def test_missing_paths_are_named(tmp_path, refused):
    with refused("sources", "no such file", tmp_path / "nowhere"):
        find_files([tmp_path / "nowhere"])
    with refused("sources", "none"):
        find_files([])
    (tmp_path / "image.png").write_text("x")
    with refused("sources", tmp_path, "no text"):
        find_files([tmp_path])


def test_damaged_compression_is_named(tmp_path, refused):
    whole = lzma.compress(json.dumps({"text": "a" * 1000}).encode())
    for name, content in (("cut.txt.xz", whole[:-20]), ("bad.txt.gz", b"not gzip")):
        path = tmp_path / name
        path.write_bytes(content)
        with refused(path, "cannot be read"):
            read(path)


ROWS = [{"query": "a", "gold": 1}, {"query": "b", "gold": 0}]


@pytest.mark.parametrize("suffix", [".jsonl", ".jsonl.gz", ".jsonl.xz", ".json"])
def test_rows_of_json_lines_come_with_their_place(tmp_path, suffix):
    path = tmp_path / f"a{suffix}"
    opened = {".gz": gzip.open, ".xz": lzma.open}.get(path.suffix, open)
    with opened(path, "wt") as file:
        file.write("\n\n".join(map(json.dumps, ROWS)))
    assert list(read_rows(path)) == [(ROWS[0], f"{path}:1"), (ROWS[1], f"{path}:3")]


def test_rows_of_parquet_come_with_their_place(tmp_path):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.Table.from_pylist(ROWS), path)
    expected = [(row, f"{path}: row {number}") for number, row in enumerate(ROWS, 1)]
    assert list(read_rows(path)) == expected


@pytest.mark.parametrize("line", ["[1]", '"a"', "3", "{"])
def test_a_row_that_is_no_object_is_named(tmp_path, refused, line):
    path = tmp_path / "a.jsonl"
    path.write_text(f"{json.dumps(ROWS[0])}\n{line}\n")
    with refused(f"{path}:2"):
        list(read_rows(path))


def test_a_byte_order_mark_is_one_at_the_start_only(tmp_path):
    (tmp_path / "a.txt").write_text("\ufeff\ufeffone\n\ufefftwo")
    assert read(tmp_path / "a.txt") == ["\ufeffone\n\ufefftwo"]


@pytest.mark.parametrize("inner", ["", "b/c"])
def test_a_folder_that_cannot_be_listed_is_named(tmp_path, monkeypatch, refused, inner):
    (tmp_path / "b" / "c").mkdir(parents=True)
    (tmp_path / "a.txt").write_text("one")
    real, denied = os.scandir, str(tmp_path / inner)

    def scandir(path):
        if str(path) == denied:
            raise PermissionError(errno.EACCES, "Permission denied", path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    with refused(f"sources: cannot list {denied}: Permission denied"):
        find_files([tmp_path])


def test_what_is_hidden_is_not_looked_into(tmp_path, monkeypatch):
    (tmp_path / ".git").mkdir()
    (tmp_path / "a.txt").write_text("one")
    real = os.scandir

    def scandir(path):
        assert ".git" not in str(path)
        return real(path)

    monkeypatch.setattr(os, "scandir", scandir)
    assert read(tmp_path) == ["one"]


@pytest.mark.parametrize("name", ["", "pipe.txt"])
def test_a_pipe_is_refused_and_not_waited_for(tmp_path, refused, name):
    os.mkfifo(tmp_path / "pipe.txt")
    source = tmp_path if not name else tmp_path / name
    with refused(f"sources: got {tmp_path / 'pipe.txt'}, which is no regular file; allowed: "):
        find_files([source])


def test_a_folder_that_cannot_be_reached_is_named(tmp_path, refused):
    (tmp_path / "a.txt").write_text("one")
    with refused(f"sources: cannot read {tmp_path / 'a.txt/b'}: Not a directory"):
        find_files([tmp_path / "a.txt/b"])
