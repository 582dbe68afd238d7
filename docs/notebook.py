"""Makes docs/own_problem.ipynb from docs/own_problem.md and executes it: `make notebook`.

The page's words and blocks stay what they are; cells that show a figure or a trace are added.
"""

from __future__ import annotations

import re
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from nbformat.v4 import new_code_cell, new_markdown_cell, new_notebook

DOCS = Path(__file__).parent
SHOW = """from IPython.display import Image, display

display(*(Image(f"{name}.png", width=480) for name in NAMES))"""
LOOKS = {  # cells that follow block k
    2: [SHOW.replace("NAMES", '["by_rounds", "by_floats"]'), "found", "graph"],
    4: [SHOW.replace("NAMES", '["accuracy"]'), "trace"],
}


def cells(page: str) -> list:
    """The page as cells; what a block printed, and the figures, come from executing it instead."""
    found, block = [], 0
    for part in re.split(r"(```python\n.*?```\n)", page, flags=re.S):
        if part.startswith("```python"):
            block += 1
            code = part.removeprefix("```python\n").removesuffix("```\n").strip()
            found += [new_code_cell(one) for one in (code, *LOOKS.get(block, ()))]
        else:
            words = re.sub(r"(?m)^(    .*|\|.*\|)\n", "", part).strip()
            found += [new_markdown_cell(words)] if words else []
    for number, cell in enumerate(found):
        cell["id"] = f"cell-{number}"
    return found


def main() -> None:
    notebook = new_notebook(cells=cells((DOCS / "own_problem.md").read_text()))
    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    for cell in notebook.cells:
        cell.metadata.pop("execution", None)
    nbformat.write(notebook, DOCS / "own_problem.ipynb")


if __name__ == "__main__":
    main()
