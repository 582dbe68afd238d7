"""Every block of code in the documentation runs, or is a command that exists; so do the examples in docstrings."""

import ast
import doctest
import importlib.util
import json
import os
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from pages import LANGUAGES, PAGES, PRINTS, ROOT, blocks, commands, indented, name_of, script, started, write_files
from shell import wrong
from stgt._internal.registry import ALGORITHMS, PROBLEMS, TOPOLOGIES
from stgt.simulator import metrics, run
from stgt.study import load_spec
from stgt.study import run as study_run
from stgt.study.spec.training import load_training

QUICK = {"docs/relaxed.md", "docs/theorems.md", "docs/theory.md"}  # the others are thorough
STGT = "import sys; from stgt.cli import main; sys.argv = ['stgt', *sys.argv[1:]]; main()"
START = {"stgt": ["-c", STGT], "python": [], "torchrun": ["-m", "torch.distributed.run"]}  # what ```console can run


def pages_with(*languages: str) -> list:
    """The pages that have such blocks, as parameters."""
    chosen = [page for page in PAGES if any(block.language in languages for block in blocks(page))]
    return [pytest.param(page, id=name_of(page)) for page in chosen]


def to_run(*languages: str) -> list:
    """The same; most are thorough."""
    found = pages_with(*languages)
    slow = {param.id: () if param.id in QUICK else (pytest.mark.thorough,) for param in found}
    return [pytest.param(*param.values, id=param.id, marks=(*param.marks, *slow[param.id])) for param in found]


def finished(command: list[str], folder: Path) -> str:
    """What a process printed; the test fails with what it complained of if it failed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "NO_COLOR": "1"}
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, env=environment)
    assert done.returncode == 0, f"{command}\n{done.stdout[-2000:]}\n{done.stderr[-4000:]}"
    return done.stdout


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_every_block_says_what_it_is(page):
    """So that none is left out: Python that is not called so, or is indented, would not be run."""
    assert {block.language for block in blocks(page)} <= set(LANGUAGES)
    assert not indented(page), "fence it and say the language; text if it is neither code nor a command"


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_python_block_is_left_out(page):
    """Counted without the parser: what a fence of Python has in it is in the page's script, or in a file it starts."""
    fences = re.findall(r"^ *```python.*\n((?:.*\n)*?) *```$", page.read_text(), flags=re.M)
    visible = [block for block in blocks(page) if block.language == "python"]
    hidden = page.read_text().count("<!-- run\n")
    assert len(fences) + hidden == len(visible)
    apart = [block.text for block in visible if block.title in started(page)]
    placed = {line.strip() for text in (script(page), *apart) for line in text.splitlines()}
    assert {line.strip() for fence in fences for line in fence.splitlines()} <= placed | {""}


@pytest.mark.parametrize("page", to_run("python", "console"))
def test_pages_run(page, tmp_path):
    """In processes of their own, in a new folder; what they print is what the page says that they print."""
    write_files(page, tmp_path)
    printed = ""
    if script(page).strip():
        (tmp_path / "page.py").write_text(script(page))
        printed = finished([sys.executable, "page.py"], tmp_path)
    for line in commands(page, "console"):
        program, *arguments = shlex.split(line, comments=True)
        printed += finished([sys.executable, *START[program], *arguments], tmp_path)
    lines = [line.rstrip() for line in printed.splitlines()]
    rows = [line for line in lines if re.fullmatch(r"\| .* \|", line)]
    assert [row for row in rows if row not in page.read_text()] == []
    said = [line.rstrip() for block in blocks(page) if block.title == PRINTS for line in block.text.splitlines()]
    assert [line for line in said if line not in lines] == [], printed


