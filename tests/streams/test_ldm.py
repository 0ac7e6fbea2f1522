"""LDM against a loop over the public ops, and what its parameterisation promises."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

from depth_memory import ops
from tests.streams.cases import (
    LDM,
    MEMORIES,
    SITES,
    D,
    Network,
    gradients,
    inputs_of,
    ldm,
    norm,
    randomised,
)

EPS = torch.finfo(torch.float64).eps
WRITES = {"ldm": ops.rls_write, "ldm_delta": ops.delta_write, "ldm_outer": ops.outer_write}
FLOAT32_STATE = {n: c for n, c in MEMORIES.items() if c.get("state_dtype") != "bfloat16"}


def affine(module: nn.Module, x: Tensor) -> Tensor:
    return x @ module.weight.T + module.bias


def scaled(x: Tensor, kind: str) -> Tensor:
    if kind == "none":
        return x
    unit = x / x.square().sum(-1, keepdim=True).sqrt()
    return unit if kind == "unit" else unit * math.sqrt(x.shape[-1])


class Loop:
    """The recurrence, write by write, for tokens [T, D]."""

    def __init__(self, network: Network):
        self.network, self.config = network, network.stream.config
        self.write_rule = WRITES[self.config.name]
        self.writes = SITES // 2 if self.config.sites == "block" else SITES
        self.writes += self.config.embedding_write - (not self.config.final_read)

    def latent(self, module: nn.Module, x: Tensor) -> Tensor:
        if self.config.latent_norm == "rms":
            x = x / (x.square().mean(-1, keepdim=True) + 1e-6).sqrt()
        return affine(module, x)

    def begin(self, x: Tensor) -> None:
        c = self.config
        self.M = x.new_zeros(len(x), c.groups, D // c.groups, c.key_dim)
        alpha = torch.full((c.groups,), c.alpha, dtype=x.dtype)
        if c.alpha_learned:
            alpha = self.network.stream.prior.log_alpha.exp()
        self.P = alpha[:, None, None] * torch.eye(c.key_dim, dtype=x.dtype).repeat(len(x), 1, 1, 1)

    def write(self, writer: nn.Module, value: Tensor, seen: Tensor) -> None:
        c, latent = self.config, self.latent(writer.latent, seen)
        key = affine(writer.key, latent).reshape(len(value), -1, c.key_dim)
        assert key.shape[1] == (1 if c.shared_keys else c.groups)
        importance: Tensor | float = 1.0
        if c.importance != "one":
            maps = {"sigmoid": torch.sigmoid, "softplus": F.softplus}
            importance = maps[c.importance](affine(writer.importance, latent))
        forgetting: Tensor | float = 1.0
        if writer.forgetting is not None:
            share = torch.sigmoid(writer.forgetting.logit) / self.writes
            forgetting = c.min_retention**share
        grouped = value.reshape(len(value), c.groups, -1)
        args = (scaled(key, c.key_norm), grouped, forgetting, importance)
        self.M, self.P = self.write_rule(self.M, self.P, *args)

    def read(self, reader: nn.Module, h: Tensor) -> Tensor:
        c, latent = self.config, self.latent(reader.latent, h)
        query = affine(reader.query, latent).reshape(len(h), c.groups, c.key_dim)
        y = ops.read(self.M, scaled(query, c.query_norm))
        gate = torch.sigmoid(affine(reader.gate, latent)) if c.gate else torch.ones(c.groups).to(h)
        y = (reader.gain * gate)[..., None] * y
        return y.reshape(h.shape) + (h if c.residual else 0)

    def run(self, x: Tensor) -> list[Tensor]:
        """What every norm is given."""
        c, stream, inputs = self.config, self.network.stream, []
        self.begin(x)
        if c.embedding_write:
            self.write(stream.embedding_writer, x, x)
        h, pending = x, torch.zeros_like(x)
        for site, port in enumerate(self.network.ports):
            inputs.append(h if port.reader is None else self.read(port.reader, h))
            y = self.network.body(site, norm(inputs[-1]))
            h = h + y if c.residual else y
            value = pending + y
            if c.sites == "block" and site % 2 == 0:
                pending = y
                continue
            pending = torch.zeros_like(x)
            if port.writer is not None:
                seen = norm(inputs[-1]) if c.latent_input == "input" else value
                self.write(port.writer, value, seen)
        return [*inputs, self.read(stream.final_reader, h) if c.final_read else h]


@pytest.mark.parametrize("config", FLOAT32_STATE.values(), ids=FLOAT32_STATE.keys())
def test_against_a_loop_over_the_ops(config: dict) -> None:
    network = randomised(Network(config))
    x = torch.randn(4, D, dtype=torch.float64)
    expected = Loop(network).run(x)
    # design of the recursion: relative error about eps over the retention, here 1e3 eps at most
    scale = max(z.abs().max().item() for z in expected)
    atol = 64 * D * SITES * EPS / network.stream.config.min_retention * scale
    for a, b in zip(inputs_of(network, x), expected, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=atol)


@pytest.mark.parametrize("options", [{}, {"sites": "block"}, {"residual": False}], ids=str)
@pytest.mark.parametrize("rule", WRITES)
def test_the_window_is_only_rounding(rule: str, options: dict) -> None:
    reference = randomised(Network(ldm(rule, window=1, **options)))
    x = torch.randn(2, 3, D, dtype=torch.float64)
    expected, expected_grads = gradients(reference, x)
    for window in (2, 3, 8, 1000, "auto"):
        network = Network(ldm(rule, window=window, **options))
        network.load_state_dict(reference.state_dict())
        out, grads = gradients(network, x)
        torch.testing.assert_close(out, expected, rtol=1e-10, atol=1e-10)
        for a, b in zip(grads, expected_grads, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize("rule", WRITES)
def test_the_window_bounds_what_waits(rule: str) -> None:
    network = Network(ldm(rule, window=3))
    states = [s.memory for s in network.states(torch.randn(D, dtype=torch.float64))]
    assert max(len(memory.values) for memory in states) == 2
    assert {len(memory.covariance) for memory in states} == {1 if rule == "ldm" else 0}
    never = Network(ldm(rule, window=1000))
    states = [s.memory for s in never.states(torch.randn(D, dtype=torch.float64))]
    assert len(states[-1].values) == SITES + 1
    assert not any(memory.base for memory in states)


def who(config: dict) -> list[tuple[bool, bool]]:
    """Which ports read and which write."""
    ports = Network(config).ports
    return [(port.reader is not None, port.writer is not None) for port in ports]


@pytest.mark.parametrize("rule", WRITES)
def test_which_sublayers_read_and_write(rule: str) -> None:
    both, read, write, none = (True, True), (True, False), (False, True), (False, False)
    assert who(ldm(rule)) == [both] * 6
    assert who(ldm(rule, embedding_write=False)) == [write] + [both] * 5
    assert who(ldm(rule, final_read=False)) == [both] * 5 + [read]
    assert who(ldm(rule, sites="block")) == [read, write] * 3
    bare = ldm(rule, sites="block", embedding_write=False, final_read=False)
    assert who(bare) == [none, write, read, write, read, none]


def test_without_a_residual_a_read_is_all_there_is() -> None:
    network = randomised(Network(ldm(residual=False)))
    with torch.no_grad():
        for reader in (network.stream.final_reader, *(port.reader for port in network.ports)):
            reader.gain.zero_()
    for z in inputs_of(network, torch.randn(3, D, dtype=torch.float64)):
        assert not z.any()


def test_the_first_write_of_an_ablation_has_nothing_to_forget() -> None:
    for rule in ("ldm_delta", "ldm_outer"):
        network = Network(ldm(rule))
        assert network.stream.embedding_writer.forgetting is None
        assert all(port.writer.forgetting is not None for port in network.ports)
        late = Network(ldm(rule, embedding_write=False)).ports
        assert [port.writer.forgetting is None for port in late] == [True] + [False] * 5
    assert Network(ldm()).stream.embedding_writer.forgetting is not None


def test_the_start() -> None:
    config = ldm(gain_init=0.5, alpha=2.0, alpha_learned=True)
    network = Network(config, dtype=torch.float32)
    assert network.stream.prior.log_alpha.tolist() == pytest.approx([math.log(2.0)] * 2)
    for port in network.ports:
        assert port.reader.gain.tolist() == [0.5, 0.5]
        assert not port.reader.gate.weight.any()
        assert not port.writer.importance.weight.any()
        reader, writer = port.reader, port.writer
        read = (reader.latent, reader.query, reader.gate)
        for module in (*read, writer.latent, writer.key, writer.importance):
            assert not module.bias.any()


def test_numbers_of_parameters() -> None:
    K, G, r = LDM["key_dim"], LDM["groups"], LDM["read_rank"]
    reader = (D + 1) * r + (r + 1) * G * K + (r + 1) * G + G
    writer = (D + 1) * r + (r + 1) * K + (r + 1) * G + G
    count = sum(p.numel() for p in Network(ldm()).parameters())
    assert count == (SITES + 1) * (reader + writer)
    per_group = sum(p.numel() for p in Network(ldm(shared_keys=False)).parameters())
    assert per_group - count == (SITES + 1) * (r + 1) * K * (G - 1)


def test_the_state_has_the_size_of_the_design() -> None:
    network = Network({"name": "ldm", "key_dim": 3, "groups": 4, "window": 1}, dim=24)
    *_, last = network.states(torch.randn(2, 24, dtype=torch.float64))
    assert last.memory.base[0].shape == (2, 4, 6, 3)
    assert last.memory.covariance[0].shape == (2, 4, 3, 3)
