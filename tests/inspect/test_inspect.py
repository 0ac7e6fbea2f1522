import errno
import json
import sys

import matplotlib.text
import pytest
import torch

from depth_memory import inspect, models, streams
from depth_memory.errors import UserError
from depth_memory.inspect import figure, page, retrieval
from depth_memory.inspect import probe as probing
from depth_memory.inspect.figure import put

OPTIONS = {
    **{name: {"name": name} for name in streams.STREAMS},
    "ldm window 1": {"name": "ldm", "window": 1},
    "ldm no residual": {"name": "ldm", "residual": False},
    "ldm block": {"name": "ldm", "sites": "block"},
    "ldm plain": {"name": "ldm", "final_read": False, "gate": False, "importance": "one"},
    "hc norm sum": {"name": "hc", "readout": "norm_sum"},
    "mhc head": {"name": "mhc", "readout": "head"},
}
IDS = torch.arange(14).reshape(2, 7)


def small(stream):
    model = models.build_model(
        "llama",
        stream,
        vocab_size=97,
        hidden_size=16,
        intermediate_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        num_key_value_heads=2,
        max_position_embeddings=64,
    ).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return model


@pytest.mark.parametrize("stream", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_read_is_the_weighted_sum_of_its_sources(stream):
    probe = probing.run(small(stream), IDS)
    groups = retrieval.group_count(probe.trunk)
    assert len(probe.reads) == len(probe.sources) == 7
    for read, target in enumerate(probe.reads):
        weights = retrieval.token_weights(probe, read, groups)
        rebuilt = sum(
            (w[..., None] * s.detach().flatten(0, -2).unflatten(-1, (groups, -1))).flatten(-2)
            for w, s in zip(weights, probe.sources, strict=True)
        )
        exact = target.detach()
        exact = exact.sum(-2) if exact.dim() == 4 else exact
        torch.testing.assert_close(rebuilt, exact.flatten(0, -2), rtol=1e-12, atol=1e-12)
        assert weights[read + 1 :].abs().sum() == 0


def test_an_ordinary_residual_reads_everything_with_weight_one():
    found = inspect.retrieval_map(small({"name": "preln"}), IDS)
    expected = torch.ones(7, 7, dtype=torch.float64).tril()
    assert torch.equal(found.weights[..., 0], expected)
    assert torch.equal(found.spread, torch.zeros_like(found.spread))
    assert found.reads[-1] == "output"
    assert found.sources[0] == "embedding"


def test_one_source_has_the_whole_share_of_the_first_read():
    found = inspect.retrieval_map(small({"name": "attnres"}), IDS)
    torch.testing.assert_close(found.share[0, 0].item(), 1.0)
    torch.testing.assert_close(found.weights.sum(1), torch.ones(7, 1, dtype=torch.float64))


def test_inspection_works_where_gradients_are_off_and_through_a_wrapper():
    model = small({"name": "ldm"})
    expected = inspect.retrieval_map(model, IDS)
    with torch.no_grad():
        found = inspect.retrieval_map(torch.nn.Sequential(model), IDS)
    assert torch.equal(found.weights, expected.weights)


def test_statistics_show_what_the_ports_computed():
    model = small({"name": "ldm", "groups": 2})
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith("gain"):
                parameter.fill_(0.0)
    rows = inspect.statistics(model, IDS)
    port = model.model.layers[1].mlp_port
    assert [row["read"] for row in rows] == ["attention 0", "mlp 0", "attention 1", "mlp 1",
                                             "attention 2", "mlp 2", "output"]  # fmt: skip
    assert rows[3]["gain"] == [0.0, 0.0]
    assert all(0.0 < g < 1.0 for g in rows[3]["gate"]["mean"])
    assert all(row["beyond_residual"] < 1e-14 and row["turned"] < 1e-14 for row in rows)
    assert all(row["input_rms"] == pytest.approx(row["residual_rms"]) for row in rows)
    written = inspect.writes(model, IDS)
    assert [row["source"] for row in written] == ["embedding", *(row["read"] for row in rows[:-1])]
    expected = port.writer.forgetting().double().tolist()
    assert written[4]["forgetting"] == pytest.approx(expected, rel=1e-6)
    assert all(0.0 < w < 1.0 for w in written[4]["importance"]["mean"])


def test_the_model_is_left_as_it_was():
    model = small({"name": "ldm"}).train()
    before = model(IDS).logits
    inspect.retrieval_map(model, IDS)
    assert model.training
    assert torch.equal(model(IDS).logits, before)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def write(model, out, title="a title", **options):
    return inspect.report([("tiny", model)], IDS, out, title=title, **options)


def test_report_writes_whole_files(tmp_path):
    document, files = write(small({"name": "ldm", "groups": 2}), tmp_path / "out")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == sorted(
        path.name for path in files
    )
    stored = json.loads((tmp_path / "out" / "inspect.json").read_text())
    assert stored == document
    (entry,) = stored["models"]
    assert entry["stream"]["name"] == "ldm"
    assert torch.tensor(entry["weights"]).shape == (7, 7, 2)
    assert len(entry["statistics"]) == len(entry["writes"]) == 7
    for name in ("retrieval.png", "statistics.png", "ablation.png"):
        assert (tmp_path / "out" / name).read_bytes()[:4] == b"\x89PNG"
    (tmp_path / "out" / "notes").touch()
    _, files = write(small({"name": "ldm"}), tmp_path / "out", ablate=False, pictures=False)
    left = {path.name for path in (tmp_path / "out").iterdir()}
    assert left == {"notes", "report.html", "inspect.json"} == {"notes", *(f.name for f in files)}


def test_any_name_can_be_a_title(tmp_path):
    model = small({"name": "attnres"})
    for title in ("$run_1", "_a", r"$\frac{1$", "\u65e5\u672c", "a\udcff", "a\nb", "</title><b>"):
        document = inspect.describe([(title, model)], IDS, title=title, ablate=True)
        figure.draw_ablation(document, tmp_path / "ablation.png")
        text = page.render(document)
        assert text.count("</title>") == text.count("</script>") / 2 == 1
    _, (html, *_) = write(model, tmp_path / "a\udcff", "a\udcff", pictures=False)
    assert "<title>a?</title>" in html.read_text()


def test_a_title_is_shown_as_it_is():
    text = matplotlib.text.Text()
    put(text, "a $x$")
    assert (text.get_text(), text.get_parse_math()) == ("a $x$", False)
    put(text, "a\udcff")
    assert text.get_text() == "a?"


def test_a_model_without_a_stream_is_a_user_error():
    with pytest.raises(UserError, match=r"^model: got 'Linear'; allowed: .*stream"):
        inspect.retrieval_map(torch.nn.Linear(2, 2), IDS)


def test_pictures_need_matplotlib_and_nothing_else_does(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(UserError, match=r"^matplotlib: got no installation"):
        write(small({"name": "ldm"}), tmp_path / "out")
    assert not (tmp_path / "out").exists()
    _, files = write(small({"name": "ldm"}), tmp_path / "out", pictures=False)
    assert [path.name for path in files] == ["report.html", "inspect.json"]


@pytest.mark.parametrize(
    ("place", "told"),
    [
        ("embed_tokens.weight", "embedding: output: got nan"),
        ("layers.1.self_attn.o_proj.weight", "attention 1: output: got nan"),
        ("layers.2.mlp_port.reader.gain", "mlp 2: input: got nan"),
        ("lm_head.weight", "loss: got nan"),
    ],
)
def test_a_report_of_what_is_not_finite_names_the_place_and_writes_nothing(tmp_path, place, told):
    model = small({"name": "ldm"})
    with torch.no_grad():
        model.get_parameter(place if place.startswith("lm") else f"model.{place}").fill_(torch.nan)
    with pytest.raises(UserError, match=rf"^tiny: {told}; allowed: .*finite"):
        write(model, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_report_that_fails_keeps_the_one_before(tmp_path, monkeypatch):
    model = small({"name": "ldm"})
    # whatever draws: real pictures take most of the time
    for name in ("draw_maps", "draw_statistics"):
        monkeypatch.setattr(figure, name, lambda _, path: path.write_bytes(b"picture"))
    (tmp_path / "mine.txt").write_text("kept")
    _, files = write(model, tmp_path, "first", ablate=False)
    before = [path.read_bytes() for path in files]

    def fail(*_):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(figure, "draw_statistics", fail)
    with pytest.raises(OSError, match="No space left on device") as error:
        write(model, tmp_path, "second", ablate=False)
    assert error.value.filename == str(tmp_path / "statistics.png")
    assert [path.read_bytes() for path in files] == before
    assert sorted(tmp_path.iterdir()) == sorted([*files, tmp_path / "mine.txt"])
