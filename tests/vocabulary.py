"""No name of the old vocabulary is defined in src/stgt, and no old phrase stands in any text that people read.

`make lint` runs this file, and tests/test_house.py too. tests/words.txt has a line for each name: `old: new`, and in
brackets the folders of src/stgt in which that holds, if not in all of them. `old.py` is the name of a module.
tests/phrases.txt has a line for each phrase: `regular expression -> what to write`.
"""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "stgt"
PROSE = (
    "*.md", "docs/**/*.md", "docs/*.py", "src/**/*.py", "src/**/*.j2", "reproductions/**/*.py", "examples/**/*.py",
    "examples/**/*.toml", "benchmarks/*.py", "playground/**/*.py", "playground/*.html", "playground/*.js*", "Makefile",
)  # fmt: skip
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


def phrases() -> list[tuple[re.Pattern[str], str]]:
    """(pattern, what to write instead) of each line of tests/phrases.txt."""
    lines = (ROOT / "tests" / "phrases.txt").read_text(encoding="utf-8").splitlines()
    pairs = [line.split(" -> ") for line in lines if line and not line.startswith("#")]
    # A phrase may be broken over two lines, the second of which may begin with the sign of a comment.
    return [(re.compile(rf"\b{old}\b".replace(" ", r"[\s#]+"), re.IGNORECASE), new) for old, new in pairs]


def prose(path: Path) -> str:
    """The text of a file; of a page without what stands in blocks of code."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        return re.sub(
            r"^( *)```.*?^\1```$", lambda found: "\n" * found[0].count("\n"), text, flags=re.DOTALL | re.MULTILINE
        )
    return text


def old_phrases() -> list[str]:
    """A sentence for each phrase that has to be read twice."""
    found, listed = [], phrases()
    for pattern in PROSE:
        for path in sorted(ROOT.glob(pattern)):
            text = prose(path)
            for old, new in listed:
                for one in old.finditer(text):
                    line = text.count("\n", 0, one.start()) + 1
                    found.append(f"{path.relative_to(ROOT)}:{line}: {' '.join(one[0].split())!r}: write {new}.")
    return found


if __name__ == "__main__":
    wrong = old_names() + old_phrases()
    print("\n".join(wrong))
    sys.exit(bool(wrong))
