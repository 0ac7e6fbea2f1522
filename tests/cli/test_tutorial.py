"""Every command of docs/pretrained.md runs, in its order, on a tiny model."""

import json
import random
import re
import shlex
from pathlib import Path

import pytest
import torch

from depth_memory import cli, data
from tests.cli.conftest import WORDS

PAGE = Path(__file__).parents[2] / "docs" / "pretrained.md"
SMALL = {
    "train": "--steps 4 --rows 4 --length 32 --schedule.warmup 1 --eval-windows 2 --device cpu",
    "evaluate": "--length 32 --windows 2 --json --device cpu",
    "inspect": "--rows 1 --device cpu",
    "generate": "--tokens 5 --device cpu",
}
"""Given last, which is what counts."""


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```bash\n(.*?)^```", PAGE.read_text(), re.MULTILINE | re.DOTALL)
    lines = "".join(blocks).replace("\\\n", " ").splitlines()
    return [shlex.split(line) for line in lines]


@pytest.fixture
def _place(tmp_path, monkeypatch):
    """A directory that is named like the model of the hub, and some books."""
    from transformers import LlamaConfig, LlamaForCausalLM

    monkeypatch.chdir(tmp_path)
    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    config = LlamaConfig(
        **size, num_attention_heads=2, vocab_size=300, eos_token_id=0, tie_word_embeddings=True
    )
    folder = tmp_path / "HuggingFaceTB" / "SmolLM2-135M"
    torch.manual_seed(0)
    LlamaForCausalLM(config).to(torch.bfloat16).save_pretrained(folder, max_shard_size="20KB")
    data.train_tokenizer([" ".join(WORDS)], 290).save(folder / "tokenizer.json")
    draw = random.Random(0)
    Path("books").mkdir()
    for i in range(40):
        Path("books", f"{i}.txt").write_text(" ".join(draw.choices(WORDS, k=99)) + "\n")


@pytest.mark.usefixtures("_place")
def test_the_page_runs_from_top_to_bottom(capsys):
    seen = []
    for program, name, *argv in commands():
        assert program == "depth-memory"
        code = cli.main([name, *argv, *shlex.split(SMALL.get(name, ""))])
        out, err = capsys.readouterr()
        assert code == 0, err
        if name == "convert":
            assert "max difference 0.0 between" in out
        if name == "evaluate":
            results = json.loads(out)
            assert [r["stream"] for r in results] == ["ldm", "ldm", "preln", "preln_adapter"]
            assert all(result["loss"] < results[0]["loss"] for result in results[1:])
        if name == "generate":
            assert out.startswith("It was a bright cold day")
        seen.append(name)
    assert set(seen) == {"convert", "data", "train", "evaluate", "inspect", "generate"}
    assert (Path("runs/ldm/inspect") / "inspect.json").exists()
    assert json.loads(Path("smollm2-continued/config.json").read_text())["model_type"] == "llama"
