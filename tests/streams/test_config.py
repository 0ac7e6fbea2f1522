"""A configuration that cannot work is refused in one line that names the field."""

from __future__ import annotations

import dataclasses
import re
import time
import typing
from typing import Any

import pytest
import torch

from depth_memory import streams
from depth_memory.errors import UserError, ranges_of
from depth_memory.streams import LDMConfig
from depth_memory.streams.ldm_config import auto_window
from tests.streams.cases import CASES, LDM, SITES, D, ldm

NAN = float("nan")

# configuration, the field that the message names, and what it must say of the allowed values
BAD: list[tuple[Any, str, str]] = [
    ({"name": "resnet"}, "stream.name", "denseformer, hc, ldm"),
    ({}, "stream.name", "preln"),
    ({"name": None}, "stream.name", "preln"),
    ({"name": ["ldm"]}, "stream.name", "preln"),
    ("ldm", "stream", "mapping"),
    (None, "stream", "mapping"),
    ({"name": "preln", "lanes": 2}, "stream.lanes", "none"),
    ({"name": "hc", "key_dim": 2}, "stream.key_dim", "lanes"),
    (ldm(keydim=4), "stream.keydim", "key_dim"),
    (ldm(key_dim="8"), "stream.key_dim", "int"),
    (ldm(key_dim=8.0), "stream.key_dim", "int"),
    (ldm(key_dim=True), "stream.key_dim", "int"),
    (ldm(gate=1), "stream.gate", "bool"),
    (ldm(alpha="1"), "stream.alpha", "float"),
    (ldm(window=2.0), "stream.window", "int or str"),
    (ldm(sites=None), "stream.sites", "str"),
    (ldm(groups=5), "stream.groups", "divisor of the width 12"),
    (ldm(groups=0), "stream.groups", "at least 1"),
    (ldm(key_dim=0), "stream.key_dim", "at least 1"),
    (ldm(key_dim=-1), "stream.key_dim", "at least 1"),
    (ldm(read_rank=0), "stream.read_rank", "at least 1"),
    (ldm(write_rank=0), "stream.write_rank", "at least 1"),
    (ldm(window=0), "stream.window", "auto, or at least 1"),
    (ldm(window=-3), "stream.window", "auto, or at least 1"),
    (ldm(window="x"), "stream.window", "auto, or at least 1"),
    (ldm(min_retention=0), "stream.min_retention", "at least 1e-12, below 1"),
    (ldm(min_retention=1), "stream.min_retention", "at least 1e-12, below 1"),
    (ldm(min_retention=NAN), "stream.min_retention", "at least 1e-12, below 1"),
    (ldm(retention_init=1.0), "stream.retention_init", "at least 1e-12, below 1"),
    (ldm(retention_init=1e-3), "stream.retention_init", "between min_retention (0.001) and 1"),
    (ldm(retention_init=NAN), "stream.retention_init", "at least 1e-12, below 1"),
    (ldm(alpha=0), "stream.alpha", "at least 1e-12, at most 1e+06"),
    (ldm(alpha=-1.0), "stream.alpha", "at least 1e-12"),
    (ldm(alpha=float("inf")), "stream.alpha", "at most 1e+06"),
    (ldm(alpha=NAN), "stream.alpha", "at least 1e-12"),
    (ldm(alpha=1001.0), "stream.alpha", "at most 1e6 * min_retention = 1000"),
    (ldm(query_norm="unit", query_init="zero"), "stream.query_init", "auto or normal"),
    (ldm("ldm_delta", key_norm="none"), "stream.key_norm", "unit"),
    (ldm("ldm_delta", key_norm="rms"), "stream.key_norm", "unit"),
    (ldm("ldm_delta", importance="softplus"), "stream.importance", "sigmoid or one"),
    (ldm("ldm_outer", alpha_learned=True), "stream.alpha_learned", "False"),
    (ldm(state_dtype="float16"), "stream.state_dtype", "bfloat16, float32"),
    (ldm(forgetting="none"), "stream.forgetting", "learned, one"),
    (ldm(importance="relu"), "stream.importance", "one, sigmoid, softplus"),
    (ldm(key_norm="l2"), "stream.key_norm", "none, rms, unit"),
    (ldm(query_norm="l2"), "stream.query_norm", "none, rms, unit"),
    (ldm(latent_input="both"), "stream.latent_input", "input, output"),
    (ldm(latent_norm="unit"), "stream.latent_norm", "none, rms"),
    (ldm(sites="layer"), "stream.sites", "block, sublayer"),
    ({"name": "preln_adapter", "rank": 0}, "stream.rank", "at least 1"),
    ({"name": "hc", "lanes": 0}, "stream.lanes", "at least 1"),
    ({"name": "hc", "norm": "batch"}, "stream.norm", "layer, rms"),
    ({"name": "hc", "readout": "mean"}, "stream.readout", "norm_sum, sum"),
    ({"name": "mhc", "lanes": 0}, "stream.lanes", "at least 1"),
    ({"name": "mhc", "iterations": 0}, "stream.iterations", "at least 1"),
    ({"name": "mhc", "init": "x"}, "stream.init", "gap, zero"),
    ({"name": "mhc", "exact_sums": "both"}, "stream.exact_sums", "columns, rows"),
    ({"name": "mhc", "readout": "x"}, "stream.readout", "head, mean, sum"),
    ({"name": "denseformer", "dilation": 0}, "stream.dilation", "at least 1"),
    ({"name": "denseformer", "period": 0}, "stream.period", "at least 1"),
    ({"name": "block_attnres", "blocks": 0}, "stream.blocks", "at least 1"),
    ({"name": "block_attnres", "boundary": "mlp"}, "stream.boundary", "attention, sublayer"),
    ({"name": "attnres", "eps": 0.0}, "stream.eps", "at least 1e-30, at most 1"),
    (ldm(gain_init=1e300), "stream.gain_init", "at least -1e+06, at most 1e+06"),
    (ldm(gain_init=NAN), "stream.gain_init", "at least -1e+06, at most 1e+06"),
    (ldm(window=10**12), "stream.window", "auto, or at least 1, at most 16384"),
    (ldm(key_dim=10**9), "stream.key_dim", "at least 1, at most 1024"),
    ({"name": "mhc", "lanes": 10**23}, "stream.lanes", "at least 1, at most 256"),
    ({"name": "hc", "scale_init": -NAN}, "stream.scale_init", "at least -1e+06"),
    ({"name": "block_attnres", "eps": -1e-6}, "stream.eps", "at least 1e-30, at most 1"),
]  # fmt: skip


