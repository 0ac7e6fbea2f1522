"""The names in a checkpoint are public: this golden file changes only with a note for users.

To write it anew, from the root of the repository: `python -m tests.models.test_names`.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from depth_memory import models, streams
from tests.models.conftest import ORIGINALS, SHAPE

GOLDEN = Path(__file__).with_name("golden_names.json")


def own_names(family: str, stream: str) -> dict[str, list[int]]:
    """Name and shape of each entry that the plain backbone does not have."""
    with torch.device("meta"):
        plain = ORIGINALS[family](ORIGINALS[family].config_class(**SHAPE)).state_dict()
        model = models.build_model(family, {"name": stream}, **SHAPE).state_dict()
    assert {k: v.shape for k, v in model.items() if k in plain} == {
        k: v.shape for k, v in plain.items()
    }
    return {name: list(value.shape) for name, value in model.items() if name not in plain}


def all_names() -> dict[str, dict[str, list[int]]]:
    return {f"{f} {s}": own_names(f, s) for f in ORIGINALS for s in streams.STREAMS}


def test_names_are_those_of_the_golden_file():
    assert all_names() == json.loads(GOLDEN.read_text(encoding="utf-8"))


def test_the_number_of_layers_changes_only_indices():
    names = own_names("llama", "ldm")
    assert any(name.startswith("model.layers.1.mlp_port.") for name in names)
    assert any(name.startswith("model.stream.") for name in names)


if __name__ == "__main__":
    text = json.dumps(all_names(), separators=(",", ":")).replace('},"', '},\n"')
    GOLDEN.write_text(text + "\n", encoding="utf-8")
