"""The shape of the package: who imports whom, what is public, and how long things are."""

import ast
import importlib
import statistics
import subprocess
import sys
from pathlib import Path

import pytest

import depth_memory

PACKAGE = Path(depth_memory.__file__).parent
FILES = sorted(PACKAGE.rglob("*.py"))

# an area -> what it may import; every arrow points down
BELOW = {
    "errors": set(),
    "files": {"errors"},
    "tensors": {"files"},
    "weights": {"errors", "files", "tensors"},
    "ops": {"errors"},
    "streams": {"errors", "ops"},
    "data": {"errors", "files"},
    "models": {"errors", "streams"},
    "convert": {"errors", "files", "tensors", "weights", "streams", "models"},
    "train": {"errors", "files", "tensors", "weights", "streams", "models", "data"},
    "loading": {"errors", "files", "weights", "models", "data", "train"},
    "inspect": {"errors", "files", "ops", "streams", "models"},
    "evals": {"errors", "files", "models", "data", "loading"},
    "bench": {"errors", "files", "ops", "streams", "models", "train"},
    "presets": {"errors", "streams", "models", "data", "train"},
    "generate": {"errors", "files", "streams", "models", "data", "presets", "loading"},
    "sweep": {"errors", "files", "models", "data", "loading", "train", "presets"},
    "cli": {
        "weights",
        "loading",
        "generate",
        "errors",
        "files",
        "ops",
        "streams",
        "models",
        "data",
        "convert",
        "train",
        "inspect",
        "evals",
        "bench",
        "presets",
        "sweep",
    },
    "__main__": {"cli"},
    "__init__": set(),
}

PUBLIC = {
    "ops": "rls_write delta_write outer_write read ridge_solve depth_weights attnres sinkhorn mix "
    "window_read window_fold",
    "streams": "Stream Port STREAMS build resolve as_dict frozen_coefficients switched_off "
    "Fallback",
    "models": "DepthLlamaConfig DepthLlamaForCausalLM DepthQwen3Config DepthQwen3ForCausalLM graft "
    "build_model",
    "data": "prepare verify open_split read_manifest embedded_corpus default_tokenizer "
    "ensure_default load_tokenizer train_tokenizer",
    "convert": "convert to_transformers Conversion",
    "train": "Run ModelSpec DataSpec OptimSpec ScheduleSpec train continued evaluate Result "
    "Evaluation",
    "inspect": "retrieval_map statistics writes ablation report describe unpack RetrievalMap "
    "Ablation Ablated",
    "evals": "TASKS Task LoadedTask TaskResult Score find_task load_tasks load_tokenizer evaluate",
    "bench": "BACKBONES MODES SCOPES Backbone Case Method Plan Results Sizes expand parse_method "
    "measure_models measure_ops",
    "presets": "PRESETS GROUPS FAMILIES get vocab_size with_stream debug demo small",
    "sweep": "Sweep Outcome Slot describe load resolve run_sweep slots read_results statuses",
    "cli": "main",
    "errors": "UserError invalid choose",
}

LONGEST_FILE, MEDIAN_FILE = 300, 150
LONGEST_FUNCTION, MEDIAN_FUNCTION = 60, 12


def area(path):
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


def name(path):
    return str(path.relative_to(PACKAGE))


def tree(path):
    return ast.parse(path.read_text())


def imported(path):
    """The areas of the package that a file imports, wherever the import stands."""
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Import):
            modules = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{name(path)}: import by the full name"
            modules = [f"{node.module}.{alias.name}" for alias in node.names]
        else:
            continue
        for module in modules:
            top, *rest = module.split(".")
            if top == "depth_memory" and rest and rest[0] in BELOW:
                yield rest[0]


def functions():
    """Lines of every function, from `def` to its last line."""
    for path in FILES:
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                yield f"{name(path)}:{node.name}", node.end_lineno - node.lineno + 1


def test_every_area_is_known():
    assert {area(path) for path in FILES} == set(BELOW)


@pytest.mark.parametrize("path", FILES, ids=name)
def test_imports_point_down(path):
    own = area(path)
    assert set(imported(path)) - {own} <= BELOW[own]


@pytest.mark.parametrize("module", PUBLIC)
def test_public_names(module):
    found = importlib.import_module(f"depth_memory.{module}")
    missing = [public for public in PUBLIC[module].split() if not hasattr(found, public)]
    assert missing == []
    listed = getattr(found, "__all__", [])
    assert [public for public in listed if not hasattr(found, public)] == []


@pytest.mark.parametrize("module", [module for module in PUBLIC if module != "errors"])
def test_public_names_are_documented(module):
    found = importlib.import_module(f"depth_memory.{module}")
    named = [getattr(found, public) for public in PUBLIC[module].split()]
    assert all(getattr(value, "__doc__", None) for value in named)


def test_the_package_opens_its_areas_when_they_are_used():
    code = (
        "import depth_memory, sys; assert 'torch' not in sys.modules;"
        "depth_memory.ops.rls_write; assert 'transformers' not in sys.modules;"
        "assert depth_memory.graft is depth_memory.models.graft;"
        "assert all(getattr(depth_memory, area) for area in depth_memory.AREAS)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
    with pytest.raises(AttributeError, match="no attribute 'nope'"):
        depth_memory.nope  # noqa: B018 - looking is the test


def test_nothing_but_kernels_needs_triton():
    code = """
import sys
sys.modules["triton"] = None
import torch, depth_memory
from torch import nn
assert all(getattr(depth_memory, area) for area in depth_memory.AREAS)
for name in ("ldm", "attnres"):
    stream = depth_memory.streams.build({"name": name}, 8, 2)
    x, state = stream.port(0).read(stream.start(torch.randn(3, 8)), nn.RMSNorm(8))
    assert x.shape == (3, 8)
try:
    depth_memory.streams.build({"name": "ldm", "impl": "triton"}, 8, 2).start(torch.randn(3, 8))
except depth_memory.errors.UserError as error:
    assert str(error) == (
        "stream.impl: got 'triton'; allowed: auto, reference (Triton is not installed)"
    )
else:
    raise AssertionError
"""
    subprocess.run([sys.executable, "-c", code], check=True)


def test_files_are_short():
    lines = {name(path): len(path.read_text().splitlines()) for path in FILES}
    assert {file: n for file, n in lines.items() if n > LONGEST_FILE} == {}
    assert statistics.median(lines.values()) <= MEDIAN_FILE


def test_functions_are_short():
    lines = dict(functions())
    assert {function: n for function, n in lines.items() if n > LONGEST_FUNCTION} == {}
    assert statistics.median(lines.values()) <= MEDIAN_FUNCTION
