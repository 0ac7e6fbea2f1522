"""Speed as a share of the peak, by hand, and what a run logs of it."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from depth_memory import presets
from depth_memory.train import read_metrics, throughput, train
from depth_memory.train.build import build_model
from depth_memory.train.progress import describe
from tests.train.tiny import MODEL, replace, tiny_run

CPU = torch.device("cpu")


def meter_of(spec, vocab_size: int, length: int, **changes) -> throughput.Meter:
    with torch.device("meta"):
        model = build_model(spec, vocab_size)
    options = {"precision": "bfloat16", "device": CPU, "devices": 1, **changes}
    return throughput.meter(model, length=length, **options)


@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("stream", ["preln", "ldm"])
def test_flops_are_those_of_the_backbone_with_its_head_and_causal_attention(tied, stream) -> None:
    spec = replace(MODEL, tie_embeddings=tied, stream={"name": stream})
    layer = 2 * 32 * 32 + 2 * 32 * 16 + 3 * 32 * 48  # q and o, k and v of half the heads, the MLP
    expected = 6 * (2 * layer + 257 * 32) + 6 * 2 * 32 * 20
    assert meter_of(spec, 257, 20).flops == expected


def test_flops_of_the_400m_preset() -> None:
    run = presets.get("llama-400m-preln")
    body = 24 * (4 * 1024**2 + 3 * 1024 * 2736)
    expected = 6 * (body + 50_280 * 1024) + 6 * 24 * 1024 * 2048
    assert meter_of(run.model, 50_280, run.length).flops == expected


def test_the_share_of_the_peak_is_of_all_devices(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "NVIDIA H200")
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda device: 12345)
    found = meter_of(MODEL, 257, 20, device=torch.device("cuda"), devices=2)
    assert found.peak == 2 * 989.5e12
    read = found.read(1000, 0.5)
    assert read["tokens_per_second"] == 2000.0
    assert read["mfu"] == round(found.flops * 2000 / (2 * 989.5e12), 4)
    assert read["peak_memory_bytes"] == 12345
    assert meter_of(MODEL, 257, 20, device=torch.device("cuda"), precision="float32").peak is None


@pytest.mark.parametrize(
    ("name", "peak"),
    [
        ("NVIDIA H200", 989.5e12),
        ("NVIDIA H100 80GB HBM3", 989.5e12),
        ("NVIDIA H100 PCIe", 756e12),
        ("NVIDIA GH200 480GB", 989.5e12),
        ("NVIDIA A100-SXM4-80GB", 312e12),
        ("NVIDIA H200 MIG 3g.71gb", None),
        ("a device of tomorrow", None),
    ],
)
def test_the_peak_of_a_device_goes_by_its_name(name: str, peak: float | None) -> None:
    assert throughput.peak_of(name) == peak


def test_a_line_shows_the_share_where_it_is_known() -> None:
    record = {"step": 1, "loss": 2.0, "tokens_per_second": 1e5, "mfu": 0.4567}
    assert describe(record, "1:00") == "loss 2.0000  100.0k tokens/s  45.7% MFU  ETA 1:00"
    assert "MFU" not in describe({**record, "mfu": None}, "1:00")


def test_a_run_logs_what_it_measures_and_null_where_it_cannot(corpus: Path, tmp_path: Path) -> None:
    run = tiny_run(corpus, tmp_path / "run", steps=4, log_every=2)
    train(replace(run, steps=2, schedule=run.schedule), show=False)
    train(run, show=False)
    records = read_metrics(run.out / "metrics.jsonl")
    assert all(record["mfu"] is None for record in records)
    assert all(record["peak_memory_bytes"] is None for record in records)
    # once a session, whichever of its steps is the first to be recorded
    assert ["seconds_to_first_step" in record for record in records] == [True, True]
    assert 0 < records[0]["seconds_to_first_step"] < 60
