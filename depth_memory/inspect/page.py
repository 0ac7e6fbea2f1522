"""The report as a page: one file of HTML that needs nothing but a browser."""

from __future__ import annotations

import html
import json
from dataclasses import asdict
from importlib import resources
from typing import Any

from depth_memory.inspect.panels import PANELS

PARTS = resources.files("depth_memory.inspect") / "assets"


def render(document: dict[str, Any]) -> str:
    """The page that shows a document of `describe`, with its data, style and script inside.

    The page forbids itself every request. No word of the data is ever taken for markup.
    """
    # `<` could end the element that holds the data
    content = {"document": document, "panels": [asdict(panel) for panel in PANELS]}
    data = json.dumps(content, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    page = _part("report.html")
    for mark, text in (
        ("TITLE", html.escape(document["title"])),
        ("STYLE", _part("report.css")),
        ("SCRIPT", _part("report.js")),
        ("DATA", data.replace("<", "\\u003c")),
    ):
        page = page.replace(f"@{mark}@", text, 1)
    return page


def _part(name: str) -> str:
    return (PARTS / name).read_text(encoding="utf-8")
