"""`bench ops` counts the bytes that a pass must move, and relates its speed to a copy."""

import json

import pytest
import torch

from depth_memory import bench
from depth_memory.bench.passes import PASSES, Maker

CPU = torch.device("cpu")


pytestmark = pytest.mark.usefixtures("elsewhere")


def test_ops_are_measured_against_a_copy(command, tmp_path, monkeypatch):
    for name in set(PASSES) - {"copy", "add_norm forward", "mix forward"}:
        monkeypatch.delitem(PASSES, name)
    sizes = ("--tokens", 2, "--width", 8, "--groups", 2, "--window", 3)
    done = command("bench", "ops", *sizes, "--rounds", 1, "--repeats", 1)
    assert done.code == 0
    rows = {row["op"]: row for row in json.loads((tmp_path / "bench-ops.json").read_text())["rows"]}
    vector = 2 * 8 * 2
    assert rows["copy"]["bytes"] == 16 * vector
    assert rows["add_norm forward"]["bytes"] == 4 * vector + 8 * 2
    assert rows["mix forward"]["bytes"] == 4 * vector + 2 * 3 * 4
    assert rows["copy"]["share_of_copy"] == 1.0
    share = rows["mix forward"]["gb_per_s"] / rows["copy"]["gb_per_s"]
    assert rows["mix forward"]["share_of_copy"] == share
    assert done.out.splitlines()[-1] == "rows: bench-ops.json"


def test_every_pass_runs_and_moves_its_vectors():
    """D-sized passes as counted by hand, for a window of 3 of which a read sees 2, and Dk = 2."""
    sizes = bench.Sizes(tokens=2, width=512, key_dim=2, groups=2, window=3)
    vectors = {
        "project forward": 3,
        "project backward": 4,
        "return backward": 3 + 2 + 2,
        "read forward": 1 + 2 + 2 + 1,
        "read backward": 1 + 2 + 2 + 2 + 2,
        "fold forward": 2 + 3 + 2,
        "fold backward": 2 + 3 + 3 + 2 + 2,
        "add_norm forward": 4,
        "add_norm backward": 6,
        "attnres backward": 3 + 1 + 3,
    }
    for name, expected in vectors.items():
        timed = PASSES[name][1](Maker(sizes, CPU))
        timed.run()
        large = [t for t in timed.moved if t is not None and t.dtype == torch.bfloat16]
        count = sum(t.numel() for t in large if t.shape[-2:] == (2, 512)) / (2 * 512)
        assert count == expected, name


def test_groups_must_divide_the_width(command, tmp_path):
    done = command("bench", "ops", "--width", 10)
    assert done.err == "error: --groups: got 4; allowed: a divisor of the width 10\n"
    assert (done.code, list(tmp_path.iterdir())) == (2, [])


def test_a_device_without_kernels_is_refused_and_nothing_is_written(command, tmp_path, monkeypatch):
    monkeypatch.delenv("TRITON_INTERPRET", raising=False)
    done = command("bench", "ops", "--device", "cpu")
    assert (done.code, list(tmp_path.iterdir())) == (2, [])
    assert done.err.startswith("error: --device: got 'cpu'; allowed: one that runs the kernels (T")
    assert len(done.lines) == 1
