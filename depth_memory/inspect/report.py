"""The files that `depth-memory inspect` writes."""

from __future__ import annotations

import json
from pathlib import Path

from torch import Tensor, nn

from depth_memory import streams
from depth_memory.files import replaced_file
from depth_memory.inspect import figure, measures, retrieval
from depth_memory.inspect import probe as probing


def report(model: nn.Module, input_ids: Tensor, out: Path, title: str) -> list[Path]:
    """Write what the stream of a model does on some text.

    Args:
        model: A causal language model of this package.
        input_ids: Token ids [batch, length].
        out: Directory; made if it is missing.
        title: Heading of the pictures.

    Returns:
        The files: `inspect.json` with the map and the statistics, `retrieval.png` and
        `statistics.png`. Each is written beside its name and then renamed.

    Raises:
        UserError: The model has no stream, or matplotlib is not installed.
    """
    probe = probing.run(model, input_ids)
    found, rows = retrieval.from_probe(probe), measures.from_probe(probe)
    out.mkdir(parents=True, exist_ok=True)
    document = {
        "title": title,
        "stream": streams.as_dict(probe.trunk.stream.config),
        "tokens": input_ids.numel(),
        "reads": found.reads,
        "sources": found.sources,
        "weights": found.weights.tolist(),
        "spread": found.spread.tolist(),
        "share": found.share.tolist(),
        "statistics": rows,
    }
    writers = {
        "inspect.json": lambda path: path.write_text(json.dumps(document, indent=1)),
        "retrieval.png": lambda path: figure.draw_map(found, path, title),
        "statistics.png": lambda path: figure.draw_statistics(rows, path, title),
    }
    for name, write in writers.items():
        with replaced_file(out / name) as partial:
            write(partial)
    return [out / name for name in writers]
