"""What `counts` measures is what the formulas of its docstring say, and what a CPU holds."""

import pytest
import torch

from depth_memory import streams
from depth_memory.errors import UserError
from depth_memory.presets import counts

D, SITES = 64, 8
DTYPES = {torch.bfloat16: 2, torch.float32: 4}


def lane_bytes(config, b):
    return b * config.lanes * D


def ldm_bytes(config, b):
    """The largest over the number of writes so far."""
    stream = streams.build(config, D, SITES)
    writes = stream.writes
    # the dual form folds nothing, not even after the last write
    window = stream.config.window if stream.config.window < writes else writes + 1
    squares = config.key_dim**2 if config.name == "ldm" else 0
    element = 2 if config.state_dtype == "bfloat16" else 4
    transition = 4 * config.groups * (2 * config.key_dim + 1)

    def after(k):
        base = element * config.key_dim * D if k >= window else 0
        return b * D + base + 4 * config.groups * squares + k % window * (b * D + transition)

    largest = max(after(k) for k in range(1, writes + 1))
    if config.sites == "block":  # what attention produced waits for the MLP
        largest = max(largest, *(after(k) + b * D for k in range(1, writes)))
    return largest


STATE = {
    "preln": lambda config, b: b * D,
    "preln_adapter": lambda config, b: b * D,
    "hc": lane_bytes,
    "mhc": lane_bytes,
    "denseformer": lambda config, b: b * D * (2 + SITES // 2),
    "attnres": lambda config, b: b * D * (SITES + 1),
    "block_attnres": lambda config, b: b * D * (min(config.blocks, SITES) + 1),
    "ldm": ldm_bytes,
    "ldm_delta": ldm_bytes,
    "ldm_outer": ldm_bytes,
}
VARIANTS = [
    *({"name": name} for name in streams.STREAMS),
    {"name": "hc", "lanes": 3},
    {"name": "block_attnres", "blocks": 3},
    {"name": "ldm", "window": 1, "key_dim": 4},
    {"name": "ldm", "window": 3, "groups": 2},
    {"name": "ldm", "window": 3, "state_dtype": "bfloat16"},
    {"name": "ldm", "window": 2, "shared_keys": False},
    {"name": "ldm", "window": 2, "residual": False},
    {"name": "ldm", "window": 2, "sites": "block"},
    {"name": "ldm_outer", "window": 4, "key_dim": 2},
]


def title(value):
    return "-".join(map(str, value.values())) if isinstance(value, dict) else str(value)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("variant", VARIANTS, ids=title)
def test_state_bytes_follow_the_formula(variant, dtype):
    config = streams.resolve(variant)
    counted = counts.count_stream(config, width=D, sites=SITES, dtype=dtype)
    assert counted.state_bytes == STATE[config.name](config, DTYPES[dtype])


@pytest.mark.parametrize("variant", VARIANTS, ids=title)
def test_state_bytes_are_those_of_real_tensors(variant):
    stream = streams.build(variant, D, SITES)
    state = stream.start(torch.randn(1, D))
    sizes = []
    for site in range(SITES):
        port = stream.port(site)
        x, state = port.read(state, lambda h: h)
        state = port.write(state, x)
        # what waits for the next read is not state
        settled = port.read(state, lambda h: h)[1]
        sizes.append(min(counts.state_size(state), counts.state_size(settled)))
    counted = counts.count_stream(variant, width=D, sites=SITES, dtype=torch.float32)
    assert counted.state_bytes == max(sizes)


def test_no_stream_adds_arithmetic_to_an_ordinary_residual():
    counted = counts.count_stream({"name": "preln"}, width=D, sites=SITES)
    assert (counted.training_flops, counted.parameters) == (0, 0)


def test_a_low_rank_map_costs_its_matrices():
    counted = counts.count_stream({"name": "preln_adapter", "rank": 5}, width=D, sites=SITES)
    assert counted.parameters == SITES * 2 * 5 * D
    assert counted.training_flops == 3 * 2 * counted.parameters


@pytest.mark.parametrize("name", ["ldm", "ldm_outer", "hc", "mhc", "attnres"])
@pytest.mark.parametrize("width", [64, 576])
def test_the_control_of_a_stream_has_as_many_parameters(name, width):
    size = {"width": width, "sites": SITES}
    wanted = counts.count_stream({"name": name}, **size).parameters
    control = counts.control({"name": name}, **size)
    extra = counts.count_stream(control, **size).parameters - wanted
    assert 0 <= extra < 2 * width * SITES


def test_what_has_no_parameters_has_no_control():
    with pytest.raises(UserError, match=r"^stream\.name: got 'preln'; allowed: a stream with"):
        counts.control({"name": "preln"}, width=D, sites=SITES)


def test_flops_of_denseformer():
    sources = sum(block + 2 for block in range(SITES // 2))
    counted = counts.count_stream({"name": "denseformer"}, width=D, sites=SITES)
    assert counted.training_flops == 3 * 2 * D * sources
    assert counted.parameters == sources


def test_flops_of_attention_over_depth():
    # square, scale, dot product, sum; and the query times the norm's weight
    reads = [*range(2, SITES + 1), SITES + 1]
    counted = counts.count_stream({"name": "attnres"}, width=D, sites=SITES)
    assert counted.training_flops == 3 * 2 * D * sum(4 * sources + 1 for sources in reads)
    assert counted.parameters == 2 * D * len(reads)


def leading(name):
    """The multiplications per channel of one forward pass that the docstring names."""
    n, L, Dk, r = 4, SITES, 8, 32
    if name == "hc":
        return L * (n * (n + 2) + n * n + 2 * n) + n
    if name == "mhc":
        return L * (n * (2 * n + n * n) + n * n + 2 * n) + n
    return (L + 1) * (2 * r + Dk) + Dk + L * (Dk * Dk + Dk)  # window 1: every write folds


@pytest.mark.parametrize("name", ["hc", "mhc", "ldm", "ldm_delta", "ldm_outer"])
def test_flops_are_the_leading_terms_and_little_more(name):
    width = 1024
    window = {"window": 1} if name.startswith("ldm") else {}
    counted = counts.count_stream({"name": name, **window}, width=width, sites=SITES)
    assert 1 <= counted.training_flops / (6 * width * leading(name)) < 1.1


def test_expanded_tensors_count_in_full():
    assert counts.state_size((torch.zeros(1, 3).expand(5, 3), (torch.zeros(2),), ())) == 4 * 17
