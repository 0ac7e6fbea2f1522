"""Datasets on the Hugging Face hub, file by file: `hf://datasets/OWNER/NAME[@REVISION][/PATH]`.

The hub says the size and the sha256 of every large file, so a dataset is known before a byte of it
is read. Files come one at a time and go again, so a corpus of any size needs room for two.
"""

from __future__ import annotations

import fnmatch
import re
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from depth_memory.errors import UserError, invalid
from depth_memory.files import reason, sha256_of

T = TypeVar("T")

PREFIX = "hf://"
ADDRESS = re.compile(
    r"hf://datasets/(?P<repo>[\w.-]+/[\w.-]+)"
    r"(?:@(?P<revision>refs/(?:convert|pr)/[^/]+|[^/]+))?(?:/(?P<path>.*))?"
)
FORM = "hf://datasets/OWNER/NAME[@REVISION][/FILE, FOLDER or PATTERN]"


@dataclass(frozen=True, kw_only=True)
class Address:
    """A place on the hub, as the user wrote it."""

    text: str
    repo: str
    revision: str
    path: str
    """Below the dataset, without slashes at its ends; empty for all of it."""

    @property
    def root(self) -> str:
        """The address of the dataset itself, with its revision if one was given."""
        return self.text.rstrip("/").removesuffix(self.path).rstrip("/")


@dataclass(frozen=True, kw_only=True)
class RemoteFile:
    """A file of a dataset at one commit."""

    repo: str
    commit: str
    path: str
    bytes: int
    sha256: str


def is_remote(source: object) -> bool:
    """Whether a source is on the hub rather than on the disk."""
    return isinstance(source, str) and source.startswith(PREFIX)


def parse(text: str) -> Address:
    """The parts of an address.

    Raises:
        UserError: It is none of a dataset.
    """
    found = ADDRESS.fullmatch(text)
    if found is None:
        raise invalid("sources", text, FORM)
    path = (found["path"] or "").strip("/")
    return Address(text=text, repo=found["repo"], revision=found["revision"] or "main", path=path)


def find(text: str, is_data: Callable[[Path], bool]) -> list[RemoteFile]:
    """The files at an address, sorted by path: one, those of a folder, or those of a pattern.

    Args:
        text: The address; `*`, `?` and `[...]` in its path make it a pattern.
        is_data: Says by the name whether a file of a folder or pattern is one to read.

    Raises:
        UserError: No such dataset or file, no data there, or the hub cannot be reached.
    """
    address = parse(text)
    found = _asked(lambda: _entries(address), text)
    if [entry.path for entry in found] != [address.path]:
        found = [entry for entry in found if is_data(Path(entry.path))]
    if not found:
        raise UserError(f"sources: no Parquet or JSON lines file at {text}")
    return found


def fetch(file: RemoteFile, folder: Path) -> Path:
    """Download a file into `folder`, going on with what is there of it.

    Raises:
        UserError: The hub cannot be reached, or what came is not what it announced.
    """
    name = f"{PREFIX}datasets/{file.repo}/{file.path}"
    path = Path(_asked(lambda: _download(file.repo, file.commit, file.path, folder), name))
    if path.stat().st_size != file.bytes or sha256_of(path) != file.sha256:
        path.unlink()
        raise UserError(f"{name}: came damaged from the hub; give the command again")
    return path


def _entries(address: Address) -> list[RemoteFile]:
    api = _api()
    commit = str(api.dataset_info(address.repo, revision=address.revision).sha)
    place = {"repo_id": address.repo, "revision": commit, "repo_type": "dataset"}
    wild = re.search(r"[*?\[]", address.path)
    base = address.path[: wild.start()].rpartition("/")[0] if wild else address.path
    found = api.get_paths_info(paths=[base], **place) if base and not wild else []
    if not any(hasattr(entry, "size") for entry in found):
        found = api.list_repo_tree(path_in_repo=base or None, recursive=True, **place)
    files = [entry for entry in found if hasattr(entry, "size")]
    if wild:
        files = [entry for entry in files if fnmatch.fnmatchcase(entry.path, address.path)]
    chosen = sorted(files, key=lambda entry: entry.path)
    return [_described(address.repo, commit, entry) for entry in chosen]


def _described(repo: str, commit: str, entry: Any) -> RemoteFile:
    if entry.lfs is not None:
        sha256 = entry.lfs.sha256
    else:  # a small file, of which the hub knows another hash
        with tempfile.TemporaryDirectory() as folder:
            sha256 = sha256_of(Path(_download(repo, commit, entry.path, Path(folder))))
    return RemoteFile(repo=repo, commit=commit, path=entry.path, bytes=entry.size, sha256=sha256)


def _download(repo: str, commit: str, path: str, folder: Path) -> str:
    place = {"repo_id": repo, "filename": path, "revision": commit, "repo_type": "dataset"}
    return _api().hf_hub_download(**place, local_dir=folder)


def _api() -> Any:
    """The client of the hub: the one seam to the network."""
    from huggingface_hub import HfApi

    return HfApi()


def _asked(question: Callable[[], T], name: str) -> T:
    try:
        return question()
    except UserError:
        raise
    except Exception as error:  # the client's own, those of two HTTP libraries, and the system's
        raise UserError(f"{name}: the hub gives nothing: {reason(error)}") from error
