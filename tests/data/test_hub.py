"""Datasets on the hub, which is a folder here: the layout of FineWeb-Edu, file by file."""

from __future__ import annotations

import hashlib
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from depth_memory.data import hub, open_split, prepare, sources, verify
from depth_memory.errors import UserError
from tests.data.test_prepare import contents

EDU = "hf://datasets/HuggingFaceFW/fineweb-edu"


class Hub:
    """The client's methods that are used, over a folder; counts what is downloaded. Final."""

    def __init__(self, root: Path) -> None:
        self.root, self.downloads, self.revisions = root, [], []

    def dataset_info(self, repo, *, revision):
        if repo != "HuggingFaceFW/fineweb-edu":
            raise ConnectionError("404 Client Error.\n\nRepository Not Found")
        self.revisions.append(revision)
        return SimpleNamespace(sha="c0ffee")

    def get_paths_info(self, *, paths, repo_id, revision, repo_type):
        assert (revision, repo_type) == ("c0ffee", "dataset")
        return [self._entry(self.root / path) for path in paths if (self.root / path).exists()]

    def list_repo_tree(self, *, path_in_repo, recursive, repo_id, revision, repo_type):
        folder = self.root / (path_in_repo or "")
        if not folder.exists():
            raise FileNotFoundError(2, "no such folder", str(folder))
        assert recursive
        return [self._entry(path) for path in sorted(folder.rglob("*"), reverse=True)]

    def hf_hub_download(self, *, repo_id, filename, revision, repo_type, local_dir):
        self.downloads.append(filename)
        target = Path(local_dir) / filename
        target.parent.mkdir(parents=True, exist_ok=True)
        return str(shutil.copy(self.root / filename, target))

    def _entry(self, path: Path):
        name = path.relative_to(self.root).as_posix()
        if path.is_dir():
            return SimpleNamespace(path=name)
        content = path.read_bytes()
        large = path.suffix == ".parquet"
        lfs = SimpleNamespace(sha256=hashlib.sha256(content).hexdigest()) if large else None
        return SimpleNamespace(path=name, size=len(content), lfs=lfs)


def rows(first: int, count: int) -> pa.Table:
    """Rows as FineWeb-Edu has them."""
    numbers = range(first, first + count)
    return pa.table(
        {
            "text": [f"Lesson {n}: water boils at {n} degrees." for n in numbers],
            "id": [f"<urn:uuid:{n}>" for n in numbers],
            "dump": ["CC-MAIN-2024-10"] * count,
            "url": [f"https://example.org/{n}" for n in numbers],
            "file_path": ["s3://commoncrawl/x.warc.gz"] * count,
            "language": ["en"] * count,
            "language_score": [0.9] * count,
            "token_count": pa.array([9] * count, pa.int64()),
            "score": [3.2] * count,
            "int_score": pa.array([3] * count, pa.int64()),
        }
    )


@pytest.fixture
def online(tmp_path, monkeypatch) -> Hub:
    """FineWeb-Edu with two samples, and a read-me."""
    root = tmp_path / "hub"
    for i in range(3):
        (root / "sample/10BT").mkdir(parents=True, exist_ok=True)
        pq.write_table(rows(20 * i, 20), root / f"sample/10BT/00{i}_00000.parquet")
    (root / "sample/100BT").mkdir()
    pq.write_table(rows(500, 5), root / "sample/100BT/000_00000.parquet")
    (root / "README.md").write_text("# FineWeb-Edu")
    (root / "few.jsonl").write_text('{"text": "a few"}\n')
    there = Hub(root)
    monkeypatch.setattr(hub, "_api", lambda: there)
    return there


def names(address: str) -> list[str]:
    return [file.name.removeprefix(f"{EDU}/") for file in sources.find_files([address])]


def test_a_dataset_gives_the_bytes_of_its_files_on_the_disk(online, tmp_path, tokenizer):
    options = {"tokenizer": tokenizer, "validation": 0.2, "shard_tokens": 200}
    found = prepare([f"{EDU}/sample/10BT"], tmp_path / "a", workers=2, **options)
    local = prepare([online.root / "sample/10BT"], tmp_path / "b", **options)
    assert found.splits == local.splits
    assert found.splits["train"].documents + found.splits["validation"].documents == 60
    recorded = [(s.name, s.bytes, s.sha256) for s in found.recipe.sources]
    paths = [online.root / f"sample/10BT/00{i}_00000.parquet" for i in range(3)]
    assert recorded == [
        (
            f"{EDU}/sample/10BT/{path.name}",
            path.stat().st_size,
            hashlib.sha256(path.read_bytes()).hexdigest(),
        )
        for path in paths
    ]
    assert len(online.downloads) == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a", "b", "hub"]
    assert {f for f in contents(tmp_path / "a") if "parquet" in f} == set()
    verify(tmp_path / "a")


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/sample/100BT", ["sample/100BT/000_00000.parquet"]),
        ("/sample/100BT/", ["sample/100BT/000_00000.parquet"]),
        ("/sample/10BT/001_00000.parquet", ["sample/10BT/001_00000.parquet"]),
        (
            "/sample/10BT/00[12]*",
            ["sample/10BT/001_00000.parquet", "sample/10BT/002_00000.parquet"],
        ),
        ("/few.jsonl", ["few.jsonl"]),
        ("/README.md", ["README.md"]),
    ],
)
def test_an_address_is_a_file_a_folder_or_a_pattern(online, path, expected):
    assert names(EDU + path) == expected


