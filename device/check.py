"""What needs a GPU: every stream on CUDA against float64, compiled, checkpointed, trained.

    python device/check.py [OUT]

Prints one row per stream and writes OUT/check.json. Exit code 0 only if every row holds.
"""

from __future__ import annotations

import copy
import json
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
import transformers

from depth_memory import models, presets, streams
from depth_memory.train import train

# twelve layers are 24 sublayers: eight blocks of attention differ from full attention
SHAPE: dict[str, Any] = {
    "vocab_size": 512,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 12,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
}
SHALLOW = {"ldm alone": 4}
"""Layers of a case for which float32 is too coarse in a deep network: reads of reads alone."""
CASES: dict[str, dict[str, Any]] = {
    **{name: {"name": name} for name in streams.STREAMS},
    "ldm window 4": {"name": "ldm", "window": 4},
    "ldm block": {"name": "ldm", "window": 4, "sites": "block"},
    "ldm input": {"name": "ldm", "window": 2, "latent_input": "input"},
    "ldm alone": {"name": "ldm", "residual": False, "window": 1},
}


def build(name: str) -> Any:
    """The model of a case, its stream away from its start."""
    torch.manual_seed(0)
    shape = SHAPE | ({"num_hidden_layers": SHALLOW[name]} if name in SHALLOW else {})
    model = models.build_model("llama", CASES[name], **shape)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "port" in name or "stream" in name:
                parameter.add_(0.05 * torch.randn_like(parameter))
    return model.train()


def gradients(model: Any, ids: torch.Tensor) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    """Loss and gradients, where the model is and in its dtype."""
    model.zero_grad(set_to_none=True)
    loss = model(ids, labels=ids, use_cache=False).loss
    loss.backward()
    found = {n: p.grad.detach() for n, p in model.named_parameters() if p.grad is not None}
    return loss.detach(), found


def distance(found: dict[str, torch.Tensor], exact: dict[str, torch.Tensor]) -> float:
    """Relative distance of all gradients together."""
    total = sum((found[n].cpu().double() - g).square().sum() for n, g in exact.items())
    return (total / sum(g.square().sum() for g in exact.values())).sqrt().item()


def check(name: str) -> dict[str, Any]:
    """The row of one case."""
    model, ids = build(name), torch.randint(0, 512, (4, 96))
    loss64, exact = gradients(copy.deepcopy(model).double(), ids)
    gpu, ids = copy.deepcopy(model).cuda(), ids.cuda()
    loss32, plain = gradients(gpu, ids)
    gpu.gradient_checkpointing_enable()
    _, checkpointed = gradients(gpu, ids)
    gpu.gradient_checkpointing_disable()
    half_loss, half = gradients(copy.deepcopy(model).cuda().to(torch.bfloat16), ids)
    torch._dynamo.reset()
    for layer in gpu.model.layers:
        layer.compile()
    began = time.perf_counter()
    loss_compiled, compiled = gradients(gpu, ids)
    return {
        "float64_loss": loss64.item(),
        "float32_loss_error": abs(loss32.item() - loss64.item()),
        "float32_gradient_error": distance(plain, exact),
        "checkpoint_bit_equal": all(torch.equal(plain[n], checkpointed[n]) for n in plain),
        "bfloat16_gradient_error": distance(half, exact),
        "bfloat16_loss_error": abs(half_loss.item() - loss64.item()),
        "compiled_gradient_error": distance(compiled, exact),
        "compiled_loss_error": abs(loss_compiled.item() - loss64.item()),
        "compile_seconds": round(time.perf_counter() - began, 1),
    }


def holds(row: dict[str, Any]) -> bool:
    """Compiled no worse than twice plain, bfloat16 no worse than its epsilon over float32's."""
    coarser = torch.finfo(torch.bfloat16).eps / torch.finfo(torch.float32).eps
    plain = row["float32_gradient_error"]
    return (
        plain < 1e-4
        and row["compiled_gradient_error"] < 2 * plain
        and row["bfloat16_gradient_error"] < coarser * plain
        and row["checkpoint_bit_equal"]
    )


def all_distinct(rows: dict[str, Any]) -> bool:
    """Whether no two streams were one in this network, as attention in blocks of one would be."""
    losses = [rows[name].get("float64_loss") for name in streams.STREAMS]
    return len(set(losses)) == len(losses)


def trained(precision: str) -> dict[str, Any]:
    """Train the debug preset on the GPU."""
    with tempfile.TemporaryDirectory() as folder:
        run = replace(presets.debug(), device="cuda", precision=precision, out=Path(folder) / "run")
        return {"validation_loss": train(run, show=False).evaluation.loss}


def main() -> int:
    """Run everything; see the module."""
    out = Path(sys.argv[1] if len(sys.argv) > 1 else ".")
    torch.backends.cuda.matmul.allow_tf32 = False
    rows: dict[str, Any] = {}
    for name in CASES:
        try:
            rows[name] = check(name)
            rows[name]["holds"] = holds(rows[name])
        except Exception:
            rows[name] = {"holds": False, "error": traceback.format_exc()}
    for precision in ("float32", "bfloat16"):
        try:
            rows[f"train {precision}"] = {**trained(precision), "holds": True}
        except Exception:
            rows[f"train {precision}"] = {"holds": False, "error": traceback.format_exc()}
    distinct = all_distinct(rows)
    facts = {
        "device": torch.cuda.get_device_name(),
        "torch": torch.__version__,
        "transformers": transformers.__version__,
        "streams_distinct": distinct,
        "rows": rows,
    }
    (out / "check.json").write_text(json.dumps(facts, indent=1))
    for name, row in rows.items():
        shown = {k: f"{v:.1e}" if isinstance(v, float) else v for k, v in row.items()}
        print(name, shown if "error" not in row else row["error"][-1500:])
    print("streams distinct:", distinct)
    return 0 if distinct and all(row["holds"] for row in rows.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
