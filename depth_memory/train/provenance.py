"""What a result must carry to be repeated: versions, commit, device."""

from __future__ import annotations

import platform
import subprocess
from importlib import metadata
from pathlib import Path

import torch

PACKAGES = ("depth-memory", "torch", "transformers", "tokenizers", "safetensors", "numpy")


def versions(*more: str) -> dict[str, str]:
    """Name to version of Python, of every package that decides a number, and of `more`."""
    found = {"python": platform.python_version()}
    for name in (*PACKAGES, *more):
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            found[name] = "not installed"
    # the installed metadata may lack the build that the module knows, such as +cu130
    return {**found, "torch": str(torch.__version__)}


def commit() -> str | None:
    """The git commit of this package's source, `-dirty` if changed; None without git."""
    folder = Path(__file__).parent
    command = [
        "git",
        "-C",
        str(folder),
        "describe",
        "--always",
        "--dirty",
        "--abbrev=40",
        "--exclude=*",
    ]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=10, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    return done.stdout.strip()


def device_name(device: torch.device) -> str:
    """The device as people call it."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    return platform.processor() or platform.machine()
