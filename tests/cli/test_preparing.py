"""What is seen of a preparation: progress, time left, and half-finished work."""

import time

import pytest

from depth_memory.cli import preparing
from depth_memory.data import Progress, encoding, filling
from depth_memory.errors import UserError
from tests.cli.conftest import assert_refused

pytestmark = pytest.mark.usefixtures("elsewhere")


def at(documents, share):
    return Progress(documents=documents, tokens=1000 * documents, bytes=0, share=share)


def test_speed_and_time_left_are_those_of_this_process():
    first, now = at(1_000_000, 0.25), at(1_300_000, 0.4)
    expected = "1.3M documents  1.3G tokens  5.0M tokens/s  40.0% of the sources  ETA 0:04:00"
    assert preparing.describe(first, now, 60.0) == expected
    assert preparing.describe(now, now, 1.0).endswith("ETA unknown")


def test_without_a_terminal_it_is_a_line_every_ten_seconds(monkeypatch, capsys):
    seconds = iter(range(100))
    monkeypatch.setattr(time, "monotonic", lambda: float(next(seconds)))
    with preparing.shown() as shown:
        for i in range(35):
            shown.progress(at(i, i / 40))
        shown.note("a note")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split()[0] for line in lines] == ["9", "19", "29", "a"]


@pytest.fixture
def half(command, tmp_path, monkeypatch):
    """The arguments of a preparation that failed half way."""
    (tmp_path / "text").mkdir()
    for i in range(20):
        (tmp_path / "text" / f"{i:02d}.txt").write_text(f"story number {i} " * 20)
    argv = ["data", "prepare", tmp_path / "text", "--out", tmp_path / "out", "--validation", 2]
    argv += ["--shard-tokens", 100]
    real = filling.encode

    def encode(document, *rest):
        if document.end.file == 15:
            raise UserError("a bad day")
        return real(document, *rest)

    with monkeypatch.context() as patch:
        patch.setattr(encoding, "GROUP_BYTES", 1)
        patch.setattr(filling, "encode", encode)
        place = tmp_path / ".out.preparing"
        assert_refused(command(*argv), f"a bad day; what is finished stays in {place}")
    return argv


def test_the_same_command_goes_on_and_another_is_refused(command, half, tmp_path):
    out = tmp_path / "out"
    assert_refused(command("data", "verify", out), f"{out}: not a prepared corpus: half finished")
    assert_refused(command("data", "info", out), f"{out}: not a prepared corpus: half finished")
    refused = command(*half, "--separator", "none")
    assert_refused(refused, f"out: {out} is half finished with another separator, in ")
    assert refused.lines[-1].endswith("give that command again, or begin again with --restart")
    done = command(*half)
    assert done.code == 0
    assert done.lines[0].startswith("going on after document ")
    assert command("data", "verify", out).code == 0


def test_restart_begins_again(command, half):
    done = command(*half, "--separator", "none", "--restart")
    assert done.code == 0
    assert not any("going on" in line for line in done.lines)


@pytest.mark.parametrize(
    ("more", "line"),
    [
        (["--validation", "5"], "validation: got 5; allowed: a share, as 0.001, for a source on"),
        (["--vocab-size", "300"], "--vocab-size: got a source on the hub; allowed: local ones"),
    ],
)
def test_what_would_read_the_hub_twice_is_refused(command, tmp_path, monkeypatch, more, line):
    from depth_memory.data import hub

    entry = hub.RemoteFile(repo="a/b", commit="c", path="x.jsonl", bytes=1, sha256="0")
    monkeypatch.setattr(hub, "find", lambda *_: [entry])
    argv = ["data", "prepare", "hf://datasets/a/b", "--out", tmp_path / "out", *more]
    assert_refused(command(*argv), line)
    assert list(tmp_path.iterdir()) == []
