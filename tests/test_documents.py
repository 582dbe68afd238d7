"""The examples in the README and in docstrings run as they stand."""

import doctest
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from stgt import comparison
from stgt.engines import metrics, run

ROOT = Path(__file__).parents[1]


def test_the_readme_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert len(blocks) == 5
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["comparison.pdf", "comparison.png", "run.stgt"]
    assert names["scaffold"].residual.shape == (20, 201)
    assert (
        len(capsys.readouterr().out.splitlines()) == 4 + 6
    )  # four stepsizes; three methods, their head, line and rule
    assert names["longer"]["largest"].shape == (1, 301)


def test_the_page_on_theory_runs(capsys):
    fixed, random = python_blocks("theory.md")
    names: dict = {}
    exec(fixed, names)
    plain, adjoint = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert adjoint < 1 < plain
    assert len(names["curve"]) == 51
    exec(random, names)
    assert float(capsys.readouterr().out.split()[0]) < 1
    assert names["limit"] > names["scaffold"].gamma


def test_the_page_on_networks_runs(capsys):
    (block,) = python_blocks("relaxed.md")
    exec(block, {})
    found = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert found == re.search(r"# (.*)$", block, flags=re.M)[1].split(" and ")
    assert float(found[1]) < 1 < float(found[0])


@pytest.mark.thorough
def test_the_page_on_own_problems_runs(tmp_path):
    """In a process of its own, as a user would; its ten lines are ten."""
    blocks = python_blocks("own_problem.md")
    (tmp_path / "page.py").write_text("\n".join(blocks))
    done = subprocess.run([sys.executable, "page.py"], cwd=tmp_path, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    table = re.search(r"    method .*?network\.\n", (ROOT / "docs" / "own_problem.md").read_text(), flags=re.S)
    shown = [line.split()[0] for line in table[0].splitlines()]
    assert [line.split()[0] for line in done.stdout.splitlines()[: len(shown)]] == shown, "the methods in this order"
    assert len(blocks[1].strip().splitlines()) == 10
    drawn = {f"{name}.{kind}" for name in ("by_rounds", "by_floats", "accuracy") for kind in ("png", "pdf")}
    assert {path.name for path in tmp_path.iterdir()} == {"page.py", "run.stgt", "long.stgt", *drawn}


def test_the_notebook_is_the_page_executed():
    cells = json.loads((ROOT / "docs" / "own_problem.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code]
    blocks = [block.strip() for block in python_blocks("own_problem.md")]
    assert [source for source in sources if source in blocks] == blocks, "make notebook"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in code)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == 3
    assert any("<svg" in "".join(output.get("data", {}).get("text/html", "")) for output in outputs)


def python_blocks(page: str) -> list[str]:
    return re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), flags=re.S)


@pytest.mark.parametrize("module", [run, comparison, metrics])
def test_docstrings_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
