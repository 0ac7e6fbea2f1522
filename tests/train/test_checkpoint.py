"""Checkpoints: whole or not there, old ones kept until the new one is durable, damage seen."""

from __future__ import annotations

import errno
import json
import os
import resource
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors import safe_open

from depth_memory.errors import UserError
from depth_memory.files import sealed
from depth_memory.tensors import parts_of
from depth_memory.train import checkpoint, files
from tests.train.processes import call

FACTS = {"config": {}, "data": {}, "versions": {}}


def save(root: Path, step: int, keep: int = 2) -> Path:
    weights = parts_of({"weight": torch.full((3, 2), float(step))})
    moments = parts_of({"weight.step": torch.tensor(float(step))})
    texts = {"config.json": "{}"}
    return checkpoint.save(
        root, step, weights=weights, moments=moments, texts=texts, facts=FACTS, keep=keep
    )


def cut_last_byte(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def flip_one_byte(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(bytes(content))


def remove(path: Path) -> None:
    path.unlink()


FILES = ("model.safetensors", "optimizer.safetensors", "config.json", "state.json")


def test_the_newest_whole_checkpoint_is_found(tmp_path: Path) -> None:
    assert checkpoint.newest(tmp_path) is None
    for step in (5, 100_000_000 - 1, 10):
        save(tmp_path, step, keep=9)
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert (found.path.name, found.manifest["step"]) == ("step-99999999", 99_999_999)
    assert found.skipped == ()


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("damage", [cut_last_byte, flip_one_byte, remove])
def test_a_damaged_newest_gives_way_to_the_one_before(
    tmp_path: Path, name: str, damage: Callable[[Path], None]
) -> None:
    older, newer = save(tmp_path, 5), save(tmp_path, 10)
    damage(newer / name)
    found = checkpoint.newest(tmp_path)
    assert found is not None
    assert found.path == older
    assert len(found.skipped) == 1
    assert found.skipped[0].startswith(f"step-00000010: {name} ")


def test_every_byte_of_the_manifest_counts(tmp_path: Path) -> None:
    path = save(tmp_path, 5) / "state.json"
    content = path.read_bytes()
    for i in range(len(content)):
        path.write_bytes(content[:i] + bytes([content[i] ^ 1]) + content[i + 1 :])
        with pytest.raises(UserError):
            checkpoint.newest(tmp_path)


def test_all_damaged_is_one_line_that_says_why(tmp_path: Path) -> None:
    for step in (5, 10):
        remove(save(tmp_path, step) / "state.json")
    with pytest.raises(UserError) as error:
        checkpoint.newest(tmp_path)
    assert str(error.value) == (
        f"{tmp_path}: no usable checkpoint; "
        "step-00000010: state.json is missing; step-00000005: state.json is missing; "
        "bring one back, or begin again in a new directory"
    )


def test_what_cannot_be_listed_is_not_taken_for_empty(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert checkpoint.listed(tmp_path / "nowhere") == []
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"file: cannot be listed: Not a directory$"):
        checkpoint.listed(tmp_path / "file")

    def refuse(path: Path):
        raise PermissionError(errno.EACCES, "Permission denied", str(path))

    for name in ("listdir", "scandir"):
        monkeypatch.setattr(os, name, refuse)
    with pytest.raises(UserError, match=r": cannot be listed: Permission denied$"):
        checkpoint.newest(tmp_path)


def test_steps_of_nine_digits_come_after_those_of_eight(tmp_path: Path) -> None:
    for name in ("step-99999999", "step-100000000", "step-00000007", "step-7", "damaged-step-1"):
        (tmp_path / name).mkdir()
    names = [path.name for path in checkpoint.listed(tmp_path)]
    assert names == ["step-100000000", "step-99999999", "step-00000007"]


def test_a_checkpoint_of_a_newer_format_is_not_taken_for_damage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    save(tmp_path, 5)
    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "FORMAT", 2)
        save(tmp_path, 10)
    with pytest.raises(UserError, match=r"state.json: format: got 2; allowed: up to 1 \(written"):
        checkpoint.newest(tmp_path)


def test_only_the_newest_stay(tmp_path: Path) -> None:
    for step in (1, 2, 3, 4):
        save(tmp_path, step, keep=2)
    assert [path.name for path in checkpoint.listed(tmp_path)] == ["step-00000004", "step-00000003"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["step-00000003", "step-00000004"]


def test_the_old_one_goes_only_when_the_new_one_is_durable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = save(tmp_path, 5, keep=1)
    durable = []

    def watched(path: Path, _real: Callable = files.remove_directory) -> None:
        if path == old:
            found = checkpoint.newest(tmp_path)
            durable.append(found is not None and found.manifest["step"] == 10)
        _real(path)

    monkeypatch.setattr(files, "remove_directory", watched)
    save(tmp_path, 10, keep=1)
    assert durable == [True]
    assert not old.exists()


def full_disk(*_: object, **__: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize(
    ("owner", "name"),
    [
        (checkpoint, "save_file"),
        (Path, "write_text"),
        (files, "sync"),
        (Path, "mkdir"),
        (Path, "rename"),
    ],
)
def test_a_full_disk_keeps_the_old_ones(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owner: object, name: str
) -> None:
    old = save(tmp_path, 5, keep=1)
    before = {path.name: path.read_bytes() for path in old.iterdir()}
    with monkeypatch.context() as patch:
        patch.setattr(owner, name, full_disk)
        with pytest.raises(UserError) as error:
            save(tmp_path, 10, keep=1)
    assert str(error.value).startswith("checkpoint of step 10 not written (")
    assert "No space left on device" in str(error.value)
    assert str(error.value).endswith(f"last good checkpoint: {old}")
    assert "\n" not in str(error.value)
    assert {path.name: path.read_bytes() for path in old.iterdir()} == before
    assert list(tmp_path.iterdir()) == [old]


def save_with_a_small_quota(root: Path) -> str:
    # 8 MiB of weights and a limit of 1 MiB a file, which the operating system enforces
    resource.setrlimit(resource.RLIMIT_FSIZE, (2**20, 2**20))
    with pytest.raises(UserError) as error:
        checkpoint.save(
            root,
            10,
            weights=parts_of({"a": torch.ones(2**21)}),
            moments=[],
            texts={},
            facts=FACTS,
            keep=1,
        )
    return str(error.value)


def test_a_disk_that_refuses_the_tensors_keeps_the_old_ones(tmp_path: Path) -> None:
    old = save(tmp_path, 5)
    message = call(save_with_a_small_quota, tmp_path)
    assert message.startswith("checkpoint of step 10 not written (")
    assert message.endswith(f"last good checkpoint: {old}")
    assert list(tmp_path.iterdir()) == [old]


def test_what_a_kill_left_is_swept_and_nothing_else(tmp_path: Path) -> None:
    kept = save(tmp_path, 5)
    shutil.copytree(kept, tmp_path / ".step-00000010.abcd.partial")
    shutil.copytree(kept, tmp_path / ".removed-step-00000001")
    assert checkpoint.newest(tmp_path).path == kept
    files.sweep(tmp_path)
    assert list(tmp_path.iterdir()) == [kept]


@pytest.mark.parametrize("part", ["step", "format", "files", "config", "data"])
def test_a_state_that_lacks_a_part_falls_back(tmp_path: Path, part: str) -> None:
    good, bad = save(tmp_path, 5), save(tmp_path, 10)
    state = json.loads((bad / "state.json").read_text())
    del state["checksum"], state[part]
    (bad / "state.json").write_text(sealed(state))
    found = checkpoint.newest(tmp_path)
    assert (found.path, found.skipped) == (
        good,
        (f"step-00000010: state.json has no valid {part}",),
    )


def test_a_state_that_is_nested_too_deeply_falls_back(tmp_path: Path) -> None:
    good, bad = save(tmp_path, 5), save(tmp_path, 10)
    (bad / "state.json").write_text("[" * 100_000)
    assert checkpoint.newest(tmp_path).path == good


def test_damaged_ones_are_set_aside_not_deleted(tmp_path: Path) -> None:
    good, bad = save(tmp_path, 5), save(tmp_path, 10)
    remove(bad / "state.json")
    checkpoint.set_aside(tmp_path, good)
    assert checkpoint.listed(tmp_path) == [good]
    assert (tmp_path / "damaged-step-00000010" / "model.safetensors").exists()


def test_the_manifest_lists_every_file_and_weights_are_transformers_own_format(
    tmp_path: Path,
) -> None:
    path = save(tmp_path, 5)
    manifest = json.loads((path / "state.json").read_text())
    assert sorted(manifest["files"]) == sorted(set(FILES) - {"state.json"})
    with safe_open(path / "model.safetensors", framework="pt") as file:
        assert file.metadata() == {"format": "pt"}
        assert torch.equal(file.get_tensor("weight"), torch.full((3, 2), 5.0))
