"""Makes docs/own_problem.ipynb and docs/theory.ipynb from the pages of these names and executes them: `make notebook`.

The page's words and blocks stay what they are; cells that show a figure, a trace or a graph are added.
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
PREDICTED = """import matplotlib.pyplot as plt

trace = stgt.simulate(adjoint, problem, ring, rounds=50, seeds=200)
plt.semilogy(trace.residual.mean(axis=0), label="mean of 200 runs")
plt.semilogy(curve, "--", label="predicted")
plt.xlabel("round")
plt.ylabel("E‖x̄ − x*‖²")
plt.legend()
plt.show()"""
LOOKS = {  # page: cells that follow block k
    "own_problem": {
        2: [SHOW.replace("NAMES", '["by_rounds", "by_floats"]'), "found", "graph"],
        4: [SHOW.replace("NAMES", '["accuracy"]'), "trace"],
    },
    "theory": {1: ["ring", "exact", PREDICTED], 2: ["limit"]},
}


def cells(page: str, looks: dict[int, list[str]]) -> list:
    """The page as cells; what a block printed, and the figures, come from executing it instead."""
    found, block = [], 0
    page = re.sub(r'```text(?: title="prints"\n|\nmethod ).*?```\n', "", page, flags=re.S)
    for part in re.split(r"(```python\n.*?```\n)", page, flags=re.S):
        if part.startswith("```python"):
            block += 1
            code = part.removeprefix("```python\n").removesuffix("```\n").strip()
            found += [new_code_cell(one) for one in (code, *looks.get(block, ()))]
        else:
            words = re.sub(r"\| over rounds.*\n\|---.*\n\| !\[.*\n", "", part).strip()
            found += [new_markdown_cell(words)] if words else []
    for number, cell in enumerate(found):
        cell["id"] = f"cell-{number}"
    return found


def main() -> None:
    for name, looks in LOOKS.items():
        notebook = new_notebook(cells=cells((DOCS / f"{name}.md").read_text(), looks))
        with tempfile.TemporaryDirectory() as folder:
            # A slow cell's output arrives in pieces: coalesced, it is one.
            options = {"timeout": 600, "coalesce_streams": True, "resources": {"metadata": {"path": folder}}}
            NotebookClient(notebook, **options).execute()
        for cell in notebook.cells:
            cell.metadata.pop("execution", None)
        nbformat.write(notebook, DOCS / f"{name}.ipynb")


if __name__ == "__main__":
    main()
