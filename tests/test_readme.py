"""Every Python block of the documentation runs, and the pages keep to their length."""

import json
import re
import shlex
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [
    "README.md",
    "docs/framework.md",
    "docs/evaluation.md",
    "docs/generation.md",
    "docs/inspection.md",
    "docs/pretrained.md",
    "docs/training.md",
]


def blocks(page):
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.M | re.S)


@pytest.mark.parametrize("page", PAGES)
def test_python_blocks_run(page):
    found = blocks(page)
    assert found
    namespace = {}
    for block in found:
        exec(compile(block, page, "exec"), namespace)


def test_readme_is_short():
    assert len((ROOT / "README.md").read_text().splitlines()) <= 150


def test_the_readme_shows_the_demo_as_it_was_recorded():
    text = (ROOT / "README.md").read_text()
    demo = json.loads((ROOT / "results/demo-cpu.json").read_text())
    for stream in ("preln", "ldm"):
        found = demo[stream]
        row = (
            f"{found['parameters'] / 1e6:.2f}M",
            f"{found['loss']:.3f}",
            f"{found['bits_per_byte']:.3f}",
            f"{found['median_tokens_per_second'] / 1e3:.1f}k",
        )
        (shown,) = re.findall(rf"^\| `{stream}` \| (\d.*) \|$", text, re.M)
        assert tuple(shown.replace("*", "").split(" | ")) == row
    minutes, seconds = divmod(round(demo["wall_seconds"]), 60)
    assert f" {minutes} min {seconds} s in all" in text
    last, other = (demo[s]["validation_during_training"][-1][1] for s in ("preln", "ldm"))
    assert f"The plot's {last:.3f} and {other:.3f} are" in text


def test_commands_of_the_readme_exist():
    from depth_memory.cli.main import COMMANDS

    shown = re.findall(r"^depth-memory (\w+)", (ROOT / "README.md").read_text(), re.M)
    assert shown
    assert set(shown) <= set(COMMANDS)


def test_commands_of_the_training_page_are_accepted():
    from depth_memory.cli import train
    from depth_memory.cli.main import parser

    text = (ROOT / "docs/training.md").read_text().replace("\\\n", " ")
    shown = re.findall(r"^(?:depth-memory|torchrun .*-m depth_memory) ([^#\n]*)", text, re.M)
    assert len(shown) > 8
    for line in shown:
        known, rest = parser().parse_known_args(shlex.split(line))
        known.fields = rest
        assert known.takes_fields or not rest
        if known.takes_fields:
            train.resolve(known)


def links(page):
    """The files of the repository that a page links to."""
    found = re.findall(r"\]\((?!http)([^)#]+)\)", (ROOT / page).read_text())
    return [((ROOT / page).parent / target).resolve() for target in found]


@pytest.mark.parametrize("page", PAGES)
def test_relative_links_resolve(page):
    for target in links(page):
        assert target.exists(), target


@pytest.mark.parametrize("page", PAGES)
def test_the_source_distribution_holds_what_is_linked(page):
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    included = settings["tool"]["hatch"]["build"]["targets"]["sdist"]["include"]
    for target in links(page):
        assert target.relative_to(ROOT.resolve()).parts[0] in included, target
