"""Files of safetensors, written one tensor at a time: memory holds no model."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor

from depth_memory.files import write_durably

DTYPES = {
    "F64": torch.float64,
    "F32": torch.float32,
    "BF16": torch.bfloat16,
    "F16": torch.float16,
}
"""What safetensors calls the dtypes that a weight may have."""
NAMES = {dtype: name for name, dtype in DTYPES.items()}


class Part(NamedTuple):
    """A tensor to write; `load` is called once, when its turn comes."""

    name: str
    dtype: torch.dtype
    shape: tuple[int, ...]
    load: Callable[[], Tensor]

    @property
    def size(self) -> int:
        """Its bytes."""
        return self.dtype.itemsize * torch.Size(self.shape).numel()


def parts_of(tensors: Mapping[str, Tensor]) -> list[Part]:
    """Tensors that are there already, as what `save_file` takes."""
    return [
        Part(name, tensor.dtype, tuple(tensor.shape), partial(_itself, tensor))
        for name, tensor in tensors.items()
    ]


def _itself(tensor: Tensor) -> Tensor:
    return tensor


def save_file(parts: Sequence[Part], path: Path) -> None:
    """Write one file of tensors, in this order and one at a time, and make it durable.

    Args:
        parts: Those with larger elements come first: readers map the file into memory.
        path: Of the new file.
    """

    def blocks() -> Iterator[bytes | memoryview]:
        yield header_of(parts)
        yield from map(bytes_of, parts)

    write_durably(path, blocks())


def header_of(parts: Sequence[Part]) -> bytes:
    """Length and header of a safetensors file whose tensors follow in this order."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    start = 0
    for part in parts:
        offsets = [start, start + part.size]
        header[part.name] = {
            "dtype": NAMES[part.dtype], "shape": list(part.shape), "data_offsets": offsets
        }  # fmt: skip
        start += part.size
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return struct.pack("<Q", len(text)) + text


def bytes_of(part: Part) -> memoryview:
    """Load a part; its bytes as they lie in a file."""
    tensor = part.load().detach().cpu().contiguous()
    if (tensor.dtype, tuple(tensor.shape)) != (part.dtype, part.shape):
        raise ValueError(f"{part.name}: {tensor.dtype} {tuple(tensor.shape)}, planned otherwise")
    return memoryview(tensor.reshape(-1).view(torch.uint8).numpy())
