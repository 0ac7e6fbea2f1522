"""Decoding on a GPU: each way of keeping keys and values, for some streams, in tokens/s.

    python device/generate.py OUT [SHAPE ...] [--dry]

Two shapes with random weights, moved away from where a stream starts: `small` in float32, whose
greedy tokens must be the same each way; and Qwen3-1.7B in bfloat16. A prompt of 128 tokens, 128
generated, batches of 1 and 8. The ways: a cache that grows; a static one, launched kernel by
kernel; the same with a step replayed as a CUDA graph; and that with the layers compiled first.
Each row is a line added to OUT/generate.jsonl as soon as it is known; SHAPE names one or both.
`--dry` runs tiny shapes on a CPU, where there is no graph. Exit code 0 only if no row failed and
all tokens of `small` agree.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import transformers

from depth_memory import models, streams
from depth_memory.bench import methods
from depth_memory.bench.model import LIMITS
from depth_memory.generate import Settings, decode, state_bytes

STREAMS: dict[str, dict[str, Any]] = {
    "preln": {"name": "preln"},
    "ldm key_dim 4": {"name": "ldm", "key_dim": 4},
    "ldm key_dim 8": {"name": "ldm", "key_dim": 8},
    "ldm key_dim 4, blocks, kernels": {
        "name": "ldm",
        "key_dim": 4,
        "sites": "block",
        "impl": "triton",
    },
    "block_attnres": {"name": "block_attnres"},
}
SHAPES: dict[str, dict[str, Any]] = {
    "small": {
        "vocab_size": 4096,
        "hidden_size": 256,
        "intermediate_size": 768,
        "num_hidden_layers": 6,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "initializer_range": 0.1,
    },
    "1.7b": {
        "vocab_size": 151936,
        "hidden_size": 2048,
        "intermediate_size": 6144,
        "num_hidden_layers": 28,
        "num_attention_heads": 16,
        "num_key_value_heads": 8,
        "head_dim": 128,
        "tie_word_embeddings": True,
    },
}
TINY: dict[str, Any] = {
    "vocab_size": 97,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
    "initializer_range": 0.2,
}
EXACT = "small"
"""The shape that is computed in float32."""
COMPILED = "static, graph, compiled"
WAYS: dict[str, dict[str, Any]] = {
    "dynamic": {"cache": "dynamic"},
    "static": {"cache": "static", "graph": False},
    "static, graph": {"cache": "static", "graph": True},
    COMPILED: {"cache": "static", "graph": True},
}
ROUNDS = 2
BATCHES = (1, 8)


def build(shape: dict[str, Any], stream: dict[str, Any], exact: bool, device: str) -> Any:
    """A model with random weights, its stream away from its start."""
    torch.manual_seed(0)
    dtype = torch.float32 if exact else torch.bfloat16
    with torch.device(device):
        model = models.build_model("qwen3", stream, max_position_embeddings=1024, **shape)
        with torch.no_grad():
            for module in model.modules():
                if isinstance(module, streams.StreamModule):
                    for parameter in module.parameters(recurse=False):
                        parameter.add_(0.05 * torch.randn_like(parameter))
    return model.to(dtype).eval()


def prompts(vocabulary: int, batch: int, length: int) -> list[list[int]]:
    """Random token ids, of different lengths where there are several."""
    generator = torch.Generator().manual_seed(1)
    lengths = [length - i for i in range(batch)]
    return [torch.randint(vocabulary, (n,), generator=generator).tolist() for n in lengths]


def continued(model: Any, given: list[list[int]], settings: Settings) -> tuple[list, list[float]]:
    """The tokens of each row, and when each step's were known."""
    found, times = [], [time.perf_counter()]
    for row in decode.tokens(model, given, settings, None):
        found.append(row)
        times.append(time.perf_counter())
    return [list(row) for row in zip(*found, strict=True)], times


def measure(model: Any, given: list[list[int]], way: str, tokens: int) -> dict[str, Any]:
    """Speed of one way, the best of some rounds after one that is not timed."""
    settings = Settings(temperature=0, tokens=tokens, batch=len(given), **WAYS[way])
    began = time.perf_counter()
    expected, _ = continued(model, given, settings)
    first = time.perf_counter() - began
    whole, step = [], []
    for _ in range(ROUNDS):
        found, times = continued(model, given, settings)
        whole.append(times[-1] - times[0])
        gaps = sorted(b - a for a, b in itertools.pairwise(times[2:]))
        step.append(gaps[len(gaps) // 2])
    return {
        "tokens_per_second": len(given) * tokens / min(whole),
        "decoding_tokens_per_second": len(given) / min(step),
        "prefill_and_capture_seconds": min(whole) - (tokens - 1) * min(step),
        "first_call_seconds": first,
        "repeats_itself": found == expected,
        "tokens": found,
    }


def rows(shape: str, stream: str, dry: bool) -> Iterator[dict[str, Any]]:
    """The rows of a model: every batch each way, compiled last, as a layer stays so."""
    length, tokens = (12, 8) if dry else (128, 128)
    size = TINY if dry else SHAPES[shape]
    # kernels are for the GPU
    config = {k: v for k, v in STREAMS[stream].items() if not (dry and k == "impl")}
    model = build(size, config, shape == EXACT, "cpu" if dry else "cuda")
    state = state_bytes(model)
    held = {"cache_bytes_per_token": state.cache, "depth_bytes_per_token": state.depth}
    expected: dict[int, list] = {}
    for way in WAYS:
        if dry and "graph" in way:
            continue
        if way == COMPILED:
            methods.compile_(model, "decode")
        for batch in BATCHES:
            about = {"shape": shape, "stream": stream, "batch": batch, "cache": way}
            try:
                found = measure(model, prompts(size["vocab_size"], batch, length), way, tokens)
                ids = found.pop("tokens")
                expected.setdefault(batch, ids)
                yield about | found | held | {"same_tokens": ids == expected[batch]}
            except Exception:
                yield about | {"error": traceback.format_exc()[-2000:]}


def facts(dry: bool) -> dict[str, Any]:
    """Device, versions and commit."""
    asked = ["git", "rev-parse", "HEAD"]
    commit = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "device": "cpu" if dry else torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "commit": commit,
        "rounds": ROUNDS,
    }


def main() -> int:
    """Measure everything; see the module."""
    dry = "--dry" in sys.argv
    out, *asked = (word for word in sys.argv[1:] if word != "--dry")
    torch.backends.cuda.matmul.allow_tf32 = False
    ok = True
    with (Path(out) / "generate.jsonl").open("a") as file, torch._dynamo.config.patch(LIMITS):
        print(json.dumps(facts(dry)), file=file, flush=True)
        for shape, stream in itertools.product(asked or SHAPES, STREAMS):
            torch._dynamo.reset()
            for row in rows(shape, stream, dry):
                ok &= "error" not in row and (row["same_tokens"] or shape != EXACT)
                print(json.dumps(row), file=file, flush=True)
                print(json.dumps(row), flush=True)
    return 0 if ok else 1


if __name__ == "__main__":
    raise SystemExit(main())