@pytest.mark.parametrize(("config", "field", "allowed"), BAD, ids=[str(bad[0]) for bad in BAD])
def test_a_bad_value_is_named(config: Any, field: str, allowed: str) -> None:
    with pytest.raises(UserError) as caught:
        streams.build(config, D, SITES)
    message = str(caught.value)
    assert re.match(rf"{re.escape(field)}: got .+; allowed: ", message)
    assert allowed in message
    assert "\n" not in message


@pytest.mark.parametrize(
    ("dim", "sites", "field"),
    [(0, 6, "dim"), (-4, 6, "dim"), (10**23, 6, "dim"), (12, 0, "sites"), (12, 10**6, "sites")],
)
@pytest.mark.parametrize("name", streams.STREAMS)
def test_a_network_has_a_width_and_a_sublayer(name: str, dim: int, sites: int, field: str) -> None:
    with pytest.raises(
        UserError, match=f"^{field}: got .*; allowed: a whole number, at least 1, at most "
    ):
        streams.build({"name": name}, dim, sites)


@pytest.mark.parametrize("site", [-1, SITES, 1.0, None])
@pytest.mark.parametrize("name", streams.STREAMS)
def test_a_port_is_of_a_sublayer_that_is_there(name: str, site: Any) -> None:
    stream = streams.build({"name": name, **(LDM if name.startswith("ldm") else {})}, D, SITES)
    stream.port(SITES - 1)
    with pytest.raises(UserError, match=f"^site: got {site}; allowed: a whole number, at least 0"):
        stream.port(site)


