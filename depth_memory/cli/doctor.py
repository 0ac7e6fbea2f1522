"""`depth-memory doctor`: what is installed, what runs here, and whether the core works."""

from __future__ import annotations

import argparse
import inspect
import os
import tempfile
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from depth_memory.cli import arguments, console

EXTRAS = {
    "plot": "matplotlib",
    "data": "pyarrow",
    "study": "scipy",
    "tensorboard": "tensorboard",
    "wandb": "wandb",
    "trackio": "trackio",
    "peft": "peft",
    "eval": "lm_eval",
}
"""Name of an extra -> the module that it installs."""


def add(commands: Any) -> None:
    """Add the command."""
    parser = arguments.add_command(
        commands,
        "doctor",
        run,
        summary="Versions, device, which implementation of an op runs, and a check of the core.",
        examples="depth-memory doctor",
    )
    parser.add_argument("--json", action="store_true", help="for programs to read")


def run(args: argparse.Namespace) -> int:
    """Say what there is; the exit code is 0 if a small model computes a gradient."""
    findings = {
        "versions": _versions(),
        "device": _device(),
        "extras": {name: _installed(module) for name, module in EXTRAS.items()},
        "ops": _ops(),
        "directories": _directories(),
        "core": _core(),
    }
    if args.json:
        console.show_json(findings)
    else:
        _show(findings)
    return 0 if findings["core"]["forward and backward"] == "ok" else 1


def _show(findings: dict[str, dict[str, str]]) -> None:
    width = max(len(name) for section in findings.values() for name in section)
    for title, section in findings.items():
        console.show(title)
        for name, value in section.items():
            console.show(f"  {name.ljust(width)}  {value}")


def _versions() -> dict[str, str]:
    from depth_memory.train import provenance

    return {**provenance.versions(), "triton": _version("triton")}


def _version(package: str) -> str:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return "not installed"


def _installed(module: str) -> str:
    return "installed" if find_spec(module) else "not installed"


def _device() -> dict[str, str]:
    """The device that `auto` takes, and what it can do."""
    import torch

    from depth_memory.train import parallel, provenance

    device = parallel.choose_device("auto")
    found = {
        "auto": device.type,
        "name": provenance.device_name(device),
        "threads": str(torch.get_num_threads()),
        "CUDA of torch": torch.version.cuda or "none (CPU build)",
    }
    if device.type == "cuda":
        memory = torch.cuda.get_device_properties(device).total_memory
        found["memory"] = f"{memory / 2**30:.0f} GiB"
        found["bfloat16"] = "yes" if torch.cuda.is_bf16_supported() else "no"
    return found


def _ops() -> dict[str, str]:
    """What `impl="auto"` stands for, for each op that has the choice."""
    from depth_memory import ops
    from depth_memory.ops import _impl
    from depth_memory.train.parallel import choose_device

    device = choose_device("auto")
    chosen = [n for n in ops.__all__ if "impl" in inspect.signature(getattr(ops, n)).parameters]
    found = {name: _impl.explain(name, device) for name in chosen}
    return found | {"ldm in training": _impl.explain("exchange", device)}


def _directories() -> dict[str, str]:
    """Where files go, and whether they can."""
    from depth_memory.train.corpus import default_directory

    places = {
        "here": Path.cwd(),
        "embedded corpus": default_directory(),
        "temporary": Path(tempfile.gettempdir()),
    }
    return {name: f"{path} ({_writable(path)})" for name, path in places.items()}


def _writable(path: Path) -> str:
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    return "writable" if os.access(existing, os.W_OK | os.X_OK) else "not writable"


def _core() -> dict[str, str]:
    """Run the default stream in a tiny model, forward and backward."""
    try:
        problem = _gradient_problem()
    # whatever is broken here is what the doctor is asked for
    except Exception as error:
        problem = f"{type(error).__name__}: {error}".partition("\n")[0]
    return {"forward and backward": problem or "ok"}


def _gradient_problem() -> str | None:
    import torch

    from depth_memory import models
    from depth_memory.train import parallel

    size = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2}
    heads = {"num_attention_heads": 2, "num_key_value_heads": 2, "vocab_size": 64}
    with torch.random.fork_rng():
        torch.manual_seed(0)
        device = parallel.choose_device("auto")
        model = models.build_model("llama", {"name": "ldm"}, **size, **heads).to(device)
        ids = torch.randint(64, (2, 16), device=device)
    model(input_ids=ids, labels=ids).loss.backward()
    for name, parameter in model.named_parameters():
        if parameter.grad is None or not bool(parameter.grad.isfinite().all()):
            return f"the gradient of {name} is missing or not finite"
    return None