@pytest.mark.parametrize("page", pages_with("py"))
def test_what_is_imported_from_other_libraries_exists(page):
    """Of decent-bench, which needs another Python than ours, it is only known that the code can be parsed."""
    found = []
    for text in (block.text for block in blocks(page) if block.language == "py"):
        for node in ast.walk(ast.parse(text)):
            if isinstance(node, ast.Import):
                found += [(alias.name, ()) for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                found.append((str(node.module), tuple(alias.name for alias in node.names)))
    installed = [(module, names) for module, names in found if importlib.util.find_spec(module.split(".")[0])]
    assert installed
    for module, names in installed:
        assert [name for name in names if not hasattr(importlib.import_module(module), name)] == []


@pytest.mark.parametrize("page", pages_with("sh", "console"))
def test_commands_exist(page, tmp_path):
    files = write_files(page, tmp_path)
    lines = commands(page, "sh") + commands(page, "console")
    assert lines
    found = {line: wrong(line, files) for line in lines}
    assert {line: sentence for line, sentence in found.items() if sentence} == {}


@pytest.mark.parametrize(
    "line",
    [
        "stgt trian examples/mnist.toml --out runs",
        "stgt check spec.toml --targt 3",
        "stgt reproduce convergence frontier",
        "make dmeo",
        "pip install 'stgt[pytorch]'",
        "torchrun --nproc-per-node 4 examples/nowhere.py",
        "torchrun --nproc-per-node 4 -m stgt.nowhere",
        "python benchmarks/nowhere.py",
        "examples/nowhere.sh",
        "flwr run examples/nowhere",
        "flwr run examples/flower --strem",
        "flwr supernode lst",
        "examples/flower/deploy.sh deplyo keys",
        "examples/flower/deploy.sh superlink keys",
        "pip install -c constraint.txt .",
        "frobnicate --all",
    ],
)
def test_a_wrong_command_is_seen(line):
    assert wrong(line, set())


@pytest.mark.parametrize("page", pages_with("toml"))
def test_specs_load(page, tmp_path):
    """As the spec of a simulation or of a training; a pyproject.toml names groups of entry points that are read."""
    for number, block in enumerate(block for block in blocks(page) if block.language == "toml"):
        tables = tomllib.loads(block.text)
        if block.title == "pyproject.toml":
            groups = {registry.group for registry in (ALGORITHMS, PROBLEMS, TOPOLOGIES)}
            assert set(tables["project"]["entry-points"]) <= groups
            continue
        path = tmp_path / f"{number}.toml"
        path.write_text(block.text)
        assert (load_training if "model" in tables else load_spec)(path).runs


def test_the_page_on_networks_says_its_radii(capsys):
    (block,) = (block.text for block in blocks(ROOT / "docs" / "relaxed.md") if block.language == "python")
    exec(block, {})
    found = [line.split()[-1] for line in capsys.readouterr().out.splitlines()]
    assert [" and ".join(found)] == re.findall(r"# (.*)$", block, flags=re.M)
    assert float(found[1]) < 1 < float(found[0])


def test_the_page_on_own_problems_has_its_ten_lines():
    """They are called ten; the table below them has the methods in the order in which they were ranked."""
    page = ROOT / "docs" / "own_problem.md"
    ten = [block.text for block in blocks(page) if block.language == "python"][1]
    assert len(ten.strip().splitlines()) == 10


NOTEBOOKS = {"own_problem": 3, "theory": 1}  # and how many pictures their cells draw


@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_is_its_page_executed(name):
    cells = json.loads((ROOT / "docs" / f"{name}.ipynb").read_text())["cells"]
    code = [cell for cell in cells if cell["cell_type"] == "code"]
    sources = ["".join(cell["source"]) for cell in code]
    wanted = [block.text.strip() for block in blocks(ROOT / "docs" / f"{name}.md") if block.language == "python"]
    assert [source for source in sources if source in wanted] == wanted, "make notebook"
    outputs = [output for cell in code for output in cell["outputs"]]
    assert all(cell["execution_count"] for cell in code)
    assert not [output for output in outputs if output["output_type"] == "error"]
    assert sum("image/png" in output.get("data", {}) for output in outputs) == NOTEBOOKS[name]
    assert any("<svg" in "".join(output.get("data", {}).get("text/html", "")) for output in outputs)


@pytest.mark.release
@pytest.mark.parametrize("name", NOTEBOOKS)
def test_a_notebook_can_be_executed_again(name, tmp_path):
    """By Jupyter's own client, in a kernel of its own: no cell fails, and each shows as many things as before."""
    nbformat, nbclient = pytest.importorskip("nbformat"), pytest.importorskip("nbclient")
    notebook = nbformat.read(ROOT / "docs" / f"{name}.ipynb", as_version=4)
    before = [len(cell.get("outputs", [])) for cell in notebook.cells]
    # As `make notebook` does: what a slow cell prints arrives in pieces, as many as the machine's load makes of it.
    options = {"timeout": 250, "coalesce_streams": True, "resources": {"metadata": {"path": str(tmp_path)}}}
    nbclient.NotebookClient(notebook, **options).execute()
    assert [len(cell.get("outputs", [])) for cell in notebook.cells] == before


@pytest.mark.parametrize("module", [run, study_run, metrics])
def test_docstrings_run(module):
    result = doctest.testmod(module)
    assert result.attempted > 0
    assert result.failed == 0


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\((?!http)([^)#]+)", page.read_text()):
        assert (page.parent / target).exists(), target


@pytest.mark.parametrize("page", PAGES, ids=name_of)
def test_no_cell_of_a_table_ends_in_braces(page):
    """The site would take them for attributes of the cell, and leave them out."""
    cells = [cell for line in page.read_text().splitlines() if line.startswith("|") for cell in line.split("|")]
    assert [cell for cell in cells if re.search(r"[^\w`^]\{[^}]*\} *$", cell)] == []
