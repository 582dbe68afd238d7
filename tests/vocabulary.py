"""No name of the old vocabulary is defined in src/stgt: `make lint` runs this file, and tests/test_house.py too.

tests/words.txt has a line for each word: `old: new`, and in brackets the folders of src/stgt in which that holds, if
not in all of them. `old.py` is the name of a module.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "stgt"
LINE = re.compile(r"(?P<old>\w+(?:\.py)?): (?P<new>[^()]+?)(?: \((?P<folders>[\w/ ]+)\))?")


def words() -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """(old name, what to use instead, the folders in which that holds) of each line."""
    for line in (ROOT / "tests" / "words.txt").read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            found = LINE.fullmatch(line)
            if found is None:
                raise ValueError(f"tests/words.txt: {line!r} is not `old: new` or `old: new (folder folder)`.")
            yield found["old"], found["new"], tuple((found["folders"] or "").split())


def defined(source: str) -> Iterator[tuple[str, int]]:
    """The names that a source file defines, with their lines: classes, functions, arguments, variables, attributes."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node.lineno
        elif isinstance(node, ast.arg):
            yield node.arg, node.lineno
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id, node.lineno
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr, node.lineno


def old_names() -> list[str]:
    """A sentence for each name that must not be there."""
    found = []
    listed = list(words())
    for path in sorted(SOURCE.rglob("*.py")):
        within = path.relative_to(SOURCE).as_posix()
        folder, _, module = within.rpartition("/")
        names = [(f"{folder.rpartition('/')[2]}.py", 1), (module, 1), *defined(path.read_text(encoding="utf-8"))]
        for old, new, folders in listed:
            if folders and not any(within.startswith(f"{folder}/") for folder in folders):
                continue
            lines = [line for name, line in names if name.strip("_") == old]
            found += [f"src/stgt/{within}:{line}: {old} is not our word: use {new}." for line in lines]
    return found


if __name__ == "__main__":
    print("\n".join(old_names()), end="")
    sys.exit(bool(old_names()))