@pytest.mark.parametrize("rule", ["ldm", "ldm_delta", "ldm_outer"])
def test_blocks_have_two_sublayers(rule: str) -> None:
    with pytest.raises(UserError, match=r"^stream.sites: got 'block'; allowed: .*odd.*5"):
        streams.build(ldm(rule, sites="block"), D, 5)
    streams.build(ldm(rule), D, 5)


def test_an_integer_stands_for_a_float() -> None:
    config = streams.resolve(ldm(alpha=2, gain_init=3))
    assert isinstance(config, LDMConfig)
    assert (type(config.alpha), config.alpha) == (float, 2.0)
    assert (type(config.gain_init), config.gain_init) == (float, 3.0)


def numbers(config: type) -> set[str]:
    """The fields of a configuration that hold numbers."""
    hints = typing.get_type_hints(config)
    kinds = {field.name: hints[field.name] for field in dataclasses.fields(config)}
    return {name for name, kind in kinds.items() if {int, float} & {kind, *typing.get_args(kind)}}


@pytest.mark.parametrize("name", streams.STREAMS)
def test_every_number_has_a_range_that_refuses_infinity(name: str) -> None:
    config = streams.STREAMS[name][0]
    assert set(ranges_of(config)) == numbers(config)
    for field, allowed in ranges_of(config).items():
        for value in (NAN, float("inf"), -float("inf"), 10**400, -(10**400)):
            assert not allowed.allows(value)
            with pytest.raises(UserError, match=f"^stream.{field}: got .*; allowed: "):
                config(**{field: value})


@pytest.mark.parametrize("name", streams.STREAMS)
def test_the_largest_numbers_can_be_checked_at_once(name: str) -> None:
    config = streams.STREAMS[name][0]
    largest = {k: r.most for k, r in ranges_of(config).items() if isinstance(r.most, int)}
    largest |= {"window": "auto"} if "window" in largest else {}
    began = time.perf_counter()
    with torch.device("meta"):
        streams.build({"name": name, **largest}, streams.MAX_WIDTH, streams.MAX_SITES).port(0)
    assert time.perf_counter() - began < 5


def test_a_mapping_is_left_as_it_was() -> None:
    config = {"name": "ldm", **LDM}
    streams.build(config, D, SITES)
    assert config == {"name": "ldm", **LDM}


def test_without_the_residual_stream_the_memory_is_written_and_read() -> None:
    config = streams.resolve(ldm(residual=False, embedding_write=False, final_read=False))
    assert config.embedding_write
    assert config.final_read


@pytest.mark.parametrize("key_dim", [1, 3, 4, 8])
@pytest.mark.parametrize("writes", [1, 2, 9, 57, 141])
def test_the_automatic_window_has_the_least_traffic(key_dim: int, writes: int) -> None:
    def traffic(n: int) -> float:
        """Passes over one vector per write, counted over one window, gradients included."""
        reads = [key_dim + waiting for waiting in range(n)]
        gathers = [key_dim + later for later in range(n)]
        fold, unfold = 2 * key_dim + n, 3 * key_dim + 2 * n
        return (2 * sum(reads) + sum(gathers) + fold + unfold) / n

    folded = {n: traffic(n) for n in range(1, writes)}
    never = 3 * sum(range(1, writes + 1)) / writes
    chosen = auto_window(key_dim, writes)
    best = min([never, *folded.values()])
    assert folded.get(chosen, never) == pytest.approx(best, rel=1e-12)


@pytest.mark.parametrize("name", [n for n, c in CASES.items() if c["name"].startswith("ldm")])
def test_the_window_is_a_number_once_built(name: str) -> None:
    built = streams.build(CASES[name], D, SITES)
    assert type(built.config.window) is int
    assert built.config.window >= 1
    assert type(streams.as_dict(built.config)["window"]) is int
