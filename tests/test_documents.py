"""The examples in the README and in docstrings run as they stand."""

import doctest
import re
from pathlib import Path

from stgt.engines import run

ROOT = Path(__file__).parents[1]


def test_the_readme_runs(capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), flags=re.S)
    assert len(blocks) == 4
    names: dict = {}
    for block in blocks:
        exec(block, names)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["comparison.pdf", "comparison.png"]
    assert names["scaffold"].residual.shape == (20, 201)
    assert len(capsys.readouterr().out.splitlines()) == 4


def test_the_page_on_theory_runs(capsys):
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "theory.md").read_text(), flags=re.S)
    names: dict = {}
    exec(block, names)
    plain, adjoint = (float(line.split()[-1]) for line in capsys.readouterr().out.splitlines())
    assert adjoint < 1 < plain
    assert len(names["curve"]) == 51


def test_docstrings_run():
    result = doctest.testmod(run)
    assert result.attempted > 0
    assert result.failed == 0


def test_links_lead_somewhere():
    for page in [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")]:
        for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} points to {target}"
