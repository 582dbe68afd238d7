"""The rules of the house: data flow one way, and importing is cheap."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "stgt"
# Left to right: a part may import itself and what stands before it. `checks`, `hyper` and `randomness` are under all.
ORDER = [
    "checks",
    "files",
    "hyper",
    "randomness",
    "algorithms",
    "topology",
    "parts",
    "problems",
    "oracles",
    "engines",
    "torch",
    "train",
    "flower",
    "theory",
    "experiments",
    "report",
    "cli",
]


def imports(path: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            found.add(node.module or "")
    return found


@pytest.mark.parametrize("path", sorted(SOURCE.rglob("*.py")), ids=lambda path: str(path.relative_to(SOURCE)))
def test_nothing_on_the_left_imports_anything_on_its_right(path):
    part = path.relative_to(SOURCE).parts[0].removesuffix(".py")
    if part in ("__init__", "__main__"):
        return
    for name in imports(path):
        if name.startswith("stgt."):
            assert ORDER.index(name.split(".")[1]) <= ORDER.index(part), f"{path.name} imports {name}"


@pytest.mark.parametrize("path", sorted((SOURCE / "algorithms").glob("*.py")), ids=lambda path: path.name)
def test_algorithms_import_no_array_library(path):
    allowed = set(sys.stdlib_module_names) | {"stgt.checks", "stgt.hyper"}
    for name in imports(path):
        assert name in allowed or name.split(".")[0] in allowed or name.startswith("stgt.algorithms"), name


@pytest.mark.parametrize("path", sorted((SOURCE / "topology").rglob("*.py")), ids=lambda path: path.name)
def test_topologies_load_numpy_and_nothing_else(path):
    allowed = set(sys.stdlib_module_names) | {"numpy", "stgt"}
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.Import | ast.ImportFrom):
            names = [node.module or ""] if isinstance(node, ast.ImportFrom) else [alias.name for alias in node.names]
            assert {name.split(".")[0] for name in names} <= allowed, names


def test_import_loads_no_heavy_library():
    code = "import sys, stgt; print(sorted({'jax', 'torch', 'matplotlib', 'networkx'} & set(sys.modules)))"
    printed = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert printed.strip() == "[]"


def test_every_algorithm_is_exported():
    import stgt
    from stgt.algorithms import ALGORITHMS

    for name, kind in ALGORITHMS.items():
        assert getattr(stgt, name) is kind
        assert name in stgt.__all__