def test_a_whole_dataset_is_its_parquet_and_json_lines(online):
    assert names(EDU) == [
        "few.jsonl",
        "sample/100BT/000_00000.parquet",
        *(f"sample/10BT/00{i}_00000.parquet" for i in range(3)),
    ]


@pytest.mark.parametrize("revision", ["v1.2.0", "refs/convert/parquet", "refs/pr/3"])
def test_a_revision_is_asked_for_and_named(online, revision):
    (file,) = sources.find_files([f"{EDU}@{revision}/few.jsonl"])
    assert online.revisions == [revision]
    assert file.name == f"{EDU}@{revision}/few.jsonl"
    assert file.remote.commit == "c0ffee"


@pytest.mark.parametrize(
    ("address", "words"),
    [
        ("hf://models/a/b", ["sources", "hf://datasets/OWNER/NAME"]),
        ("hf://datasets/onlyname", ["sources", "hf://datasets/OWNER/NAME"]),
        ("hf://datasets/a/b", ["hf://datasets/a/b", "the hub gives nothing: 404 Client Error."]),
        (f"{EDU}/sample/1BT", [f"{EDU}/sample/1BT", "the hub gives nothing: no such folder"]),
        (f"{EDU}/sample/x*", ["no Parquet or JSON lines file", f"{EDU}/sample/x*"]),
    ],
)
def test_what_is_not_there_is_one_line(online, refused, address, words):
    with refused(*words):
        sources.find_files([address])


def test_what_parquet_lacks_is_said_before_anything_is_fetched(online, refused, monkeypatch):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with refused("depth-memory[data]"):
        sources.find_files([f"{EDU}/sample/100BT"])
    assert online.downloads == []


def test_without_a_network_it_is_one_line(refused, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    with refused(f"{EDU}: the hub gives nothing: "):
        sources.find_files([EDU])


def test_a_number_of_documents_is_refused_before_anything_is_read(
    online, tmp_path, tokenizer, refused
):
    with refused("validation: got 5; allowed: a share, as 0.001, for a source on the hub"):
        prepare([f"{EDU}/few.jsonl"], tmp_path / "out", tokenizer=tokenizer, validation=5)
    assert not any("BT" in name for name in online.downloads)


def test_a_download_that_is_damaged_is_refused(online, tmp_path, tokenizer, refused, monkeypatch):
    whole = online.hf_hub_download

    def cut(**place):
        path = Path(whole(**place))
        path.write_bytes(path.read_bytes()[:-1])
        return str(path)

    monkeypatch.setattr(online, "hf_hub_download", cut)
    with refused(f"{EDU}/sample/100BT/000_00000.parquet: came damaged from the hub"):
        prepare([f"{EDU}/sample/100BT"], tmp_path / "o", tokenizer=tokenizer, validation=0)
    assert [path.name for path in tmp_path.iterdir()] == ["hub"]


def test_a_network_that_fails_half_way_keeps_what_is_finished(
    online, tmp_path, tokenizer, refused, monkeypatch
):
    whole, options = online.hf_hub_download, {"tokenizer": tokenizer, "validation": 0.0}

    def flaky(**place):
        if place["filename"].endswith("002_00000.parquet"):
            raise ConnectionResetError(104, "Connection reset by peer")
        return whole(**place)

    address, out = f"{EDU}/sample/10BT", tmp_path / "out"
    monkeypatch.setattr("depth_memory.data.encoding.GROUP_BYTES", 1)
    monkeypatch.setattr(online, "hf_hub_download", flaky)
    with refused("002_00000.parquet", "Connection reset by peer", "the same command"):
        prepare([address], out, shard_tokens=100, **options)
    online.downloads.clear()
    monkeypatch.setattr(online, "hf_hub_download", whole)
    prepare([address], out, shard_tokens=100, **options)
    assert "sample/10BT/000_00000.parquet" not in online.downloads
    prepare([online.root / "sample/10BT"], tmp_path / "local", shard_tokens=100, **options)
    pair = [open_split(tmp_path / name, "train") for name in ("out", "local")]
    assert pair[0].info == pair[1].info


def test_text_cannot_be_read_repeatedly_from_the_hub(online):
    with pytest.raises(UserError, match="sources: got one on the hub; allowed: local files"):
        next(sources.read_documents(sources.find_files([f"{EDU}/few.jsonl"]), text_field="text"))
