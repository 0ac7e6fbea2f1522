"""Every command of docs/generation.md runs, on a tiny model."""

import json
import re
import shlex
import shutil
from pathlib import Path

import pytest

PAGE = Path(__file__).parents[2] / "docs" / "generation.md"
TEMPLATE = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}answer:"


@pytest.fixture
def _place(run, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("runs").mkdir()
    Path("runs", "ldm").symlink_to(run)
    model = shutil.copytree(run / "model", "chat-model")
    Path(model, "weights.json").unlink()
    Path(model, "chat_template.jinja").write_text(TEMPLATE)
    Path("prompts.txt").write_text("The old\nIt was\n")
    Path("prompts.jsonl").write_text('{"prompt": "The old"}\n')


@pytest.mark.usefixtures("_place")
def test_the_page_runs_from_top_to_bottom(command):
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.M | re.S)
    lines = "".join(blocks).splitlines()
    assert len(lines) == 7
    for line in lines:
        program, *argv = shlex.split(line)
        assert program == "depth-memory"
        done = command(*argv, "--tokens", 4, "--device", "cpu")
        assert done.code == 0, done.err
    rows = [json.loads(row) for row in Path("samples.jsonl").read_text().splitlines()]
    assert [row["sample"] for row in rows] == [0, 1, 2, 3]
    assert len(Path("texts.jsonl").read_text().splitlines()) == 2
