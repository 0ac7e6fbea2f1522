"""The files that `depth-memory inspect` writes."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

from torch import Tensor, nn

from depth_memory import streams
from depth_memory.files import dumps, replaced_file
from depth_memory.inspect import figure, measures, retrieval
from depth_memory.inspect import probe as probing

NAMES = ("inspect.json", "retrieval.png", "statistics.png")


def report(model: nn.Module, input_ids: Tensor, out: Path, title: str) -> list[Path]:
    """Write what the stream of a model does on some text.

    Args:
        model: A causal language model of this package.
        input_ids: Token ids [batch, length].
        out: Directory; made if it is missing.
        title: Heading of the pictures.

    Returns:
        The files: `inspect.json` with the map and the statistics, `retrieval.png` and
        `statistics.png`. They appear when all of them are whole.

    Raises:
        UserError: The model has no stream, a number of it is not finite, or matplotlib is not
            installed.
    """
    figure.require()
    probe = probing.run(model, input_ids)
    found, rows = retrieval.from_probe(probe), measures.from_probe(probe)
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
    text = dumps(document)
    out.mkdir(parents=True, exist_ok=True)
    paths = [out / name for name in NAMES]
    with ExitStack() as stack:
        json, retrieval_map, statistics = (stack.enter_context(replaced_file(p)) for p in paths)
        json.write_text(text, encoding="utf-8")
        figure.draw_map(found, retrieval_map, title)
        figure.draw_statistics(rows, statistics, title)
    return paths
