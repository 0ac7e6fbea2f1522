"""A network built without numbers starts as one with numbers, and is never whole anywhere."""

from __future__ import annotations

import weakref
from dataclasses import replace

import pytest
import torch
from torch import Tensor

from depth_memory import streams
from depth_memory.models import deferred
from depth_memory.train import build, parallel
from depth_memory.train.build import build_model
from depth_memory.train.config import ModelSpec
from depth_memory.train.parallel import connect, full
from tests.train.processes import call_ranks
from tests.train.tiny import MODEL, RUN


def whole(spec: ModelSpec) -> torch.nn.Module:
    torch.manual_seed(5)
    return build_model(spec, 257)


def started(spec: ModelSpec) -> tuple[torch.nn.Module, Tensor]:
    """The model, built without numbers and started on the CPU; the generator after the build."""
    torch.manual_seed(5)
    model, starts = deferred.build(lambda: build_model(spec, 257))
    after = torch.get_rng_state()
    assert {p.device.type for p in model.parameters()} == {"meta"}
    model.to_empty(device="cpu")
    model.tie_weights()
    deferred.start(model, starts, lambda target, source: target.copy_(source))
    return model, after


@pytest.mark.parametrize("name", streams.STREAMS)
@pytest.mark.parametrize("tied", [True, False])
def test_every_stream_starts_to_the_bit_as_if_built_whole(name: str, tied: bool) -> None:
    spec = replace(MODEL, stream={"name": name}, tie_embeddings=tied)
    expected = whole(spec)
    after = torch.get_rng_state()
    model, found = started(spec)
    ours, theirs = (dict([*m.named_parameters(), *m.named_buffers()]) for m in (model, expected))
    assert ours.keys() == theirs.keys()
    assert [n for n in ours if not torch.equal(ours[n], theirs[n])] == []
    assert torch.equal(found, after)
    assert (model.lm_head.weight is model.model.embed_tokens.weight) == tied


def first_weights(replicas: tuple[int, ...]) -> list[dict[str, list]]:
    found = []
    with connect("cpu") as world:
        for count in replicas:
            run = replace(RUN, replicas=count, model=replace(MODEL, tie_embeddings=False))
            _, weights = build.prepare(run, 257, 0, world)
            found.append({name: full(p).tolist() for name, p in weights.named.items()})
    return found


def test_ranks_start_with_the_weights_of_one_process() -> None:
    (expected,) = first_weights((1,))
    for found in call_ranks(2, first_weights, (1, 2)):
        assert found == [expected, expected]


def held() -> tuple[int, int, int]:
    """Most bytes of whole tensors alive while a rank starts; those of its share, and of all."""
    fill, alive, most = parallel.fill_, [], 0

    def watched(target: Tensor, source: Tensor) -> None:
        nonlocal most
        alive.append(weakref.ref(source))
        there = [tensor for tensor in (ref() for ref in alive) if tensor is not None]
        most = max(most, sum(tensor.nbytes for tensor in there))
        fill(target, source)

    parallel.fill_ = watched
    with connect("cpu") as world:
        _, weights = build.prepare(RUN, 257, 0, world)
        share = sum(p.to_local().nbytes for p in weights.named.values())
        return most, share, sum(p.nbytes for p in weights.named.values())


def test_no_rank_ever_holds_more_than_its_share_and_one_module() -> None:
    largest = 4 * 257 * 32  # the embedding, with or without its bytes as a head
    for most, share, size in call_ranks(2, held):
        assert most == largest
        assert size / 3 < share < size * 2 / 3
