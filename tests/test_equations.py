"""docs/equations.md: every label of the paper has a row, every symbol in it is there, and so is every test."""

import ast
import dataclasses
import importlib
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAPER = ROOT.parent / "shared" / "reference" / "paper.tex"
LABELS = (ROOT / "tests" / "paper" / "labels.txt").read_text().split()  # the paper itself is not in this repository
NOT_CODE = "not implemented: "


def rows() -> dict[str, tuple[str, str]]:
    """Symbol and test of each label, as the page has them."""
    found = {}
    for line in (ROOT / "docs" / "equations.md").read_text().splitlines():
        cells = [cell.strip() for cell in line.strip("|").split(" | ")]
        if line.startswith("| `"):
            assert len(cells) == 4, line
            label = cells[0].strip("`")
            assert label not in found, f"{label} has two rows"
            found[label] = cells[2], cells[3]
    return found


def resolved(symbol: str) -> object:
    """What a dotted name stands for; an AttributeError or ImportError if there is no such thing."""
    parts = symbol.split(".")
    for length in range(len(parts), 0, -1):
        try:
            thing = importlib.import_module(".".join(parts[:length]))
        except ModuleNotFoundError as error:
            if error.name is None or not symbol.startswith(error.name):
                raise
            continue
        for name in parts[length:]:
            owner = thing
            if dataclasses.is_dataclass(owner) and name in {field.name for field in dataclasses.fields(owner)}:
                return owner
            thing = getattr(owner, name)
        return thing
    raise ImportError(symbol)


@cache
def functions(path: Path) -> set[str]:
    """The functions that a file defines, at its top and in classes."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


def test_every_label_has_a_row_and_no_row_lacks_a_label():
    assert len(LABELS) == len(set(LABELS))
    assert sorted(rows()) == sorted(LABELS)


def test_the_labels_are_the_paper_s():
    if not PAPER.exists():
        pytest.skip("the paper's source is not on this machine")
    assert re.findall(r"\\label\{([^}]+)\}", PAPER.read_text()) == LABELS


@pytest.mark.parametrize("label", LABELS)
def test_symbols_and_tests_exist(label):
    symbol, test = rows()[label]
    named = re.findall(r"`((?:stgt|reproductions)\.[\w.]+)`", symbol)
    assert named or symbol.startswith(NOT_CODE), f"{label} names neither a symbol nor a reason"
    for name in named:
        resolved(name)
    tests = re.findall(r"`(tests/[^`]+)`", test)
    assert tests or (test == "none" and symbol.startswith(NOT_CODE)), f"{label} names no test"
    for one in tests:
        path, _, function = one.partition("::")
        assert function in functions(ROOT / path), one


@pytest.mark.parametrize(
    "name", ["stgt.STGTT", "stgt.theory.theorem3", "stgt.nowhere.rho", "stgt.problems.Problem.sigma3"]
)
def test_a_dangling_symbol_is_seen(name):
    with pytest.raises((AttributeError, ImportError)):
        resolved(name)
