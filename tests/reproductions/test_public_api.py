"""What is outside of the package, experiments and examples, does with its public names."""

import ast
from importlib import import_module
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PUBLIC = {
    "stgt",
    *(f"stgt.{part}" for part in ("algorithms", "topology", "problems", "oracles", "simulator", "theory", "study")),
    "stgt.study.report",
    *(f"stgt.{part}" for part in ("torch", "torch.train", "flower", "testing")),
}
OUTSIDE = sorted(path for folder in ("reproductions", "examples") for path in (ROOT / folder).rglob("*.py"))


def private(source: str) -> list[str]:
    """What a file uses of `stgt` that is not public: imports of modules and names, and attributes of public modules."""
    tree, modules, found = ast.parse(source), {}, []
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                if alias.name.split(".")[0] == "stgt":
                    modules[alias.asname or "stgt"] = alias.name if alias.asname else "stgt"
                    found += [] if alias.name in PUBLIC else [alias.name]
        elif isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "stgt":
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                if resolved(name) is not None:
                    modules[alias.asname or alias.name] = name
                found += [] if node.module in PUBLIC and is_public(name) else [name]
    for node in ast.walk(tree):
        name = dotted(node, modules)
        if name is not None and resolved(name.rpartition(".")[0]) is not None and not is_public(name):
            found.append(name)
    return found


def dotted(node: ast.AST, modules: dict[str, str]) -> str | None:
    """`stgt.theory.check` where the file says so, whatever it calls the module; None for anything else."""
    if isinstance(node, ast.Name):
        return modules.get(node.id)
    if isinstance(node, ast.Attribute):
        before = dotted(node.value, modules)
        return None if before is None else f"{before}.{node.attr}"
    return None


def resolved(name: str) -> str | None:
    """The public package that a name stands for, None if it is none: `stgt.report` is `stgt.study.report`."""
    name = {"stgt.report": "stgt.study.report"}.get(name, name)
    return name if name in PUBLIC else None


def is_public(name: str) -> bool:
    before, _, last = name.rpartition(".")
    package = resolved(before)
    return resolved(name) is not None or (package is not None and last in names_of(package))


def names_of(package: str) -> list[str]:
    return getattr(import_module(package), "__all__", [])


@pytest.mark.parametrize(
    ("source", "wrong"),
    [
        ("import stgt\nstgt.theory.check, stgt.report.draw, stgt.topology.ring(4).degree, stgt.STGT", []),
        ("from stgt import NotCovered, theory\ntheory.rho", []),
        ("from stgt.study import RunSpec as run\nrun.model_validate", []),
        ("import stgt.torch\nstgt.torch.init", []),
        ("import stgt.theory.stability", ["stgt.theory.stability"]),
        ("def f():\n    from stgt._internal.checks import check_count", ["stgt._internal.checks.check_count"]),
        ("from stgt.theory import stability", ["stgt.theory.stability"]),
        ("from stgt.study import report\nreport.panels", ["stgt.study.report.panels"]),
        ("import stgt as s\ns.theory.stability.accept", ["stgt.theory.stability"]),
        ("from stgt import theory as t\nt.maps", ["stgt.theory.maps"]),
    ],
)
def test_every_way_to_use_something_private_is_seen(source, wrong):
    assert private(source) == wrong


@pytest.mark.parametrize("path", OUTSIDE, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_nothing_private_is_used(path):
    assert private(path.read_text()) == []


def test_the_public_names_are_there():
    for package in PUBLIC:
        assert [name for name in names_of(package) if not hasattr(import_module(package), name)] == []
