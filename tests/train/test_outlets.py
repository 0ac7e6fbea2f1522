"""Loggers and the progress line."""

from __future__ import annotations

import io
import sys
from pathlib import Path
from types import ModuleType

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from depth_memory.errors import UserError
from depth_memory.train import train
from depth_memory.train.loggers import MODULES
from depth_memory.train.progress import Progress, clock, progress
from tests.train.tiny import tiny_run

RECORD = {"step": 3, "loss": 2.5, "tokens_per_second": 12345.0}


@pytest.mark.parametrize("name", MODULES)
def test_a_logger_that_is_not_installed_stops_the_run_before_it_begins(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setitem(sys.modules, MODULES[name], None)
    run = tiny_run(corpus, tmp_path / "run", loggers=(name,))
    with pytest.raises(UserError) as error:
        train(run)
    install = f"it after pip install 'depth-memory[{name}]'"
    assert str(error.value) == f"loggers: got '{name}'; allowed: {install}"
    assert not run.out.exists()


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_hosted_loggers_get_every_step(
    corpus: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    calls = []
    module = ModuleType(name)
    module.init = lambda **options: calls.append(("init", options))
    module.log = lambda values, step: calls.append((step, values))
    module.finish = lambda: calls.append(("finish", {}))
    monkeypatch.setitem(sys.modules, name, module)
    run = tiny_run(corpus, tmp_path / "run", steps=3, loggers=(name,))
    train(run, show=False)
    assert [call[0] for call in calls] == ["init", 1, 2, 3, "finish"]
    assert calls[0][1]["config"] == run.as_dict()
    assert calls[0][1]["resume"] == "allow"
    assert calls[3][1].keys() >= {"loss", "lr", "validation_loss", "bits_per_byte"}


def test_tensorboard_gets_every_step_once_even_after_a_resume(corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(corpus, tmp_path / "run", steps=4, save_every=2, loggers=("tensorboard",))
    for _ in range(2):
        train(run, show=False)
    events = EventAccumulator(str(run.out / "tensorboard")).Reload()
    assert [scalar.step for scalar in events.Scalars("loss")] == [1, 2, 3, 4]


def test_plain_lines_say_step_loss_speed_and_time_left() -> None:
    stream = io.StringIO()
    line = progress(10, 2, stream)
    line.update(RECORD)
    line.update({**RECORD, "step": 4})  # too soon for another line
    line.update({**RECORD, "step": 5, "validation_loss": 2.25, "bits_per_byte": 1.5})
    line.note("something happened")
    line.close()
    lines = stream.getvalue().splitlines()
    assert len(lines) == 3
    assert lines[0].startswith("step 3/10  loss 2.5000  12.3k tokens/s  ETA 0:0")
    assert "validation 2.2500 (1.5000 bits/byte)" in lines[1]
    assert lines[2] == "something happened"


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_a_terminal_gets_a_live_line() -> None:
    stream = Terminal()
    line = progress(10, 2, stream)
    line.update(RECORD)
    line.update({**RECORD, "step": 10, "validation_loss": 2.25, "bits_per_byte": 1.5})
    line.close()
    assert "10/10" in stream.getvalue()
    assert "validation 2.2500 (1.5000 bits/byte)" in stream.getvalue()


def test_time_left_reads_as_a_clock() -> None:
    assert [clock(s) for s in (0.4, 61, 3600, 36061)] == ["0:00", "1:01", "1:00:00", "10:01:01"]


def test_progress_may_be_given(corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    seen, closed = [], []
    watch = Progress(lambda record: seen.append(record["step"]), print, lambda: closed.append(1))
    train(tiny_run(corpus, tmp_path / "run", steps=3, log_every=2), show=watch)
    assert (seen, closed) == ([1, 2, 3], [1])
    assert capsys.readouterr().err == ""
