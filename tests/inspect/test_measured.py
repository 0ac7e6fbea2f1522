"""What is measured is what its equation says, by another way."""

import copy

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from depth_memory import inspect, ops
from depth_memory.errors import UserError
from depth_memory.inspect import document, panels, replay
from depth_memory.inspect import probe as probing
from depth_memory.inspect.measures import turned
from tests.inspect.test_inspect import IDS, OPTIONS, small

MEMORIES = {name: o for name, o in OPTIONS.items() if o["name"].startswith("ldm")}


def observations(model):
    """Values [n, T, G, Dv], keys [n, T, 1, Dk], forgetting [n, G] and importance [n, T, G]."""
    probe = probing.run(model, IDS)
    found = [(value, o) for _, value, o in replay._observations(probe)]
    groups = model.config.stream["groups"]
    values = torch.stack([v.reshape(IDS.numel(), groups, -1) for v, _ in found])
    keys = torch.stack([o.key.flatten(0, -3) for _, o in found])
    forgetting = torch.stack([o.forgetting for _, o in found])
    importance = torch.stack([o.importance.flatten(0, -2) for _, o in found])
    return (x.detach() for x in (values, keys, forgetting, importance))


def along_depth(x, last):
    return x[: last + 1].movedim(0, -1 if x.dim() < 4 else -2)


def test_the_fit_and_its_condition_are_those_of_a_direct_solve():
    model = small({"name": "ldm", "groups": 2, "key_dim": 3, "min_retention": 0.1})
    rows = inspect.writes(model, IDS)
    values, keys, forgetting, importance = observations(model)
    keys = keys.expand(*values.shape[:3], -1)
    forgetting = forgetting[:, None].expand_as(importance)
    for last, row in enumerate(rows):
        fitted = [along_depth(x, last) for x in (keys, values, forgetting, importance)]
        M = ops.ridge_solve(*fitted, alpha=1.0)
        size = M.flatten(-2).norm(dim=-1).mean(0)
        assert row["memory_norm"]["mean"] == pytest.approx(size.tolist(), rel=1e-5)
        rest = (values[last] - ops.read(M, keys[last])).norm(dim=-1) / values[last].norm(dim=-1)
        assert row["error_after"]["mean"] == pytest.approx(rest.mean(0).tolist(), rel=1e-5)
        k, _, f, w = fitted
        omega = torch.cat(
            [f.flip(-1).cumprod(-1).flip(-1)[..., 1:], torch.ones_like(f[..., :1])], -1
        )
        A = torch.einsum("tgn,tgni,tgnj->tgij", omega * w, k, k) + f.prod(-1)[
            ..., None, None
        ] * torch.eye(3)
        ratio = torch.linalg.cond(A)
        assert row["condition"]["worst"] == pytest.approx(ratio.amax(0).tolist(), rel=1e-6)
        assert row["condition"]["median"] == pytest.approx(
            ratio.quantile(0.5, 0).tolist(), rel=1e-6
        )
    assert rows[0]["error"]["mean"] == [1.0, 1.0]


