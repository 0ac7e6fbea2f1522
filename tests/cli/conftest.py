"""A tiny corpus and a run of the debug preset on it, made once by the commands themselves."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import pytest

from depth_memory import cli

WORDS = (
    "the old house on a hill was quiet when we came back to see it in winter".split()  # noqa: SIM905
)


class Outcome(NamedTuple):
    code: int
    out: str
    err: str

    @property
    def lines(self) -> list[str]:
        return self.err.splitlines()


@pytest.fixture
def command(capfd: pytest.CaptureFixture[str]) -> Callable[..., Outcome]:
    """Run a command in this process; the exit code and what it printed."""

    def run(*argv: object) -> Outcome:
        capfd.readouterr()
        code = cli.main([str(argument) for argument in argv])
        return Outcome(code, *capfd.readouterr())

    return run


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


def assert_refused(outcome: Outcome, message: str) -> None:
    """One line on standard error that begins as expected, nothing on standard output, code 2."""
    assert outcome.out == ""
    assert len(outcome.lines) == 1, outcome.err
    assert outcome.lines[0].startswith(f"error: {message}"), outcome.err
    assert outcome.code == 2


def contents(folder: Path) -> dict[Path, bytes]:
    return {p: p.read_bytes() for p in folder.rglob("*") if p.is_file() and p.name != ".lock"}


def write_texts(folder: Path, seed: int) -> Path:
    generator = random.Random(seed)
    folder.mkdir()
    for i in range(24):
        text = " ".join(generator.choice(WORDS) for _ in range(120))
        (folder / f"{i:02d}.txt").write_text(f"{text}.\n")
    return folder


def prepared(folder: Path, seed: int, vocab_size: int) -> Path:
    sources = write_texts(folder / f"texts-{seed}", seed)
    out = folder / f"corpus-{seed}"
    options = ["--vocab-size", str(vocab_size), "--validation", "4", "--out", str(out)]
    assert cli.main(["data", "prepare", str(sources), *options]) == 0
    return out


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return prepared(tmp_path_factory.mktemp("data"), 0, 300)


@pytest.fixture(scope="session")
def other_corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Made by another tokenizer, of more entries."""
    return prepared(tmp_path_factory.mktemp("data"), 1, 330)


@pytest.fixture(scope="session")
def run(corpus: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The directory of a finished run."""
    out = tmp_path_factory.mktemp("run") / "ldm"
    assert cli.main(["train", "debug", *map(str, on(corpus, out))]) == 0
    return out


def on(corpus: Path, out: Path) -> list[object]:
    """The options that make a run use the corpus and write to a directory."""
    return ["--data.directory", corpus, "--out", out]
