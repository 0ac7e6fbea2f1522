"""The tokens are those of transformers' own generation, for any stream, batch and cache."""

from __future__ import annotations

import pytest
import torch

from depth_memory.errors import UserError
from depth_memory.generate import decode, generate, graph
from tests.generate.conftest import PROMPTS

GREEDY = {"tokens": 9, "temperature": 0}


def by_transformers(loaded, prompt: str, **options) -> tuple[int, ...]:
    ids = loaded.encode(prompt)
    options = {"max_new_tokens": 9, "do_sample": False, "pad_token_id": 0} | options
    out = loaded.model.generate(ids, attention_mask=torch.ones_like(ids), **options)
    new = out[0, ids.shape[1] :].tolist()
    return tuple(new[: new.index(0)] if 0 in new else new)


def tokens_of(found) -> list[tuple[int, ...]]:
    return [one.ids for one in found.continuations]


def test_greedy_tokens_do_not_depend_on_batch_or_cache(make, stream):
    loaded = make(stream, "qwen3" if stream == "ldm" else "llama")
    expected = [by_transformers(loaded, prompt) for prompt in PROMPTS]
    assert len(set(expected)) == 3
    for batch in (1, 3):
        for cache in ("dynamic", "static"):
            found = generate(loaded, PROMPTS, batch=batch, cache=cache, **GREEDY)
            assert tokens_of(found) == expected


@pytest.mark.parametrize("cache", ["dynamic", "static"])
def test_attention_to_a_window(make, cache):
    options = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    loaded = make("ldm", "qwen3", **options)
    assert set(loaded.model.config.layer_types) == {"full_attention", "sliding_attention"}
    expected = [by_transformers(loaded, prompt) for prompt in PROMPTS]
    assert tokens_of(generate(loaded, PROMPTS, cache=cache, **GREEDY)) == expected


def test_padding_is_no_repetition(make):
    loaded = make()
    expected = [by_transformers(loaded, prompt, repetition_penalty=1.7) for prompt in PROMPTS]
    assert expected != [by_transformers(loaded, prompt) for prompt in PROMPTS]
    found = generate(loaded, PROMPTS, repetition_penalty=1.7, **GREEDY)
    assert tokens_of(found) == expected


def test_a_row_is_padded_with_itself():
    ids, mask = decode.padded([[5], [7, 8, 9]], 2, torch.device("cpu"))
    assert ids.tolist() == [[5, 5, 5, 5, 5], [7, 8, 9, 7, 7]]
    assert mask.tolist() == [[0, 0, 1, 1, 1], [1, 1, 1, 1, 1]]


@pytest.fixture
def replayed(monkeypatch):
    """Capture without a GPU: a replay runs the step again on the same buffers; their number."""
    made = []

    def record(run, take_back):
        for _ in range(2):
            result = run()
            take_back()
        made.append(result)
        return lambda: result.copy_(run()), result

    monkeypatch.setattr(decode, "can_capture", lambda _: True)
    monkeypatch.setattr(graph, "record", record)
    return made


def test_a_captured_step_goes_on_where_the_cache_is(make, stream, replayed):
    loaded = make(stream)
    expected = [by_transformers(loaded, prompt) for prompt in PROMPTS]
    assert tokens_of(generate(loaded, PROMPTS, batch=2, **GREEDY)) == expected
    assert len(replayed) == 2
    generate(loaded, PROMPTS, batch=2, graph=False, **GREEDY)
    generate(loaded, PROMPTS, batch=2, cache="dynamic", **GREEDY)
    assert len(replayed) == 2


def test_on_a_cpu_nothing_is_captured(make):
    loaded = make()
    assert not graph.can_capture(loaded.model)
    with pytest.raises(UserError, match=r"^graph: got True; allowed: a static cache on a GPU"):
        generate(loaded, "the", graph=True, tokens=3)


def test_what_can_be_captured(make, monkeypatch):
    monkeypatch.setattr("depth_memory.models.DepthForCausalLM.device", torch.device("cuda"))
    assert graph.can_capture(make().model)
    windowed = {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    assert not graph.can_capture(make("ldm", "qwen3", **windowed).model)
    rope = {"rope_type": "dynamic", "factor": 2.0, "rope_theta": 1e4}
    assert not graph.can_capture(make("ldm", rope_parameters=rope).model)


def test_a_token_of_each_row_until_its_own_end(make):
    loaded = make()
    first, second, third = (by_transformers(loaded, prompt) for prompt in PROMPTS)
    end = first[2]
    assert end not in first[:2] + second + third
    loaded.model.generation_config.eos_token_id = [0, end]
    found = generate(loaded, PROMPTS, **GREEDY)
    assert tokens_of(found) == [first[:2], second, third]
    assert [one.end for one in found.continuations] == ["end", "length", "length"]
    assert [one.tokens for one in found.continuations] == [3, 9, 9]
    assert found.tokens == 21
    assert found.tokens_per_second == pytest.approx(21 / found.seconds)


def test_no_pass_follows_the_last_end(make, monkeypatch):
    loaded = make()
    first = by_transformers(loaded, "the")
    loaded.model.generation_config.eos_token_id = first[1]
    passes = []
    step = decode.step
    monkeypatch.setattr(decode, "step", lambda *a: (passes.append(a), step(*a))[1])
    assert generate(loaded, "the", **GREEDY).tokens == 2
    assert len(passes) == 2
    assert generate(loaded, "the", tokens=1, temperature=0).tokens == 1
    assert len(passes) == 3