@pytest.mark.parametrize("stream", MEMORIES.values(), ids=MEMORIES.keys())
def test_the_memory_that_is_written_again_is_the_one_that_was_read(stream):
    """The last read of a memory, by its own query, from the replayed writes."""
    model = small({**stream, "final_read": True, "impl": "reference"})
    seen = {}
    final = model.model.stream.final_reader
    hook = final.register_forward_hook(lambda _, __, out: seen.update(query=out[0], scale=out[1]))
    probe = probing.run(model, IDS)
    hook.remove()
    groups, width = final.config.groups, final.config.key_dim
    M = torch.zeros(IDS.numel(), groups, 16 // groups, width, dtype=torch.float64)
    P = final.config.alpha * torch.eye(width, dtype=torch.float64)
    for _, value, o in replay._observations(probe):
        v, k = value.reshape(IDS.numel(), groups, -1), o.key.flatten(0, -3)
        M, P = replay.RULES[stream["name"]](M, P, k, v, o.forgetting, o.importance.flatten(0, -2))
    read = ops.read(M, seen["query"].flatten(0, -3)) * seen["scale"].flatten(0, -2)[..., None]
    read = read.reshape(2, 7, 16)
    if final.config.residual:
        read = read + sum(probe.sources)
    torch.testing.assert_close(read, probe.reads[-1], rtol=1e-9, atol=1e-9)
    written = inspect.writes(model, IDS)
    size = M.flatten(-2).norm(dim=-1).mean(0).tolist()
    assert written[-1]["memory_norm"]["mean"] == pytest.approx(size, rel=1e-6)
    assert ("condition" in written[0]) == (stream["name"] == "ldm")


@pytest.mark.parametrize("name", [name for name in OPTIONS if not name.startswith("ldm")])
def test_what_has_no_memory_has_no_writes(name):
    assert inspect.writes(small(OPTIONS[name]), IDS) == []


def test_turned_is_the_sine_of_the_angle_whatever_the_scale():
    angles = torch.tensor([0.0, 1e-9, 0.3, 1.5], dtype=torch.float64)
    h = torch.tensor([1.0, 0.0], dtype=torch.float64)
    for angle in angles:
        x = torch.stack([angle.cos(), angle.sin()])[None]
        assert turned(3.0 * x, 5.0 * h[None]) == pytest.approx(angle.sin().item(), rel=1e-12)
    assert turned(torch.zeros(1, 2), h[None]) == 0.0


def loss_of(model):
    with torch.no_grad():
        logits = model(IDS).logits
    return F.cross_entropy(logits[:, :-1].flatten(0, 1), IDS[:, 1:].flatten()).item()


def test_a_read_that_is_switched_off_costs_what_a_gain_of_0_costs():
    model = small({"name": "ldm", "groups": 2})
    state = copy.deepcopy(model.state_dict())
    passes = []
    found = inspect.ablation(model, IDS, lambda done, of: passes.append((done, of)))
    assert all(
        torch.equal(a, b) for a, b in zip(state.values(), model.state_dict().values(), strict=True)
    )
    assert passes == [(i, 9) for i in range(1, 10)]
    assert found.loss == pytest.approx(loss_of(model), rel=1e-12)
    assert found.tokens == 12
    assert [row.read for row in found.rows][-2:] == ["mlp 2", "output"]
    readers = {
        f"{kind} {i}": layer.get_submodule(f"{port}_port").reader
        for i, layer in enumerate(model.model.layers)
        for kind, port in (("attention", "attn"), ("mlp", "mlp"))
    }
    readers["output"] = model.model.stream.final_reader
    for row in found.rows:
        silent = copy.deepcopy(readers[row.read].gain.data)
        readers[row.read].gain.data.zero_()
        assert row.loss == pytest.approx(loss_of(model), rel=1e-12)
        assert row.difference == row.loss - found.loss
        assert abs(row.difference) > 1e-9
        readers[row.read].gain.data.copy_(silent)
    for reader in readers.values():
        reader.gain.data.zero_()
    assert found.every == pytest.approx(loss_of(model), rel=1e-12)


@pytest.mark.parametrize("stream", OPTIONS.values(), ids=OPTIONS.keys())
def test_every_read_is_in_the_table_or_left_out_with_a_reason(stream):
    model = small(stream)
    found = inspect.ablation(model, IDS)
    able = [row.read for row in found.rows]
    assert sorted([*able, *found.left_out]) == sorted(probing.names(6)[0])
    assert all(found.left_out.values())
    assert (found.every is None) == (not able)


def test_a_loss_needs_a_token_to_predict():
    model = small({"name": "ldm"})
    with pytest.raises(UserError, match=r"^tokens: got 1; allowed: at least 2"):
        inspect.ablation(model, IDS[:, :1])
    described = inspect.describe([("a", model)], IDS[:1, :1], title="one")
    assert described["models"][0]["ablation"] is None
    assert inspect.unpack(described["models"][0]).shape == (7, 7, 1, 4)
    with pytest.raises(UserError, match=r"^a: tokens: got 0; allowed: at least one"):
        inspect.describe([("a", model)], IDS[:, :0], title="none")


@pytest.mark.parametrize("name", ["ldm", "attnres", "mhc", "preln"])
def test_weights_of_single_tokens_are_kept_to_half_a_step(name):
    model = small({"name": name})
    described = inspect.describe([("a", model)], IDS, title="a", kept=5)
    (entry,) = described["models"]
    exact = inspect.retrieval_map(model, IDS, kept=5).tokens.numpy()
    found = inspect.unpack(entry)
    assert found.shape == exact.shape
    step = np.abs(exact).max((1, 2, 3)) / document.STEPS
    assert (np.abs(found - exact).max((1, 2, 3)) <= 0.5001 * step).all()
    whole = inspect.unpack(
        inspect.describe([("a", model)], IDS[:1], title="a", kept=99)["models"][0]
    )
    assert whole.shape[2] == 7


def test_tokens_are_kept_as_far_as_the_budget_goes(monkeypatch):
    model = small({"name": "ldm"})
    monkeypatch.setattr(document, "BUDGET", 7 * 8 * 4 * 3 + 1)
    described = inspect.describe([("a", model)], IDS, title="a")
    assert described["text"]["kept"] == described["models"][0]["token_weights"]["kept"] == 3


def test_a_deep_model_stays_small():
    assert document.BUDGET // (57 * 58 * 4) >= 100  # tokens at 28 layers and 4 groups


def test_panels_show_what_a_stream_has_and_nothing_else():
    shown = {}
    for name in ("preln", "ldm", "ldm_outer"):
        (entry,) = inspect.describe([("a", small({"name": name}))], IDS, title="a")["models"]
        shown[name] = [panel.title for panel in panels.PANELS if panels.lines(entry, panel)]
        (curve,) = panels.lines(entry, panels.PANELS[0])
        assert curve.values == [row["beyond_residual"] for row in entry["statistics"]]
        if name == "ldm":
            condition = next(panel for panel in panels.PANELS if panel.title == "Condition of P")
            worst = [line for line in panels.lines(entry, condition) if line.series == 1]
            assert [line.group for line in worst] == [0, 1, 2, 3]
            expected = [row["condition"]["worst"][2] for row in entry["writes"]]
            assert worst[2].values == expected
            assert worst[2].depths == list(range(7))
    assert shown["preln"] == [panel.title for panel in panels.PANELS[:3]]
    assert len(shown["ldm"]) == len(panels.PANELS)
    assert set(shown["ldm"]) - set(shown["ldm_outer"]) == {"Condition of P"}
